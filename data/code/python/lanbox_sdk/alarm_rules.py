"""告警规则：条件表达式求值、持续时间判断和静默。"""

import time
from dataclasses import dataclass, field

MAX_EXPRESSION_LENGTH = 500


@dataclass
class AlarmRule:
    """一条规则；level 1 最紧急。"""

    name: str
    key: str
    threshold: float
    level: int = 3
    hold_seconds: float = 180.0  # 标准版默认 3 分钟
    _since: float | None = field(default=None, repr=False)

    def evaluate(self, value: float, now: float | None = None) -> bool:
        """值超过阈值并持续 hold_seconds 才触发。"""
        moment = time.time() if now is None else now
        if value <= self.threshold:
            self._since = None
            return False
        if self._since is None:
            self._since = moment
        return moment - self._since >= self.hold_seconds


class SilenceWindow:
    """静默时段；标准版最长 72 小时，企业版 7 天。"""

    def __init__(self, start: float, hours: float, enterprise: bool = False) -> None:
        limit = 168 if enterprise else 72
        if hours > limit:
            raise ValueError(f"silence may last {limit} hours at most")
        self._start, self._end = start, start + hours * 3600

    def is_silenced(self, moment: float) -> bool:
        """此刻是否静默。"""
        return self._start <= moment < self._end


def escalate_level(rule: AlarmRule, minutes_unacknowledged: float) -> int:
    """15 分钟没有确认升一级，最高到 1 级（仅企业版）。"""
    return max(1, rule.level - int(minutes_unacknowledged // 15))
