"""指数退避重试：起始 1 秒，最多 5 次，带随机抖动。"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

RETRYABLE_STATUS = frozenset({429, 500, 503, 504})


class HttpError(Exception):
    """带状态码的 HTTP 错误。"""

    def __init__(self, status: int, retry_after: float | None = None) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True)
class RetryPolicy:
    """重试策略；max_attempts 为 1 即不重试。"""

    max_attempts: int = 5
    first_delay: float = 1.0
    jitter: float = 0.2

    def delay(self, attempt: int) -> float:
        """第 attempt 次失败后等待的秒数。"""
        base = self.first_delay * 2 ** (attempt - 1)
        return base * (1 + random.uniform(-self.jitter, self.jitter))


def retry_with_backoff(call: Callable[[], dict], policy: RetryPolicy, sleep: Callable[[float], None] = time.sleep) -> dict:
    """执行 call；可重试的错误按策略等待，服务端给了 Retry-After 就听它的。"""
    for attempt in range(1, policy.max_attempts + 1):
        try:
            return call()
        except HttpError as error:
            if error.status not in RETRYABLE_STATUS or attempt == policy.max_attempts:
                raise
            sleep(error.retry_after if error.retry_after is not None else policy.delay(attempt))
    raise AssertionError("unreachable")
