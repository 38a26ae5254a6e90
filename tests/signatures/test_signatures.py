"""Every word that a language model reads stands in `signatures`, and every field is described."""

import ast
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import dspy
import pytest

import signatures.answering
import signatures.enriching
import signatures.judging
import signatures.probing
import signatures.rewriting
import signatures.routing

ROOT = Path(__file__).parents[2]
MODULES: list[ModuleType] = [
    signatures.answering,
    signatures.enriching,
    signatures.judging,
    signatures.probing,
    signatures.rewriting,
    signatures.routing,
]
ALL = [
    cls
    for module in MODULES
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, dspy.Signature) and cls.__module__ == module.__name__
]


@pytest.mark.parametrize("signature", ALL, ids=lambda signature: signature.__name__)
def test_a_signature_has_instructions_and_describes_its_fields(signature: Any) -> None:
    assert signature.instructions.strip()
    for name, field in signature.fields.items():
        description = field.json_schema_extra["desc"]
        assert description, name
        assert description != f"${{{name}}}", name


@pytest.mark.parametrize("signature", ALL, ids=lambda signature: signature.__name__)
def test_every_text_that_is_written_has_a_limit(signature: Any) -> None:
    """A model without a limit rambles until it is cut, and a cut reply is no reply."""
    for name, field in signature.output_fields.items():
        limited = any(hasattr(mark, "max_length") or hasattr(mark, "le") for mark in field.metadata)
        closed = field.annotation is not str and not limited and "Literal" in str(field.annotation)
        assert limited or closed or name == "verdicts", name  # verdicts gets a pattern for each call


@pytest.mark.parametrize("signature", ALL, ids=lambda signature: signature.__name__)
def test_passages_come_first_so_that_a_prefix_cache_holds_them(signature: Any) -> None:
    if "passages" in signature.input_fields:
        assert next(iter(signature.input_fields)) == "passages"


def test_no_other_folder_defines_a_signature_or_an_instruction() -> None:
    found = []
    for path in [*ROOT.glob("programs/**/*.py"), *ROOT.glob("optimize/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("Signature" in ast.unparse(base) for base in node.bases):
                found.append(f"{path.name}: {node.name}")
    assert found == []
