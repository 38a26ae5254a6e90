"""An index follows its files: nothing twice, nothing half, nothing left behind."""

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from index_bench import HashEmbedder, Index, write

from programs.errors import DocumentError, StoreMismatch
from programs.retrieval.catalog import Entry
from programs.retrieval.chunking import embedded_text
from programs.retrieval.code_index import CODE
from programs.retrieval.indexing import DOCUMENTS

LEAVE = "# 年假\n\n## 天数\n\n七天。\n\n## 结转\n\n五天。\n"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "index", HashEmbedder())
    yield made
    made.close()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write(tmp_path / "docs", {"leave.md": LEAVE, "sub/pay.txt": "报销\n类别：财务\n\n三十天内提交。\n"})


def test_documents_are_found_after_indexing_with_their_title_section_and_category(index: Index, docs: Path) -> None:
    report = index.indexer.index_paths([docs])
    assert sorted(report.added) == ["docs/leave.md", "docs/sub/pay.txt"]
    best = index.text.search("年假结转几天", top_k=1)[0].passage
    assert (best.document_id, best.title, best.section) == ("docs/leave.md", "年假", "结转")
    assert index.text.search("报销", top_k=1, category="财务")[0].passage.document_id == "docs/sub/pay.txt"
    vector = index.embedder.encode_query([embedded_text(best)])[0]
    assert index.dense.search(vector, top_k=1)[0].passage == best
    assert len(index.rows()) == 3


def test_the_end_of_a_long_paragraph_is_found_by_its_meaning(tmp_path: Path, embedder: Any) -> None:
    """E7 and F4: what the embedder would cut off, and what a field could not hold, are passages of their own."""
    text = "## 附录\n\n" + "说明文字没有断句" * 300 + "。紧急联系码是 QX7741。\n"
    write(tmp_path / "docs", {"a.md": text, "big.md": "# 大\n\n" + "字" * 22_000})
    made = Index(tmp_path / "index", HashEmbedder())
    report = made.indexer.index_paths([tmp_path / "docs"])
    assert (report.failed, report.truncated) == ({}, [])
    made.close()
    real = Index(tmp_path / "real", embedder)
    assert real.indexer.index_paths([tmp_path / "docs" / "a.md"]).truncated == []
    found = real.dense.search(embedder.encode_query(["紧急联系码 QX7741"])[0], top_k=1)
    assert "QX7741" in found[0].passage.text
    real.close()


