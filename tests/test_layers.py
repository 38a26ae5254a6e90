"""Who may import whom, and what starts fast: held by reading the imports, not by believing them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("signatures", "data", "programs", "optimize")
MAY_IMPORT = {
    "signatures": {"signatures"},
    "data": {"data", "signatures"},
    "programs": {"programs", "signatures"},
    "optimize": {"optimize", "programs", "signatures", "data"},
}
DATA_SEES = {"signatures.vocabulary", "signatures.records"}
OWNERS = {
    "pymilvus": ("programs/retrieval/milvus",),
    "milvus_lite": ("programs/retrieval/milvus",),
    "tantivy": ("programs/retrieval/text_index",),
    "elasticsearch": ("programs/retrieval/elastic",),
    "sentence_transformers": ("programs/retrieval/embedding", "programs/retrieval/rerank"),
    "xllamacpp": ("programs/local_lm",),
    "mlflow": ("programs/tracing", "optimize/"),
    "ray": ("programs/retrieval/ray_pipeline",),
    "matplotlib": ("optimize/plots", "optimize/figures"),
    "torch": ("nobody",),
    "litellm": ("nobody",),
}
"""Heavy libraries, and how the paths of the files begin that may import them."""


@dataclass(frozen=True)
class Import:
    """One import: `module` in full, where, and whether it runs when the file is imported."""

    path: str
    line: int
    module: str
    at_import: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"


def files(layer: str) -> list[Path]:
    # The sample code is data: it is read, never run.
    return [path for path in sorted((ROOT / layer).rglob("*.py")) if "data/code" not in path.as_posix()]


def imports(path: Path) -> Iterator[Import]:
    name = path.relative_to(ROOT).as_posix()

    def walk(node: ast.AST, at_import: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(name, child.lineno, alias.name, at_import)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{name}:{child.lineno}: a relative import"
                for alias in child.names:
                    yield Import(name, child.lineno, f"{child.module}.{alias.name}", at_import)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from walk(child, at_import and not inside and not typing_only)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


ALL = [found for layer in LAYERS for path in files(layer) for found in imports(path)]


def layer_of(module: str) -> str:
    return module.partition(".")[0]


def test_the_reader_of_imports_sees_what_is_there() -> None:
    assert {layer_of(found.path.replace("/", ".")) for found in ALL} >= {"signatures", "programs"}
    assert any(found.module == "programs.retrieval.milvus.MilvusDenseStore" and not found.at_import for found in ALL)
    assert any(found.module == "programs.router.Router" and found.at_import for found in ALL)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_one_way(layer: str) -> None:
    wrong = [
        str(found)
        for found in ALL
        if found.path.startswith(f"{layer}/")
        and layer_of(found.module) in LAYERS
        and layer_of(found.module) not in MAY_IMPORT[layer]
    ]
    assert wrong == []


def test_data_sees_the_vocabulary_and_the_records_only() -> None:
    wrong = [
        str(found)
        for found in ALL
        if found.path.startswith("data/")
        and layer_of(found.module) == "signatures"
        and not any(f"{found.module}.".startswith(f"{seen}.") for seen in DATA_SEES)
    ]
    assert wrong == []


def test_nothing_that_runs_imports_a_test() -> None:
    assert [
        str(found) for found in ALL if layer_of(found.module) in ("tests", "conftest", "pytest", "scripted_lm")
    ] == []


@pytest.mark.parametrize("library", OWNERS)
def test_a_heavy_library_is_imported_at_call_time_by_its_owner(library: str) -> None:
    users = [found for found in ALL if layer_of(found.module) == library]
    assert [str(found) for found in users if found.at_import] == []
    assert [str(found) for found in users if not found.path.startswith(OWNERS[library])] == []


def test_vocabulary_records_and_errors_import_no_library_but_pydantic() -> None:
    allowed = {*sys.stdlib_module_names, "pydantic", "signatures", "programs"}
    for path in ("signatures/vocabulary.py", "signatures/records.py", "programs/errors.py"):
        assert {layer_of(found.module) for found in imports(ROOT / path)} <= allowed, path


def test_nothing_pickles_and_only_settings_reads_the_environment() -> None:
    assert [str(f) for f in ALL if layer_of(f.module) in ("pickle", "cloudpickle", "dill", "marshal", "shelve")] == []
    readers = set()
    for layer in ("signatures", "programs"):
        for path in files(layer):
            text = path.read_text(encoding="utf-8")
            if "os.environ.get" in text or "os.getenv" in text:
                readers.add(path.relative_to(ROOT).as_posix())
    assert readers <= {"programs/settings.py"}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that are loaded after `statement`, in a process of its own."""
    program = f"{statement}\nimport sys\nprint(*sorted(name for name in sys.modules if '.' not in name))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


HEAVY = {
    "dspy",
    "torch",
    "numpy",
    "mlflow",
    "pymilvus",
    "tantivy",
    "elasticsearch",
    "xllamacpp",
    "sentence_transformers",
    "litellm",
    "ray",
}


@pytest.mark.parametrize(
    "statement", ["import programs.cli", "import programs", "import programs.settings", "import signatures.records"]
)
def test_the_command_line_starts_without_anything_heavy(statement: str) -> None:
    assert loaded_by(statement) & HEAVY == set()


def test_help_needs_nothing_heavy_either() -> None:
    program = (
        "from programs.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0"
    )
    assert loaded_by(program) & HEAVY == set()


def test_the_program_itself_loads_neither_torch_nor_a_store_nor_mlflow() -> None:
    """M1: what is not installed must not be missed before it is chosen."""
    loaded = loaded_by("import programs.build, programs.adaptive_rag")
    assert loaded & (HEAVY - {"dspy", "numpy"}) == set()
