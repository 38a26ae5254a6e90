"""The catalogue keeps what it was told, also when the process that told it is killed."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs.errors import StoreMismatch, StoreUnavailable
from programs.retrieval.catalog import Catalog, Entry

REPOSITORY = Path(__file__).resolve().parents[3]
READY = Entry("docs/a.md", "/docs/a.md", "ready", "h1", ("docs/a.md#1", "docs/a.md#2"))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = Catalog(tmp_path / "index" / "catalog.sqlite")
    yield made
    made.close()


def test_a_document_comes_back_as_it_was_told_also_to_another_process(catalog: Catalog, tmp_path: Path) -> None:
    hostile = Entry("docs/'; DROP TABLE documents;--\n‘引号’#.md", "/a b", "writing", "", (), "h", ("x#1", "x#1-2"))
    catalog.begin("documents", [READY, hostile])
    other = Catalog(tmp_path / "index" / "catalog.sqlite")
    assert other.entries("documents") == {entry.document_id: entry for entry in (READY, hostile)}
    assert other.entries("documents", unsettled=True) == {hostile.document_id: hostile}
    assert other.entries("code") == {}
    other.close()


def test_a_change_goes_from_writing_over_replacing_to_ready(catalog: Catalog) -> None:
    catalog.settle("documents", [READY])
    assert not catalog.pending("documents")
    change = Entry("docs/a.md", "/docs/a.md", "writing", "h1", READY.rows, "h2", ("docs/a.md#3",))
    catalog.begin("documents", [change])
    assert catalog.pending("documents")
    assert catalog.entries("documents")["docs/a.md"].rows == READY.rows, "the old rows still count"
    catalog.advance("documents", ["docs/a.md"], "replacing")
    assert catalog.entries("documents")["docs/a.md"].state == "replacing"
    done = Entry("docs/a.md", "/docs/a.md", "ready", "h2", ("docs/a.md#3",))
    catalog.settle("documents", [done])
    assert catalog.entries("documents") == {"docs/a.md": done}
    assert not catalog.pending("documents")
    catalog.settle("documents", [], ["docs/a.md", "docs/unknown.md"])
    assert catalog.entries("documents") == {}


def test_rows_are_counted_for_each_index(catalog: Catalog) -> None:
    assert catalog.count("documents") == 0
    catalog.settle("documents", [READY, Entry("b", "/b", "ready", "h", ("b#1",))])
    catalog.settle("code", [READY])
    assert (catalog.count("documents"), catalog.count("code")) == (3, 2)


def test_emptying_forgets_one_index_and_says_so_until_it_is_done(catalog: Catalog) -> None:
    for index in ("documents", "code"):
        catalog.settle(index, [READY])
        catalog.set_facts(index, {"embedder": "e"})
    catalog.begin_emptying("documents")
    assert catalog.entries("documents") == {}
    assert catalog.emptying("documents") and catalog.pending("documents")
    assert catalog.facts("code") == {"embedder": "e"}
    assert not catalog.pending("code")
    catalog.end_emptying("documents")
    assert catalog.facts("documents") == {}
    assert not catalog.pending("documents")


def test_facts_are_replaced_one_by_one(catalog: Catalog) -> None:
    catalog.set_facts("documents", {"embedder": "a", "dimension": "384"})
    catalog.set_facts("documents", {"embedder": "b"})
    assert catalog.facts("documents") == {"embedder": "b", "dimension": "384"}


def test_a_change_that_fails_halfway_is_no_change(catalog: Catalog) -> None:
    bad = Entry("docs/\ud800.md", "/x", "ready", "h", ())
    with pytest.raises(UnicodeEncodeError):
        catalog.settle("documents", [READY, bad])
    assert catalog.entries("documents") == {}
    catalog.settle("documents", [READY])
    assert len(catalog.entries("documents")) == 1


def test_what_was_told_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from programs.retrieval.catalog import Catalog, Entry\n"
        "catalog = Catalog(Path(sys.argv[1]))\n"
        "catalog.begin('documents', [Entry('a', '/a', 'writing', '', (), 'h', ('a#1',))])\n"
        "catalog._database.execute('BEGIN IMMEDIATE')\n"
        "catalog._database.execute('DELETE FROM documents')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program, str(path)], env=environment, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    catalog = Catalog(path)
    assert catalog.entries("documents", unsettled=True)["a"].new_rows == ("a#1",)
    catalog.close()


def test_several_threads_write_at_once(catalog: Catalog) -> None:
    def settle(number: int) -> None:
        for part in range(10):
            catalog.settle("documents", [Entry(f"{number}-{part}", "/x", "ready", "h", ("r",))])

    threads = [threading.Thread(target=settle, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert catalog.count("documents") == 40


def test_a_damaged_catalogue_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreUnavailable, match="catalog.sqlite") as raised:
        Catalog(tmp_path / "catalog.sqlite")
    assert raised.value.hint


def test_a_catalogue_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    Catalog(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreMismatch, match="newer"):
        Catalog(path)


def test_closing_twice_does_no_harm(catalog: Catalog) -> None:
    catalog.close()
    catalog.close()
