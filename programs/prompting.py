"""Passages as a language model reads them: numbered, fenced, with markers made harmless."""

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from signatures import wording
from signatures.records import Hit, Passage

_SALT = secrets.token_bytes(16)
"""Per process, so that nobody who writes a document can know a fence."""
_fixed: ContextVar[bytes | None] = ContextVar("adaptive_rag_fences", default=None)

_MARKERS = re.compile(
    r"<\|[^|>\n]{1,40}\|>"  # chat template tokens
    r"|</?(?:think|tool_call|s)>|\[/?INST\]|<</?SYS>>"
    r"|\[\[ ?## ?\w+ ?## ?\]\]"  # field markers of DSPy
    r"|【(?:question|answer|passages|history|query|reasons|tried_queries|answer_language|heading)】",
    re.IGNORECASE,
)
_SWAP = str.maketrans("<>[]|【】", "〈〉［］¦［］")


@contextmanager
def repeatable_fences() -> Iterator[None]:
    """The same passages give the same block in every process, for kept replies and compiled demonstrations.

    For passages of one's own only: fences can be foreseen.
    """
    token = _fixed.set(b"repeatable")
    try:
        yield
    finally:
        _fixed.reset(token)


def neutralise(text: str) -> str:
    """`text` with everything that a chat template or our own layout would obey made inert.

    Only what is shown to a model changes; what a user sees does not pass through here.
    """
    return _MARKERS.sub(lambda match: match.group().translate(_SWAP), text)


def passage_of(item: Passage | Hit | str) -> Passage:
    """The passage of a hit; a bare string becomes one, for callers outside the loop."""
    if isinstance(item, Hit):
        return item.passage
    if isinstance(item, Passage):
        return item
    return Passage(id=hashlib.sha256(item.encode()).hexdigest()[:10], document_id="", text=item)


def render_passages(passages: Sequence[Passage]) -> str:
    """The block that every prompt with passages begins with; numbers start at 1.

    The same passages give the same block within a process, so that a prefix cache can hold it.
    """
    bodies = [f"[{n}] {neutralise(p.heading)}\n{neutralise(p.text)}" for n, p in enumerate(passages, start=1)]
    digest = hashlib.blake2b(
        "\0".join(bodies).encode("utf-8", "replace"), key=_fixed.get() or _SALT, digest_size=4
    ).hexdigest()
    fence = f"----{digest}----"
    header = wording.PASSAGES_HEADER.replace("{fence}", fence)
    return "\n".join([header, fence, "\n".join(bodies), fence])
