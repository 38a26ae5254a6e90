"""Sentences of Chinese, English or mixed text."""

import re

_BREAK = re.compile(
    r"(?<=[。！？；!?;…])(?![”’」』）)。！？…])"  # behind a sign that ends a sentence, unless a quote closes
    r"|(?<=[。！？!?…][”’」』])(?=[“‘「『])"  # between two quotes; other words go on behind one
    r"|(?<=[a-zA-Z0-9)]\.)\s+(?=\S)"  # an English full stop, which a decimal point is not
    r"|\n+"
)


def sentences(text: str) -> list[str]:
    """Sentences in order, without outer white space; a line or a list item ends one too.

    Text without any sign is one sentence. Nothing but white space is lost.
    """
    parts, start = [], 0
    for found in _BREAK.finditer(text):
        parts.append(text[start : found.start()])
        start = found.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]
