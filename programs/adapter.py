"""How a signature becomes a prompt and a reply becomes fields.

A `dspy.JSONAdapter` with four differences, each for a failure that was met in the field:

- **Layout**: the passages come first, then instructions and inputs, so that the prompts of one hop
  share their beginning and a prefix cache evaluates the passages once.
- **Schema**: the constraints of output fields (range, length, pattern) are sent with the schema;
  DSPy drops them. The server's schema is a hint: everything is validated again here.
- **Leniency**: one unwrapping step for replies that are right but wrapped, and a few spellings of a
  value that mean the same; what stays ambiguous is an error, never a guess.
- **Language**: the frame around the fields is in the signatures' language (`signatures.wording`).
"""

import copy
import json
import re
import threading
import unicodedata
from typing import Annotated, Any, Literal, get_args, get_origin

import dspy
import json_repair
from cachetools import LRUCache
from dspy.adapters.utils import get_annotation_name
from dspy.utils.exceptions import AdapterParseError
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from programs.prompting import neutralise
from signatures import wording

_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}
_FOR_ARRAYS = {"minLength": "minItems", "maxLength": "maxItems"}
_WRAPPERS = ("json", "json_input", "parameters", "arguments", "output", "result", "response", "answer", "decision")
# A digit behind it makes it a number: "3.2 版", "10:30", "-5 度".
_NUMBERED = re.compile(r"^\s*(?:-(?!\d)|[*•·]|[(（]?\d{1,2}[.)、．:：）](?!\d)|[一二三四五六七八九十][、.])\s*")

_formats: LRUCache[type[dspy.Signature], dict[str, Any]] = LRUCache(256)
"""By signature, as a schema takes half a millisecond to make; read only."""
_formats_lock = threading.Lock()


