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
    r"<\|[^|>\n]{1,40}\|>|<｜[^｜>\n]{1,40}｜>"  # chat template tokens; DeepSeek's have wide bars
    r"|</?(?:think|tool_calls?|tool_response|function_calls?|invoke|tools|s|bos|eos|(?:start|end)_of_turn)\b[^<>\n]{0,80}>"
    r"|\[/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT)\]|<</?SYS>>"
    r"|\[\[ ?## ?\w+ ?## ?\]\]"  # field markers of DSPy
    r"|【\s*(?:question|answer|passages|history|query|reasons?|tried_queries|answer_language|heading|verdicts?|request)\s*】",
    re.IGNORECASE,
)
_SWAP = str.maketrans("<>[]|｜【】", "〈〉［］¦¦［］")
_FENCE = re.compile(r"-{4}[0-9a-fA-F]{8}-{4}")
_NUMBERED = re.compile(r"(?m)^([^\S\n]*)\[(\d{1,3})\]")


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
    text = _FENCE.sub(lambda match: match.group().replace("-", "‐"), text)
    return _MARKERS.sub(lambda match: match.group().translate(_SWAP), text)


def _body(text: str) -> str:
    """The text of a passage: also without lines that begin like another passage."""
    return _NUMBERED.sub(r"\1［\2］", neutralise(text))


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
    # A title of several lines would end where the text begins.
    bodies = [
        f"[{n}] {' '.join(neutralise(p.heading).splitlines())}\n{_body(p.text)}"
        for n, p in enumerate(passages, start=1)
    ]
    key = _fixed.get() or _SALT
    digest = hashlib.blake2b("\0".join(bodies).encode("utf-8", "replace"), key=key, digest_size=4).hexdigest()
    fence = f"----{digest}----"
    header = wording.PASSAGES_HEADER.replace("{fence}", fence)
    return "\n".join([header, fence, "\n".join(bodies), fence])
