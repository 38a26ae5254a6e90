"""How rows lie in Milvus: fields, keys, limits, and the literals of a filter. No call to Milvus here.

Filters only ever hold digests: the primary key is one of the row's id, and beside the category lies
one of the category. Ids and categories are data of any length with any characters, and the servers
disagree about escapes in a literal; pymilvus itself puts keys into filters without escaping them.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from programs.errors import StoreMismatch
from programs.retrieval.base import Kind, Match, Row
from programs.retrieval.payload import passage_of, payload_of

NAME = "milvus"
MAX_BYTES = 65_535
"""Most a VARCHAR may hold. A server counts bytes of UTF-8, Milvus Lite counts characters."""

MAX_LIMIT = 16_384
"""Most rows that one search or query may return on a server."""

PROPERTY = "adaptive_rag."
"""Begins the properties of a collection that say what it was made with."""

STORED = ["id", "payload"]
"""Fields that a match is made of."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
_HINT = "Split the document into smaller passages."


def quote(value: str) -> str:
    """`value` as a literal of a Milvus filter; the only place where a value enters one.

    Templates would do this on newer servers, and are refused by Milvus Lite and by Milvus 2.3.
    Both read every character as itself except the quote, the backslash and the two line ends.

    Raises:
        TypeError: `value` is no string.
    """
    if not isinstance(value, str):
        raise TypeError(f"a filter value is a string, not {type(value).__name__}")
    return f'"{value.translate(_ESCAPES)}"'


def condition(kind: Kind, category: str | None) -> str:
    """The filter for a kind and, where it is not None, exactly one category."""
    parts = [f"kind == {quote(kind)}"]
    if category is not None:
        parts.append(f"category_key == {quote(digest(category))}")
    return " and ".join(parts)


def digest(value: str) -> str:
    """32 hexadecimal digits that stand for `value`, evenly spread."""
    return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def fits(value: str) -> bool:
    """Whether a VARCHAR can hold `value` on every server."""
    try:
        return len(value.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False


def encode_tokens(tokens: Sequence[str]) -> str:
    """Tokens as words that every analyzer of every server leaves whole.

    The standard analyzers cut `50元`, `12%` and `v4.0`, each version in its own way; Milvus turns
    words into 32-bit numbers afterwards in any case.
    """
    return " ".join(f"t{hashlib.blake2b(token.encode(), digest_size=4).hexdigest()}" for token in tokens)


def pack(rows: Sequence[Row], extra: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as Milvus takes them; of several with one id the last one stays.

    Args:
        rows: What is written.
        extra: Further fields by row: the vector, or the tokens.

    Raises:
        StoreMismatch: A value is longer than a VARCHAR may be; names the row and the field.
    """
    packed: dict[str, dict[str, Any]] = {}
    for row, fields in zip(rows, extra, strict=True):
        record = {
            "key": digest(row.id),
            "id": row.id,
            "kind": row.kind,
            "category": row.passage.category,
            "category_key": digest(row.passage.category),
            "payload": json.dumps(payload_of(row), ensure_ascii=False),
            **fields,
        }
        for field, value in record.items():
            if isinstance(value, str) and not fits(value):
                raise StoreMismatch(
                    f"The field {field!r} of row {row.id[:200]!r} is longer than {MAX_BYTES} bytes or not Unicode.",
                    store=NAME,
                    hint=_HINT,
                )
        packed[record["key"]] = record
    return list(packed.values())


def unpack(entity: dict[str, Any], score: float) -> Match:
    """A match from the stored fields.

    Raises:
        StoreMismatch: The payload is not a passage of this version.
    """
    row_id = str(entity["id"])
    try:
        return Match(row_id, passage_of(json.loads(entity["payload"])), score)
    except (ValidationError, ValueError) as error:
        raise StoreMismatch(
            f"The row {row_id!r} holds another kind of passage.",
            store=NAME,
            hint="Index the documents again into a new collection.",
        ) from error


def noted_identity(description: Mapping[str, Any], names: Iterable[str]) -> dict[str, str | None]:
    """What a collection was made with, from its properties or, on an older server, from its description."""
    properties = description.get("properties") or {}
    found = {name: properties.get(PROPERTY + name) for name in names}
    if not any(found.values()):
        try:
            noted = json.loads(description.get("description") or "")
            found = {name: noted.get(name) for name in found}
        except (ValueError, AttributeError):
            pass
    return found


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor number of `v2.3.5-lite`; None where there are none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None
