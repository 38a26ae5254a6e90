"""Killed at any moment, twice in a row, an index ends as if nothing had happened.

Every call that changes something on disk is a moment; all of them are tried.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from index_bench import HashEmbedder, Index, run_killed, write

BEFORE: dict[str, str | bytes] = {
    "a.md": "# 甲\n\n## 一\n\n内容一。\n\n## 二\n\n内容二。\n",
    "b.md": "---\ncategory: 公开\n---\n# 乙\n\n## 一\n\n内容一。\n\n## 二\n\n内容二。\n",
    "c.md": "# 丙\n\n## 一\n\n内容一。\n",
    "d.txt": "丁\n\n内容没有变。\n",
}
AFTER: dict[str, str | bytes] = {
    "a.md": "# 甲\n\n## 一\n\n内容一改了。\n\n## 二\n\n内容二。\n\n## 三\n\n内容三。\n",
    "b.md": "---\ncategory: 机密\n---\n# 乙\n\n## 一\n\n内容一。\n\n## 二\n\n内容二。\n",
    "d.txt": "丁\n\n内容没有变。\n",
    "e.md": "# 戊\n\n## 一\n\n内容一。\n\n内容二。\n",
}


def update(index: Index, docs: Path) -> None:
    index.indexer.index_paths([docs], prune=True)


def rebuild(index: Index, docs: Path) -> None:
    index.indexer.rebuild([docs])


def delete(index: Index, docs: Path) -> None:
    index.indexer.delete([docs / "a.md", docs / "b.md"])


def recover(index: Index) -> None:
    index.indexer.recover()


@contextmanager
def opened(folder: Path) -> Iterator[Index]:
    index = Index(folder, HashEmbedder())
    try:
        yield index
    finally:
        index.close()


def documents(index: Index) -> dict[str, set[str]]:
    """The rows of each document, the same in both stores."""
    found: dict[str, set[str]] = {}
    for row in index.rows():
        found.setdefault(row.split("#")[0], set()).add(row)
    return found


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An index of `BEFORE`, and its folder of documents, which now holds `AFTER`."""
    home = tmp_path_factory.mktemp("crash")
    docs = write(home / "docs", BEFORE)
    run_killed(home / "index", partial(update, docs=docs))
    shutil.rmtree(docs)
    write(docs, AFTER)
    return home / "index", docs


@pytest.mark.parametrize("action", [update, rebuild, delete])
def test_killed_at_any_step_and_again_while_recovering_it_ends_the_same(
    tmp_path: Path, start: tuple[Path, Path], action: Callable[..., None]
) -> None:
    before, docs = start
    with opened(shutil.copytree(before, tmp_path / "old")) as index:
        old = documents(index)
    steps = run_killed(shutil.copytree(before, tmp_path / "clean"), partial(action, docs=docs))
    assert steps
    with opened(tmp_path / "clean") as index:
        new, expected = documents(index), index.contents()
    assert old != new
    for step in range(1, steps + 2):
        folder = shutil.copytree(before, tmp_path / f"{action.__name__}{step}")
        assert run_killed(folder, partial(action, docs=docs), step=step) is None, step
        # The recovery after the crash is killed as well, each time at another of its steps.
        run_killed(folder, recover, step=1 + step % 5)
        with opened(folder) as index:
            recover(index)
            found = documents(index)
            for document, rows in found.items():
                assert rows in (old.get(document), new.get(document)), f"half of {document} at step {step}"
            if action is not delete:
                assert found.keys() >= old.keys() & new.keys(), f"a document is missing at step {step}"
            if action is not delete or found != new:
                action(index, docs)
            assert index.contents() == expected, step


def test_killed_at_any_time_it_ends_the_same(tmp_path: Path, start: tuple[Path, Path]) -> None:
    """Also inside of a store's own call."""
    before, docs = start
    run_killed(shutil.copytree(before, tmp_path / "clean"), partial(update, docs=docs))
    with opened(tmp_path / "clean") as index:
        expected = index.contents()
    for number in range(10):
        folder = shutil.copytree(before, tmp_path / str(number))
        for seconds in (0.004 * number, 0.036 - 0.003 * number):
            assert run_killed(folder, partial(update, docs=docs), seconds=0.001 + seconds) is None
        with opened(folder) as index:
            recover(index)
            # Not the counts: Milvus Lite killed inside of a flush can hold a row twice until it is written again.
            assert index.dense.ids() == index.text.ids()
            update(index, docs)
            assert index.contents() == expected


def test_a_file_put_back_after_a_crash_is_read_again(tmp_path: Path) -> None:
    """A passage that both versions share may already carry the new category when the process dies."""
    docs = write(tmp_path / "docs", {"b.md": BEFORE["b.md"]})
    run_killed(tmp_path / "index", partial(update, docs=docs))
    write(docs, {"b.md": AFTER["b.md"]})
    # Calls: facts, begin, both upserts; the dense store alone has the new category then.
    assert run_killed(tmp_path / "index", partial(update, docs=docs), step=4) is None
    write(docs, {"b.md": BEFORE["b.md"]})
    with opened(tmp_path / "index") as index:
        update(index, docs)
        assert {passage["category"] for passage in index.contents()} == {"公开"}