class FieldAdapter(dspy.JSONAdapter):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__(use_native_function_calling=False)

    # -- prompt ------------------------------------------------------------------------------

    def format(self, signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Messages: passages and instructions as system, demonstrations as turns, inputs last."""
        passages = inputs.get(wording.PASSAGES_FIELD) if wording.PASSAGES_FIELD in signature.input_fields else None
        task = f"{signature.instructions.strip()}\n\n{self._output_contract(signature)}"
        if passages is None:
            messages = [{"role": "system", "content": task}]
            lead = ""
        else:
            messages = [{"role": "system", "content": _sound(str(passages))}]
            lead = task + "\n\n"
        for demo in demos:
            messages.append({"role": "user", "content": lead + self._inputs(signature, demo, with_passages=True)})
            messages.append({"role": "assistant", "content": self._outputs(signature, demo)})
        messages.append({"role": "user", "content": lead + self._inputs(signature, inputs, with_passages=False)})
        return messages

    def _output_contract(self, signature: Any) -> str:
        lines = [wording.OUTPUT_HEADER]
        for name, field in signature.output_fields.items():
            lines.append(wording.FIELD_LINE.format(name=name, description=_description(field)))
        return "\n".join(lines)

    def _inputs(self, signature: Any, values: dict[str, Any], *, with_passages: bool) -> str:
        blocks = []
        for name in signature.input_fields:
            if name not in values or (name == wording.PASSAGES_FIELD and not with_passages):
                continue
            value = values[name]
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            text = neutralise(_sound(text))
            # Plain concatenation: a question may hold braces and percent signs.
            blocks.append(wording.INPUT_BLOCK.replace("{name}", name).replace("{value}", text or wording.EMPTY_INPUT))
        return "\n".join(blocks)

    def _outputs(self, signature: Any, values: dict[str, Any]) -> str:
        return json.dumps({n: values[n] for n in signature.output_fields if n in values}, ensure_ascii=False)

    # -- schema ------------------------------------------------------------------------------

    def _prepare_response_format(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any) -> None:
        """Add the schema with all constraints (a private hook of DSPy 3.4; `test_adapter` pins it)."""
        if "response_format" in lm_kwargs:
            return
        with _formats_lock:
            known = _formats.get(signature)
        if known is not None:
            lm_kwargs["response_format"] = known
            return
        super()._prepare_response_format(lm, lm_kwargs, signature)
        model = lm_kwargs.get("response_format")
        if isinstance(model, type):
            schema = constrained_schema(model.model_json_schema(), signature.output_fields)  # type: ignore[attr-defined]
            lm_kwargs["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": schema, "strict": True},
            }
            with _formats_lock:
                _formats[signature] = lm_kwargs["response_format"]

    # -- reply -------------------------------------------------------------------------------

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """Fields of the reply, each validated against its type and constraints.

        Raises:
            AdapterParseError: A field is missing or stays invalid after unwrapping.
        """
        found = _find_object(completion, set(signature.output_fields))
        values: dict[str, Any] = {}
        for name, field in signature.output_fields.items():
            if found is None or name not in found:
                raise self._error(signature, completion, f"the field {name!r} is missing")
            try:
                values[name] = _validator(field).validate_python(_normalise(found[name], name, field))
            except (ValidationError, ValueError) as error:
                raise self._error(signature, completion, f"the field {name!r} is wrong: {error}") from error
        return values

    def _error(self, signature: Any, completion: str, message: str) -> AdapterParseError:
        return AdapterParseError(
            adapter_name=type(self).__name__, signature=signature, lm_response=completion, message=message
        )


# DSPy's streaming looks an adapter up by the name of its class.
FieldAdapter.__name__ = "JSONAdapter"


def constrained_schema(schema: dict[str, Any], fields: dict[str, FieldInfo]) -> dict[str, Any]:
    """`schema` with the constraints of the fields' metadata, in the compact layout of llguidance."""
    schema = copy.deepcopy(schema)
    for name, field in fields.items():
        target = schema["properties"][name]
        for mark in field.metadata:
            for attribute, keyword in _KEYWORDS.items():
                value = getattr(mark, attribute, None)
                if value is not None:
                    target[_FOR_ARRAYS.get(keyword, keyword) if target.get("type") == "array" else keyword] = value
    # Free white space costs tokens and, on small models, thought.
    schema["x-guidance"] = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
    return schema


def _description(field: FieldInfo) -> str:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    text = str(extra.get("desc") or "")
    kind = "" if field.annotation is str else get_annotation_name(field.annotation)
    if get_origin(field.annotation) is Literal:
        kind = " | ".join(str(value) for value in get_args(field.annotation))
    return f"{text}（{kind}）" if kind and kind not in text else text


def _validator(field: FieldInfo) -> TypeAdapter[Any]:
    marks = tuple(field.metadata)
    kind: Any = Annotated[(field.annotation, *marks)] if marks else field.annotation
    return TypeAdapter(kind)


def _find_object(text: str, names: set[str]) -> dict[str, Any] | None:
    """The JSON object of a reply that holds most of the wanted names, looking into wrappers."""
    loaded = _loads(text)
    candidates = loaded if isinstance(loaded, list) else [loaded]
    if not any(isinstance(candidate, dict) for candidate in candidates):
        start, end = text.find("{"), text.rfind("}")
        candidates = [_loads(text[start : end + 1])] if 0 <= start < end else []
    best: dict[str, Any] | None = None
    for candidate in candidates:
        for level in (candidate, *_unwrapped(candidate)):
            if isinstance(level, dict) and (best is None or len(names & set(level)) >= len(names & set(best))):
                best = level
    return best


def _loads(text: str) -> Any:
    try:
        return json_repair.loads(text)
    except (RecursionError, ValueError):
        return None  # thousands of brackets are no reply


def _unwrapped(value: Any, depth: int = 3) -> list[Any]:
    if not isinstance(value, dict) or depth == 0:
        return []
    inner = [value[name] for name in _WRAPPERS if name in value]
    if len(value) == 1:
        inner = list(value.values())
    levels: list[Any] = []
    for item in inner:
        if isinstance(item, str) and item.lstrip().startswith("{"):
            item = _loads(item)
        if isinstance(item, dict):
            levels += [item, *_unwrapped(item, depth - 1)]
    return levels


def _normalise(value: Any, name: str, field: FieldInfo) -> Any:
    """Spellings that mean the same thing, and too much of a list or an explanation cut.

    Everything else is left as it is.
    """
    kind = field.annotation
    if isinstance(value, str):
        value = _sound(value)
    most = next((mark.max_length for mark in field.metadata if hasattr(mark, "max_length")), None)
    if get_origin(kind) is Literal and isinstance(value, str):
        folded = _narrow(value).strip("\"'“”‘’`。. ")
        return next((option for option in get_args(kind) if str(option).casefold() == folded.casefold()), folded)
    if kind in (int, float):
        number = _number(value)
        percent = any(getattr(mark, "le", None) == 100 for mark in field.metadata)
        # A fraction where a percentage is asked for can only be meant as one; 1 could be either.
        fraction = percent and isinstance(number, float) and 0 < number < 1 and "%" not in _narrow(value)
        return round(number * 100) if fraction else number
    if get_origin(kind) is list:
        if value is None:
            return []
        if isinstance(value, str):
            value = [line for line in value.splitlines() if line.strip()]
        if isinstance(value, list):
            return [_NUMBERED.sub("", _sound(item)).strip() if isinstance(item, str) else item for item in value][:most]
    if kind is str and value is None:
        return ""
    if name in wording.EXPLANATIONS and isinstance(value, str):
        return value.strip()[:most]
    return value


def _sound(text: str) -> str:
    """`text` without lone surrogates, halves of a cut emoji: nothing that encodes takes them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _narrow(value: Any) -> str:
    return unicodedata.normalize("NFKC", str(value)).strip()


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = float(_narrow(value).removesuffix("%"))
        except ValueError:
            return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
