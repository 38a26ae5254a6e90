"""翻页：500 页以内用页码，之后用游标。"""

from collections.abc import Callable, Iterator

MAX_PAGE_SIZE = 200
CURSOR_FROM_PAGE = 500


def clamp_page_size(page_size: int) -> int:
    """接口最大每页 200 条，多写的按 200 处理。"""
    return max(1, min(page_size, MAX_PAGE_SIZE))


def iterate_pages(request: Callable[..., dict], path: str, page_size: int, **filters) -> Iterator[dict]:
    """逐条返回结果，直到 has_more 为假。"""
    page, cursor = 1, None
    size = clamp_page_size(page_size)
    while True:
        query = {name: value for name, value in filters.items() if value is not None} | {"page_size": size}
        query |= {"cursor": cursor} if cursor else {"page": page}
        reply = request("GET", path, params=query)
        yield from reply["items"]
        if not reply["has_more"]:
            return
        page += 1
        if page > CURSOR_FROM_PAGE:
            cursor = reply.get("next_cursor")
