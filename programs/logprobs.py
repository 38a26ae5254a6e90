"""Finding a reply's own tokens among those that an endpoint reports probabilities for."""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from programs.replies import THOUGHT_END

Token = Mapping[str, Any]
"""`token`, `logprob` and `top_logprobs`, as in a chat completion."""


def reply_tokens(tokens: Sequence[Token], text: str) -> list[Token]:
    """The tokens of `text` itself: drafts in a thought before it hold the same words."""
    pieces = [str(token.get("token", "")) for token in tokens]
    whole = "".join(pieces)
    start = whole.rfind(text)
    if start < 0 and THOUGHT_END in whole:
        start = whole.rfind(THOUGHT_END) + len(THOUGHT_END)
    return [token for token, end in zip(tokens, accumulate(map(len, pieces)), strict=True) if end > start]


def value_tokens(logprobs: Mapping[str, Any] | None, field: str) -> list[Token]:
    """The tokens that write the value of the text field `field` of a JSON reply.

    Empty when the endpoint gives no log-probabilities or the place is not found.
    """
    begun = re.compile(rf'"{re.escape(field)}"\s*:\s*"?\s*\Z')
    found: list[Token] = []
    written = ""
    for token in (logprobs or {}).get("content") or []:
        piece = token["token"]
        if found or (piece.strip(' "\n') and begun.search(written)):
            found.append(token)
            # The quote that closes the value; the one that opens it may be in the first token.
            if '"' in (piece if len(found) > 1 else piece.lstrip(' "\n')):
                break
        written += piece
    return found
