"""Source files become passages: by function and class, with exact lines.

Parsed by tree-sitter, so that a file with errors is cut as far as it can be read. What belongs to no
definition (imports, constants, statements) is a passage of its own; no line is lost.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs.retrieval.chunking import MAX_TEXT_BYTES, CountTokens, numbered_doubles, passage_id
from programs.retrieval.cutting import Fits, longest_start
from programs.retrieval.preparing import Splitter
from programs.retrieval.reading import read_text
from signatures.records import Passage

LANGUAGES = {
    ".py": "python",
    ".java": "java",
    ".js": "javascript",
    ".mjs": "javascript",
    ".jsx": "javascript",
    ".ts": "typescript",
    ".tsx": "typescript",
    ".go": "go",
    ".sql": "sql",
    ".sh": "bash",
    ".bash": "bash",
    ".md": "markdown",
}
"""Language by suffix; its grammar is the package `tree-sitter-` and this name."""
CODE_SUFFIXES = frozenset(LANGUAGES)
CODE_CATEGORY = "代码"


_CONTAINERS = frozenset(
    {
        "class_definition",
        "class_declaration",
        "interface_declaration",
        "enum_declaration",
        "record_declaration",
        "abstract_class_declaration",
        "internal_module",
    }
)
_DEFINITIONS = _CONTAINERS | frozenset(
    {
        "function_definition",
        "function_declaration",
        "generator_function_declaration",
        "method_definition",
        "method_declaration",
        "constructor_declaration",
        "type_declaration",
        "type_alias_declaration",
        "create_table",
        "create_view",
        "create_index",
        "create_function",
        "create_trigger",
        "statement",
        "fenced_code_block",
    }
)
_WRAPPERS = frozenset({"decorated_definition", "export_statement", "lexical_declaration", "variable_declaration"})
_FUNCTION_VALUES = frozenset({"arrow_function", "function_expression", "function"})


@dataclass(frozen=True, slots=True)
class _Unit:
    """Lines of one definition, first and last from 0."""

    name: str
    first: int
    last: int
    children: tuple["_Unit", ...] = ()


def split_code(
    path: Path, document_id: str, category: str | None, count_tokens: CountTokens, max_tokens: int
) -> list[Passage]:
    """Split a source file.

    Args:
        path: The file; its suffix says the language.
        document_id: Its id, which also becomes the passages' title.
        category: Category of all passages; `CODE_CATEGORY` when None.
        count_tokens: The embedder's counting.
        max_tokens: The embedder's limit, for heading and text together.

    Raises:
        DocumentError: The file cannot be read.
    """
    text = read_text(path)
    lines = text.split("\n")
    language = LANGUAGES.get(path.suffix.lower(), "")
    units = _units(text, language) if language else []
    passages = []

    def fits(piece: str) -> bool:
        # Bytes first: counting the tokens of a file that is one line takes seconds.
        return len(piece.encode()) <= MAX_TEXT_BYTES and count_tokens(piece) <= max_tokens - 60

    for name, first, last in _pieces(units, lines, fits):
        passages += [
            Passage(
                id=passage_id(document_id, name, body),
                document_id=document_id,
                title=document_id,
                section=name,
                category=category or CODE_CATEGORY,
                text=body,
                language=language or "text",
                start_line=first + 1,
                end_line=last + 1,
            )
            for body in _cut_long("\n".join(lines[first : last + 1]), fits)
        ]
    return numbered_doubles(passages)


CODE = Splitter(CODE_SUFFIXES, split_code, "code-2")


def _cut_long(body: str, fits: Fits) -> Iterator[str]:
    """The text, cut between characters where a single line does not fit, as in a minified file."""
    while body.strip():
        if fits(body):
            yield body
            return
        start = longest_start(body[:MAX_TEXT_BYTES], fits) or body[:1]
        yield start
        body = body[len(start) :]


def _units(text: str, language: str) -> list[_Unit]:
    import tree_sitter

    grammar: Any = importlib.import_module(f"tree_sitter_{language}")
    # The grammar of TSX reads plain TypeScript, too.
    function = grammar.language_tsx if language == "typescript" else grammar.language
    data = text.encode()
    tree = tree_sitter.Parser(tree_sitter.Language(function())).parse(data)
    return list(_definitions(tree.root_node, data))


def _definitions(node: Any, data: bytes, prefix: str = "") -> Iterator[_Unit]:
    """Definitions directly below a node, through what merely wraps them."""
    for child in node.children:
        inner = _defined(child)
        if inner is None:
            if child.type not in _DEFINITIONS and child.child_count:
                yield from _definitions(child, data, prefix)
            continue
        name = f"{prefix}{_name(inner, data)}"
        children = tuple(_definitions(inner, data, f"{name} > ")) if inner.type in _CONTAINERS else ()
        yield _Unit(name, _with_comments(child), child.end_point[0] - (child.end_point[1] == 0), children)


def _defined(node: Any) -> Any:
    """The definition that a node is or wraps, None when it is neither."""
    if node.type in _DEFINITIONS:
        return node
    if node.type in _WRAPPERS:
        for child in node.children:
            if child.type in _DEFINITIONS:
                return child
            if child.type == "variable_declarator":
                value = child.child_by_field_name("value")
                if value is not None and value.type in _FUNCTION_VALUES:
                    return child
            if child.type in _WRAPPERS and (found := _defined(child)) is not None:
                return found
    return None


def _name(node: Any, data: bytes) -> str:
    named = node.child_by_field_name("name")
    if named is None:
        kinds = ("identifier", "object_reference", "type_spec", "info_string", "word")
        named = next((child for child in _walk(node, 3) if child.type in kinds), None)
        if named is not None and named.type == "type_spec":
            named = named.child_by_field_name("name")
    text = data[named.start_byte : named.end_byte].decode("utf-8", "replace") if named is not None else node.type
    receiver = node.child_by_field_name("receiver")  # Go: methods stand beside their type
    if receiver is not None:
        owner = data[receiver.start_byte : receiver.end_byte].decode("utf-8", "replace").strip("()").split()
        text = f"{owner[-1].lstrip('*')} > {text}" if owner else text
    return text.split("\n")[0][:120]


def _walk(node: Any, depth: int) -> Iterator[Any]:
    for child in node.children:
        yield child
        if depth > 1:
            yield from _walk(child, depth - 1)


def _with_comments(node: Any) -> int:
    """First line of a node with the comments and decorators directly above it."""
    first = int(node.start_point[0])
    before = node.prev_sibling
    while before is not None and ("comment" in before.type or before.type in ("decorator", "marker_annotation")):
        if before.end_point[0] < first - 1:
            break
        first = int(before.start_point[0])
        before = before.prev_sibling
    return first


def _pieces(
    units: Sequence[_Unit], lines: list[str], fits: Fits, name: str = "", first: int = 0, last: int | None = None
) -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of every passage; together they are all lines from `first` to `last`."""
    last = len(lines) - 1 if last is None else last
    position = first
    for unit in units:
        begin = max(unit.first, position)
        if unit.last < begin:
            continue  # on the same line as the one before
        if begin > position:
            yield from _by_lines(lines, name, position, begin - 1, fits)
        whole = "\n".join(lines[begin : unit.last + 1])
        if fits(whole):
            yield unit.name, begin, unit.last
        elif unit.children:
            yield from _pieces(unit.children, lines, fits, unit.name, begin, unit.last)
        else:
            yield from _by_lines(lines, unit.name, begin, unit.last, fits)
        position = unit.last + 1
    if position <= last:
        yield from _by_lines(lines, name, position, last, fits)


def _by_lines(lines: list[str], name: str, first: int, last: int, fits: Fits) -> Iterator[tuple[str, int, int]]:
    """Runs of lines that fit; a single line that does not is a passage all the same."""
    while first <= last:
        end = last
        while end > first and not fits("\n".join(lines[first : end + 1])):
            end = first + (end - first) // 2
        yield name, first, end
        first = end + 1
