"""Bytes of a file become text that every later stage can take."""

import re

from programs.errors import DocumentError

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff\ud800-\udfff]")
_BINARY = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # not the escape of terminal colours
_MAX_BINARY = 0.1
_HTML_CHARSET = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_GOOD_TO_BAD = 4
"""So many right characters beyond ASCII stand beside a broken one in damaged text. Chinese in GB 18030
that is read as UTF-8 has one right one for about eight broken ones."""


def decoded(data: bytes, path: str, *, html: bool = False) -> str:
    """Text of a file, as `printable` leaves it.

    UTF-8 or UTF-16 with a mark, UTF-8, what an HTML file says of itself, GB 18030; damaged places in
    text that is clearly one of these become U+FFFD.

    Args:
        data: The file's bytes.
        path: For the error.
        html: Whether a `<meta charset>` counts.

    Raises:
        DocumentError: It is no text, or in another encoding.
    """
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if not wide and b"\x00" in data[:4096]:
        raise _no_text(path)
    text = data.decode("utf-16", "replace") if wide else _decoded(data, html)
    if text is None:
        raise DocumentError("is neither UTF-8 nor GB 18030", path=path, hint="Save it as UTF-8.")
    if len(_BINARY.findall(text)) > len(text) * _MAX_BINARY:
        raise _no_text(path)
    return printable(text)


def printable(text: str) -> str:
    """`text` with `\\n` as line end, and with spaces for control characters and lone surrogates.

    Stores and engines refuse those.
    """
    return _CONTROL.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))


def _decoded(data: bytes, html: bool) -> str | None:
    encodings = ["utf-8-sig"]
    if html and (declared := _HTML_CHARSET.search(data[:4096])):
        encodings.append(declared.group(1).decode("ascii"))
    for encoding in encodings:
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    for encoding in ("utf-8-sig", "gb18030"):
        text = data.decode(encoding, "replace")
        bad = text.count("\ufffd")
        if sum(not char.isascii() for char in text) - bad >= _GOOD_TO_BAD * bad:
            return text
    return None


def _no_text(path: str) -> DocumentError:
    return DocumentError("is no text file", path=path, hint="Convert it to text, HTML, PDF or DOCX, or leave it out.")
