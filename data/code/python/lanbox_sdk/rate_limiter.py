"""客户端限流：令牌桶，避免撞上 42901。"""

import threading
import time


class TokenBucket:
    """每分钟 rate_per_minute 个令牌，最多攒一分钟的量。"""

    def __init__(self, rate_per_minute: int) -> None:
        self._rate = rate_per_minute / 60
        self._capacity = float(rate_per_minute)
        self._tokens = self._capacity
        self._updated = time.monotonic()
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """取一个令牌，没有就等。"""
        while (wait := self._try_take()) > 0:
            time.sleep(wait)

    def _try_take(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._capacity, self._tokens + (now - self._updated) * self._rate)
            self._updated = now
            if self._tokens >= 1:
                self._tokens -= 1
                return 0.0
            return (1 - self._tokens) / self._rate
