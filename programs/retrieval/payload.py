"""What a store keeps of a row besides the fields it searches: enough to give back the whole row."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from programs.errors import StoreMismatch
from programs.retrieval.base import Kind, Row
from programs.retrieval.chunking import embedded_text
from signatures.records import Passage

_TEXT = "row_text"  # no field of a passage


def payload_of(row: Row) -> dict[str, Any]:
    """The passage, and the text of the row where the passage does not say it."""
    payload = row.passage.model_dump()
    # A passage is kept once: with its text doubled, long ones would not fit into a field any more.
    if row.kind != "passage" or row.text != embedded_text(row.passage):
        payload[_TEXT] = row.text
    return payload


def passage_of(payload: Mapping[str, Any]) -> Passage:
    """The passage of a payload.

    Raises:
        ValidationError: It is another kind of passage.
    """
    return Passage.model_validate({name: value for name, value in payload.items() if name != _TEXT})


def row_of(row_id: str, kind: Kind, payload: Mapping[str, Any], *, store: str) -> Row:
    """The row that had this payload.

    Raises:
        StoreMismatch: It is another kind of passage, or the text of a question or summary is missing.
    """
    try:
        passage = passage_of(payload)
        text = payload.get(_TEXT)
        if text is None and kind == "passage":
            text = embedded_text(passage)
        return Row(row_id, kind, str(payload[_TEXT] if text is None else text), passage)
    except (ValidationError, KeyError) as error:
        raise StoreMismatch(
            f"The row {row_id[:200]!r} was written by another version of this program.",
            store=store,
            hint="adaptive-rag index --rebuild PATH… reads the files again.",
        ) from error
