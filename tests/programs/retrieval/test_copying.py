"""An index is moved to other stores: the same rows and vectors, nothing read or embedded, no half document."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elastic_bench import dense as elastic_dense
from elastic_bench import server_url
from elastic_bench import text as elastic_text
from index_bench import HashEmbedder, Index, run_killed, write

from programs.build import build_indexer, copy_stores
from programs.cli import main
from programs.errors import SettingsError, StoreMismatch
from programs.retrieval.base import DenseStore
from programs.retrieval.catalog import Catalog
from programs.retrieval.copying import CopyReport, Place, copy_index
from programs.retrieval.embedding import load_embedder
from programs.retrieval.enrichment import Enrichment, EnrichmentCache, enrichment_key
from programs.settings import load_settings, settings_from
from programs.stores import Stores

FILES: dict[str, str | bytes] = {
    f"{name}.md": f"# 文{name}\n\n## 一\n\n{name} 的第一段。\n\n## 二\n\n{name} 的第二段。\n" for name in "abcdefg"
}


def place(index: Index) -> Place:
    return Place(index.catalog, index.dense, index.text)


def everything(store: DenseStore) -> dict[str, tuple[Any, list[float]]]:
    """All rows with their vectors."""
    rows, vectors = store.read(sorted(store.ids()))
    return {row.id: (row, [round(float(x), 5) for x in vector]) for row, vector in zip(rows, vectors, strict=True)}


def copy_from(index: Index, folder: Path) -> CopyReport:
    """Copy the index of a folder into `index`."""
    source = Index(folder, HashEmbedder())
    try:
        return copy_index("documents", place(source), place(index))
    finally:
        source.close()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Index]:
    docs = write(tmp_path / "docs", FILES)
    cache = EnrichmentCache(tmp_path / "enrichment.sqlite")
    made = Index(tmp_path / "source", HashEmbedder(), enrichments=cache)
    passages = made.indexer.passages([docs])
    asked = [
        Enrichment(key=enrichment_key(p), model="m", questions=(f"问{p.id}？",), summary="概") for p in passages[:5]
    ]
    cache.add(asked)
    made.indexer.index_paths([docs])
    assert (made.dense.count("question"), made.dense.count("summary")) == (5, 5)
    yield made
    made.close()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "target", HashEmbedder())
    yield made
    made.close()


def test_all_rows_of_all_kinds_arrive_with_their_vectors(source: Index, target: Index) -> None:
    told: list[tuple[str, int, int]] = []
    report = copy_index("documents", place(source), place(target), on_progress=lambda *step: told.append(step))
    assert (len(report.copied), report.rows, report.failed) == (7, source.dense.count(), {})
    assert everything(target.dense) == everything(source.dense)
    assert target.text.ids() == source.text.ids()
    assert target.catalog.entries("documents") == source.catalog.entries("documents")
    query = "a 的第二段"
    assert target.text.search(query, top_k=5) == source.text.search(query, top_k=5)
    assert target.text.search("问", top_k=9, kind="question") == source.text.search("问", top_k=9, kind="question")
    assert told[-1] == ("复制", 7, 7)
    assert target.embedder.batches == []


def test_a_second_copy_writes_only_what_changed_and_keeps_what_the_target_has_besides(
    source: Index, target: Index, tmp_path: Path
) -> None:
    copy_index("documents", place(source), place(target))
    target.indexer.index_paths([write(tmp_path / "more", {"own.txt": "目标自己的文档。"})])
    docs = write(tmp_path / "docs", {"a.md": "# 文a\n\n改过的一段。\n"})
    source.indexer.index_paths([docs])
    report = copy_index("documents", place(source), place(target))
    assert (report.copied, report.others) == (["docs/a.md"], ["more/own.txt"])
    assert len(report.unchanged) == 6
    assert target.rows() == source.rows() | target.text.ids() - source.text.ids()
    assert {row for row in target.text.ids() if row.startswith("docs/a.md")} == {
        row for row in source.text.ids() if row.startswith("docs/a.md")
    }


def test_the_next_run_of_the_indexer_on_the_target_embeds_nothing(source: Index, target: Index, tmp_path: Path) -> None:
    copy_index("documents", place(source), place(target))
    cache = EnrichmentCache(tmp_path / "copied.sqlite")
    cache.add(EnrichmentCache(tmp_path / "enrichment.sqlite").all())
    embedder = HashEmbedder()
    target.close()
    again = Index(tmp_path / "target", embedder, enrichments=cache)
    report = again.indexer.index_paths([tmp_path / "docs"])
    assert (len(report.unchanged), report.passages, embedder.batches) == (7, 0, [])
    again.close()


def test_killed_at_any_step_the_next_copy_ends_the_same(tmp_path: Path, source: Index) -> None:
    expected = everything(source.dense)
    source.close()
    import programs.retrieval.copying as copying

    assert copying.BATCH_ROWS > 4
    action = partial(copy_small, folder=tmp_path / "source")
    steps = run_killed(tmp_path / "clean", action)
    assert steps is not None
    assert steps > 12
    # All steps of the first batch, and the end; the batches in between are like the first.
    for step in (*range(1, 10), steps, steps + 1):
        folder = tmp_path / f"killed{step}"
        assert run_killed(folder, action, step=step) is None
        index = Index(folder, HashEmbedder())
        if step % 3 == 0:
            index.indexer.recover()  # as a search in between does
            rows = index.rows()
            for entry in index.catalog.entries("documents").values():
                assert rows.issuperset(entry.rows)
        report = copy_from(index, tmp_path / "source")
        assert everything(index.dense) == expected, step
        assert index.text.ids() == expected.keys()
        assert len(report.copied) + len(report.unchanged) == 7
        index.close()
        shutil.rmtree(folder)


def copy_small(index: Index, folder: Path) -> None:
    import programs.retrieval.copying as copying

    copying.BATCH_ROWS = 8
    copy_from(index, folder)


def test_a_target_of_another_embedder_or_with_foreign_rows_is_left_alone(source: Index, tmp_path: Path) -> None:
    other = Index(tmp_path / "other", HashEmbedder("another"))
    other.indexer.index_paths([write(tmp_path / "docs2", {"x.txt": "别的。"})])
    with pytest.raises(StoreMismatch, match="another"):
        copy_index("documents", place(source), place(other))
    assert other.rows() != set()
    other.close()
    # The source's own stores under another catalogue: undoing a copy that was killed would empty them.
    before = everything(source.dense)
    fresh = Catalog(tmp_path / "fresh.sqlite")
    with pytest.raises(StoreMismatch, match="rows of another index"):
        copy_index("documents", place(source), Place(fresh, source.dense, source.text))
    assert (everything(source.dense), fresh.entries("documents")) == (before, {})
    fresh.close()


def test_a_document_that_the_source_has_lost_in_part_is_named(source: Index, target: Index) -> None:
    [row] = [row for row in source.dense.ids() if row.startswith("docs/g.md")][:1]
    source.dense.delete([row])
    source.dense.flush()
    report = copy_index("documents", place(source), place(target))
    assert list(report.failed) == ["docs/g.md"]
    assert len(report.copied) == 6
    assert not any(row.startswith("docs/g.md") for row in target.rows())


@pytest.mark.server
def test_to_elasticsearch_and_back(source: Index, target: Index, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    url = server_url(pytestconfig)
    there = Place(Catalog(tmp_path / "there.sqlite"), elastic_dense(url, "copy", "hash", 8), elastic_text(url, "copy"))
    assert copy_index("documents", place(source), there).rows == source.dense.count()
    assert everything(there.dense) == everything(source.dense)
    assert copy_index("documents", there, place(target)).rows == source.dense.count()
    assert everything(target.dense) == everything(source.dense)
    query = np.asarray(source.embedder.encode_query(["x"])[0])
    found = target.dense.search(query, top_k=5)
    assert [m.row_id for m in found] == [m.row_id for m in source.dense.search(query, top_k=5)]
    for part in (there.catalog, there.dense, there.text):
        part.close()


Homes = Callable[..., Path]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Homes:
    """Fills both indexes of one home; gives the file with the settings of another one."""
    monkeypatch.setenv("ADAPTIVE_RAG_STORE_PREFIX", "mine")
    with build_indexer("documents") as indexer:
        indexer.index_paths([write(tmp_path / "docs", FILES)])
    with build_indexer("code") as indexer:
        indexer.index_paths([write(tmp_path / "src", {"a.py": "def f():\n    return 1\n"})])

    def settings_file(home: Path, *lines: str) -> Path:
        file = tmp_path / "target.env"
        file.write_text("\n".join([f"ADAPTIVE_RAG_HOME={home}", *lines]), encoding="utf-8")
        return file

    return settings_file


def test_the_command_copies_both_indexes_to_the_settings_of_the_file_alone(
    homes: Homes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = homes(tmp_path / "there")
    assert main(["index", "--copy-to", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "documents：复制 7 篇 14 行" in shown
    assert "code：复制 1 篇" in shown
    aim = settings_from(file, load_settings())
    assert aim.store_prefix == "adaptive_rag"  # of the file, not of the environment
    stores = Stores(aim, load_embedder(aim.embedder))
    assert stores.text("documents").search("文c 第二段", top_k=1)[0].passage.document_id == "docs/c.md"
    assert stores.dense("code").count() == 1
    stores.close()
    assert main(["index", "--copy-to", str(file), "--code"]) == 0
    assert "code：复制 0 篇 0 行，已有 1 篇" in capsys.readouterr().out


def test_a_file_that_cannot_be_a_target_is_refused(homes: Homes, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="same ADAPTIVE_RAG_HOME"):
        copy_stores(homes(load_settings().home))
    with pytest.raises(SettingsError, match="embedder"):
        copy_stores(homes(tmp_path / "there", "ADAPTIVE_RAG_EMBEDDER=some/model"))
    with pytest.raises(SettingsError, match="STORE_PREFIX"):
        copy_stores(homes(tmp_path / "there", "ADAPTIVE_RAG_STORE_PREFIX=Nein!"))
    empty = tmp_path / "empty.env"
    empty.write_text("# ADAPTIVE_RAG_HOME=x\n", encoding="utf-8")
    for file in (empty, tmp_path / "missing.env", tmp_path):
        with pytest.raises(SettingsError):
            copy_stores(file)


@pytest.mark.parametrize("more", [["docs"], ["--prune"], ["--rebuild"]])
def test_copying_takes_no_paths_and_no_other_action(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["index", "--copy-to", "x.env", *more])
    assert "--code only" in capsys.readouterr().err