def test_indexing_again_changes_nothing(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    before = index.contents()
    calls = len(index.embedder.batches)
    report = index.indexer.index_paths([docs])
    assert (report.added, report.changed, report.passages) == ([], [], 0)
    assert sorted(report.unchanged) == ["docs/leave.md", "docs/sub/pay.txt"]
    assert len(index.embedder.batches) == calls
    assert index.contents() == before


def test_an_edited_file_replaces_its_passages_and_keeps_the_untouched_ones(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    before = index.rows()
    write(docs, {"leave.md": LEAVE.replace("七天", "十天")})
    assert index.indexer.index_paths([docs]).changed == ["docs/leave.md"]
    after = index.rows()
    assert len(after) == 3
    assert len(before & after) == 2
    assert "七天" not in {m.passage.text for m in index.text.search("年假天数", top_k=5)}


def test_a_changed_category_reaches_passages_whose_text_is_the_same(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    index.indexer.index_paths([docs], category="机密")
    assert {p["category"] for p in index.contents() if p["document_id"] == "docs/leave.md"} == {"机密"}


def test_a_file_keeps_its_id_whether_it_is_given_by_itself_or_in_its_folder(index: Index, docs: Path) -> None:
    assert index.indexer.index_paths([docs / "sub" / "pay.txt"]).added == ["sub/pay.txt"]
    assert index.indexer.index_paths([docs]).unchanged == ["sub/pay.txt"]
    write(docs, {"leave.md": LEAVE.replace("七天", "十天")})
    assert index.indexer.index_paths([docs / "leave.md", docs]).changed == ["docs/leave.md"]
    assert len(index.rows()) == 3


def test_another_folder_of_the_same_name_replaces_nothing(index: Index, docs: Path, tmp_path: Path) -> None:
    index.indexer.index_paths([docs])
    before = index.contents()
    other = write(tmp_path / "elsewhere" / "docs", {"leave.md": "# 别的\n\n别的内容。\n", "new.md": "新的内容。"})
    report = index.indexer.index_paths([other])
    assert report.added == ["docs/new.md"]
    assert str(docs / "leave.md") in report.failed[str(other / "leave.md")]
    assert [p for p in index.contents() if p["document_id"] != "docs/new.md"] == before


def test_a_moved_folder_is_the_same_documents(index: Index, docs: Path, tmp_path: Path) -> None:
    index.indexer.index_paths([docs])
    moved = tmp_path / "away" / "docs"
    moved.parent.mkdir()
    docs.rename(moved)
    assert len(index.indexer.index_paths([moved]).unchanged) == 2
    assert len(index.indexer.delete([moved]).removed) == 2


def test_delete_removes_a_file_and_prune_removes_what_is_gone(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    assert index.indexer.delete([docs / "leave.md"]).removed == ["docs/leave.md"]
    assert len(index.rows()) == 1
    assert index.indexer.delete([docs / "leave.md"]).failed == {str(docs / "leave.md"): "is not in the index"}
    (docs / "sub" / "pay.txt").unlink()
    assert index.indexer.index_paths([docs]).removed == []
    assert index.indexer.index_paths([docs], prune=True).removed == ["docs/sub/pay.txt"]
    assert {row.split("#")[0] for row in index.rows()} == {"docs/leave.md"}  # read again by the run before
    assert index.indexer.delete([Path("docs/leave.md")]).removed == ["docs/leave.md"], "by its id"


def test_prune_spares_a_folder_that_is_not_there(index: Index, docs: Path) -> None:
    """A drive that is not mounted is no reason to forget what is on it."""
    index.indexer.index_paths([docs])
    shutil.rmtree(docs)
    report = index.indexer.index_paths([docs], prune=True)
    assert (report.removed, list(report.failed)) == ([], [str(docs)])
    assert len(index.rows()) == 3


def test_one_bad_file_is_named_and_the_others_are_indexed(index: Index, docs: Path) -> None:
    bad = {"bad.md": b"\x00\x00", "empty.txt": b"", "broken.pdf": b"%PDF-1.7 \x00"}
    write(docs, {**bad, ".hidden.md": "# 不读", ".git/x.md": "# 不读", "notes.log": "不读"})
    nameless = Path(os.fsdecode(os.fsencode(docs) + b"/\xff\xfe.md"))
    nameless.write_text("文件名不是 Unicode", encoding="utf-8")
    report = index.indexer.index_paths([docs, docs / "missing.md"])
    assert {Path(path).name for path in report.failed} == {*bad, "missing.md", "??.md"}
    assert all(reason for reason in report.failed.values())
    assert "\n".join([*report.failed, *report.failed.values()]).encode(), "can be printed"
    assert len(report.added) == 2


def test_a_file_that_can_no_longer_be_read_keeps_its_passages(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    before = index.contents()
    write(docs, {"leave.md": b"\x00\x01"})
    assert list(index.indexer.index_paths([docs], prune=True).failed) == [str(docs / "leave.md")]
    assert index.contents() == before


def test_small_documents_are_written_together(index: Index, tmp_path: Path) -> None:
    docs = write(tmp_path / "many", {f"{n}.md": f"# 文件 {n}\n\n内容 {n}。\n" for n in range(150)})
    flushes: list[int] = []
    flush = index.text.flush
    index.text.flush = lambda: (flushes.append(1), flush())[1]  # type: ignore[method-assign]
    steps: list[tuple[str, int, int]] = []
    report = index.indexer.index_paths([docs], on_progress=lambda *step: steps.append(step))
    assert (len(report.added), report.passages, len(flushes)) == (150, 150, 1)
    assert index.embedder.batches == [64, 64, 22]
    assert [done for _, done, _ in steps] == list(range(1, 151))
    assert 0 <= report.embedding_seconds <= report.seconds


def test_an_index_of_another_embedder_is_refused_and_can_be_rebuilt(index: Index, docs: Path, tmp_path: Path) -> None:
    index.indexer.index_paths([docs])
    index.catalog.begin("documents", [Entry("docs/half.md", "/half.md", "writing", "", (), "x", ("docs/half.md#0",))])
    index.close()
    other = Index(tmp_path / "index", HashEmbedder("another", dimension=4))
    assert other.indexer.recover() == 0, "only a rebuild can help"
    for action in (other.indexer.index_paths, other.indexer.delete):
        with pytest.raises(StoreMismatch) as raised:
            action([docs])
        assert "--rebuild" in raised.value.hint
        assert "another" in raised.value.message
    assert len(other.indexer.rebuild([docs]).added) == 2
    assert len(other.rows()) == 3
    other.close()


def test_a_rebuild_from_nothing_leaves_the_index_alone(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs])
    with pytest.raises(DocumentError, match="no such file"):
        index.indexer.rebuild([docs / "typo"])
    assert len(index.rows()) == 3


def test_a_rebuild_that_can_read_nothing_leaves_the_index_alone(index: Index, docs: Path, tmp_path: Path) -> None:
    index.indexer.index_paths([docs])
    before = index.contents()
    with pytest.raises(DocumentError, match="is empty") as raised:
        index.indexer.rebuild([write(tmp_path / "bad", {"empty.txt": b""})])
    assert "left as it was" in raised.value.hint
    assert index.contents() == before
    assert index.indexer.rebuild([write(tmp_path / "new", {"a.txt": "新的内容。"})]).added == ["new/a.txt"]
    assert {passage["document_id"] for passage in index.contents()} == {"new/a.txt"}


def test_searches_during_a_rebuild_never_find_nothing(index: Index, docs: Path) -> None:
    write(docs, {f"{number}.md": f"# 年假\n\n第 {number} 条规定。\n" for number in range(300)})
    index.indexer.index_paths([docs])
    [vector] = index.embedder.encode_query(["年假"])
    found: list[int] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            found.append(len(index.dense.search(vector, top_k=5)))
            found.append(len(index.text.search("年假", top_k=5)))

    with ThreadPoolExecutor(2) as pool:
        searching = [pool.submit(search) for _ in range(2)]
        try:
            for _ in range(2):
                index.indexer.rebuild([docs])
        finally:
            done.set()
        for one in searching:
            one.result(timeout=30)
    assert len(found) > 20
    assert set(found) == {5}
    assert len(index.rows()) == 303


def test_files_are_read_again_when_they_would_be_cut_otherwise(index: Index, docs: Path, tmp_path: Path) -> None:
    index.indexer.index_paths([docs])
    index.close()
    newer = Index(tmp_path / "index", HashEmbedder(), splitter=replace(DOCUMENTS, version="documents-next"))
    assert len(newer.indexer.index_paths([docs]).changed) == 2
    assert len(newer.rows()) == 3
    newer.close()


@pytest.mark.parametrize("state", ["writing", "replacing", "deleting"])
def test_what_a_crash_left_half_done_is_settled(index: Index, docs: Path, state: Any) -> None:
    index.indexer.index_paths([docs])
    ready = index.catalog.entries("documents")["docs/leave.md"]
    kept, lost = ready.rows
    broken = Entry(ready.document_id, ready.source, state, "old", (lost,), "new", (kept,))
    index.catalog.begin("documents", [broken])
    assert index.catalog.pending("documents")
    assert index.indexer.recover() == 1
    assert not index.catalog.pending("documents")
    expected = {"writing": {lost}, "replacing": {kept}, "deleting": set()}[state]
    assert {row for row in index.rows() if row.startswith("docs/leave.md")} == expected
    index.indexer.index_paths([docs])
    assert len(index.rows()) == 3


def test_passages_that_a_store_has_lost_are_written_again(index: Index, docs: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"x.md": "# 其它\n\n其它内容。\n"})
    index.indexer.index_paths([docs, other])
    before = index.contents()
    lost = [row for row in index.rows() if not row.startswith("docs/sub")]
    index.text.delete(lost)
    index.text.flush()
    report = index.indexer.index_paths([docs])
    assert report.added == ["docs/leave.md"]
    assert list(report.failed) == [str(other / "x.md")], "named, as it was not among the files of this run"
    index.indexer.index_paths([other])
    assert index.contents() == before


def test_after_the_loss_of_the_catalogue_nothing_old_remains(index: Index, docs: Path, tmp_path: Path) -> None:
    index.indexer.index_paths([docs])
    index.close()
    for path in (tmp_path / "index").glob("catalog.sqlite*"):
        path.unlink()
    write(docs, {"leave.md": LEAVE.replace("七天", "十天")})
    again = Index(tmp_path / "index", HashEmbedder())
    assert len(again.indexer.index_paths([docs]).added) == 2
    assert len(again.rows()) == 3
    again.close()


def test_rows_of_another_catalogue_are_left_alone(index: Index, docs: Path, tmp_path: Path) -> None:
    """Two people may write into one server."""
    index.indexer.index_paths([docs])
    index.close()
    (tmp_path / "index" / "catalog.sqlite").rename(tmp_path / "theirs.sqlite")
    mine = Index(tmp_path / "index", HashEmbedder())
    mine.indexer.index_paths([write(tmp_path / "mine", {"x.md": "# 我的\n\n我的内容。\n"})])
    assert len(mine.dense.ids()) == len(mine.text.ids()) == 4
    mine.close()


def test_source_files_are_indexed_by_the_same_machinery(tmp_path: Path) -> None:
    long = "X = '" + "a" * 700 + "'\n"
    files: dict[str, str | bytes] = {
        "tokens.py": f"def refresh_access_token(store):\n    return store\n\n\n{long}",
        "notes.bin": b"\x00",
        "min.js": "a" * 70_000,
    }
    source = write(tmp_path / "sdk", files)
    made = Index(tmp_path / "index", HashEmbedder(), index="code", splitter=CODE)
    report = made.indexer.index_paths([source])
    found = made.text.search("access token", top_k=1)[0].passage
    assert (found.location, found.section) == ("sdk/tokens.py:1-2", "refresh_access_token")
    assert report.truncated == [], "a line that the embedder could not read whole is cut"
    assert report.failed == {}
    assert {m.passage.document_id for m in made.text.search("a" * 100, top_k=200)} == {"sdk/tokens.py", "sdk/min.js"}
    assert made.catalog.entries("documents") == {}
    made.close()


def test_a_rebuild_from_a_folder_without_documents_leaves_the_index_alone(
    index: Index, docs: Path, tmp_path: Path
) -> None:
    index.indexer.index_paths([docs])
    before = index.contents()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DocumentError, match="no document"):
        index.indexer.rebuild([tmp_path / "empty"])
    assert index.contents() == before


def test_a_rebuild_names_the_documents_that_it_drops(index: Index, docs: Path, tmp_path: Path) -> None:
    index.indexer.index_paths([docs])
    other = write(tmp_path / "other", {"new.md": "# 新\n\n内容。\n"})
    report = index.indexer.rebuild([other])
    assert report.added == ["other/new.md"]
    assert report.removed == ["docs/leave.md", "docs/sub/pay.txt"]
