"""断网时把遥测写到本地文件，恢复后按时间顺序补传。默认上限 100 MB，超过丢最旧的。"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

DEFAULT_LIMIT_BYTES = 100 * 1024 * 1024


class OfflineBuffer:
    """一行一个遥测点的文件缓存。"""

    def __init__(self, path: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._path = path
        self._limit = limit_bytes

    def append(self, points: Iterable[dict]) -> None:
        """追加遥测点，必要时丢弃最旧的。"""
        with self._path.open("a", encoding="utf-8") as file:
            for point in points:
                file.write(json.dumps(point, ensure_ascii=False) + "\n")
        self._drop_oldest()

    def replay(self, send: Callable[[list[dict]], None], batch_size: int = 500) -> int:
        """补传全部缓存，返回条数；中途失败时没有发出的仍留在文件里。"""
        if not self._path.exists():
            return 0
        points = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        points.sort(key=lambda point: point["timestamp"])
        sent = 0
        for start in range(0, len(points), batch_size):
            send(points[start : start + batch_size])
            sent += len(points[start : start + batch_size])
            rest = points[sent:]
            self._path.write_text("".join(json.dumps(p, ensure_ascii=False) + "\n" for p in rest), encoding="utf-8")
        return sent

    def _drop_oldest(self) -> None:
        size = self._path.stat().st_size
        if size <= self._limit:
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        while lines and size > self._limit:
            size -= len(lines.pop(0).encode())
        self._path.write_text("".join(lines), encoding="utf-8")
