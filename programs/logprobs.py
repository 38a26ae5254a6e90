"""Finding a reply's own tokens among those that an endpoint reports probabilities for."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from programs.replies import THOUGHT_END

Token = Mapping[str, Any]
"""`token`, `logprob` and `top_logprobs`, as in a chat completion."""


def sound_tokens(logprobs: object) -> list[Token] | None:
    """The tokens of a choice's `logprobs` in the form of a chat completion; None where it has another one.

    Endpoints differ in what they call by this name. One token that cannot be read leaves all of them out,
    as the place of a label is found by counting.
    """
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list):
        return None
    tokens: list[Token] = []
    for given in content:
        token = _sound(given)
        if token is None:
            return None
        options = given.get("top_logprobs")
        sound = [_sound(option) for option in options] if isinstance(options, list) else []
        # Half a set of alternatives would shift the balance between those that are left.
        known = [option for option in sound if option is not None]
        tokens.append({**token, "top_logprobs": known if len(known) == len(sound) else []})
    return tokens


def _sound(given: object) -> dict[str, Any] | None:
    if not isinstance(given, Mapping):
        return None
    token, value = given.get("token"), given.get("logprob")
    if not isinstance(token, str) or isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    # A probability above 1 is rounding at best.
    return {"token": token, "logprob": min(float(min(value, 0)), 0.0)}


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
