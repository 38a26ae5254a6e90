"""What a request tells while it runs: the command line shows it, everything else ignores it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal["routed", "searching", "found", "judged", "rewriting"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        stage: What.
        hop: In which hop, 0 before the first.
        data: routed: `decision`; searching: `queries`; found: `hits`; judged: `verdict`;
            rewriting: `query` and `how`.
    """

    stage: Stage
    hop: int = 0
    data: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]
_listener: ContextVar[Listener | None] = ContextVar("adaptive_rag_listener", default=None)


def emit(stage: Stage, hop: int = 0, **data: Any) -> None:
    """Tell the listener of the running request, if it has one."""
    listener = _listener.get()
    if listener is not None:
        listener(Event(stage, hop, data))


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Send the events of all requests in the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
