"""岚台开放接口的 Python 客户端：鉴权、分页、重试和限流都在这里汇合。"""

from collections.abc import Iterator
from dataclasses import dataclass

from lanbox_sdk.pagination import iterate_pages
from lanbox_sdk.rate_limiter import TokenBucket
from lanbox_sdk.retry import RetryPolicy, retry_with_backoff
from lanbox_sdk.tokens import TokenStore, refresh_access_token

BASE_URL = "https://api.qinglan.example/v2"


class ApiError(Exception):
    """接口返回的错误，带错误码和 request_id。"""

    def __init__(self, code: int, message: str, request_id: str = "") -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.request_id = request_id


@dataclass
class Device:
    """一台岚盒。"""

    device_id: str
    name: str
    model: str
    status: str


class LanboxClient:
    """开放接口客户端；线程安全，一个进程建一个即可。"""

    def __init__(self, client_id: str, client_secret: str, transport, store: TokenStore | None = None) -> None:
        self._credentials = (client_id, client_secret)
        self._transport = transport
        self._store = store or TokenStore()
        # 标准版每分钟 60 次
        self._limiter = TokenBucket(rate_per_minute=60)

    def request(self, method: str, path: str, **options) -> dict:
        """发一个请求；令牌过期（40101）时刷新一次再试。"""
        self._limiter.acquire()
        try:
            return self._send(method, path, **options)
        except ApiError as error:
            if error.code != 40101:
                raise
            refresh_access_token(self._store, self._transport, *self._credentials)
            return self._send(method, path, **options)

    def _send(self, method: str, path: str, **options) -> dict:
        headers = {"Authorization": f"Bearer {self._store.access_token}"}
        policy = RetryPolicy()
        return retry_with_backoff(lambda: self._transport(method, BASE_URL + path, headers, **options), policy)

    def iter_devices(self, page_size: int = 20, status: str | None = None) -> Iterator[Device]:
        """逐台返回设备，自动翻页。"""
        for item in iterate_pages(self.request, "/devices", page_size, status=status):
            yield Device(item["device_id"], item["name"], item["model"], item["status"])

    def send_command(self, device_id: str, name: str, arguments: dict) -> str:
        """下发命令，返回命令编号；离线设备的命令保留 24 小时。"""
        body = {"name": name, "arguments": arguments}
        return self.request("POST", f"/devices/{device_id}/commands", json=body)["command_id"]
