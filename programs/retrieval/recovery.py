"""After a crash: both stores hold exactly the rows of the documents in the catalogue again.

`recover` settles what the catalogue says was begun. `reconcile` looks into the stores themselves, for what
no catalogue can know: a power cut that took rows a store had acknowledged, a catalogue that was deleted.
"""

from collections.abc import Collection, Iterable, Sequence

from programs.retrieval.base import DenseStore, Row, TextStore, Vector
from programs.retrieval.catalog import Catalog, Entry, rebuilt
from programs.retrieval.plan import Index

_READ_ROWS = 512  # that go from one store to the other together


def recover(catalog: Catalog, index: Index, dense: DenseStore, text: TextStore) -> int:
    """Undo or finish every change of an index that was begun; gives the number of documents.

    May itself be interrupted and repeated.
    """
    if catalog.switching(index):
        _settle_rebuilding(catalog, index, dense, text)
    if catalog.emptying(index):
        empty(catalog, index, dense, text)
        return 0
    unsettled = catalog.entries(index, unsettled=True)
    if not unsettled:
        return 0
    doomed: set[str] = set()
    settled: list[Entry] = []
    for entry in unsettled.values():
        old, new = set(entry.rows), set(entry.new_rows)
        match entry.state:
            case "writing":
                doomed |= new - old
                # A row that old and new content share may show the new title or category already: then
                # the file is read again, even if it is put back to what it was.
                known_hash = "" if old & new else entry.hash
                settled.append(Entry(entry.document_id, entry.source, "ready", known_hash, entry.rows))
            case "replacing":
                doomed |= old - new
                settled.append(Entry(entry.document_id, entry.source, "ready", entry.new_hash, entry.new_rows))
            case _:
                doomed |= old | new
    drop_rows(doomed, dense, text)
    ready = [entry for entry in settled if entry.rows]
    catalog.settle(index, ready, unsettled.keys() - {entry.document_id for entry in ready})
    return len(unsettled)


def empty(catalog: Catalog, index: Index, dense: DenseStore, text: TextStore) -> None:
    """Remove everything from an index, also what was made with another embedder."""
    catalog.begin_emptying(index)
    dense.clear()
    text.clear()
    catalog.end_emptying(index)


def remove(
    catalog: Catalog, index: Index, dense: DenseStore, text: TextStore, documents: Collection[Entry]
) -> list[str]:
    """Remove settled documents; gives their ids."""
    ids = [entry.document_id for entry in documents]
    if ids:
        catalog.advance(index, ids, "deleting")
        drop_rows((row for entry in documents for row in entry.rows), dense, text)
        catalog.settle(index, [], ids)
    return ids


def reconcile(
    catalog: Catalog, index: Index, dense: DenseStore, text: TextStore, wanted: Collection[str]
) -> list[Entry]:
    """Compare the stores with the catalogue, and remove what is in parts.

    Rows of documents that neither the catalogue nor `wanted` names are left alone: on a server they may
    be another catalogue's.

    Args:
        catalog: A catalogue in which everything of the index is settled.
        index: The index.
        dense: Its dense store.
        text: Its text store.
        wanted: Ids of documents that are about to be written.

    Returns:
        Documents of which a row was missing; they are no longer in the index.
    """
    if dense.count() == text.count() == catalog.count(index):
        return []
    in_dense, in_text = dense.ids(), text.ids()
    known = catalog.entries(index)
    lost = [
        entry for entry in known.values() if not in_dense.issuperset(entry.rows) or not in_text.issuperset(entry.rows)
    ]
    remove(catalog, index, dense, text, lost)
    kept = {row for entry in known.values() for row in entry.rows}
    own = known.keys() | set(wanted)
    drop_rows((row for row in in_dense | in_text if row not in kept and _document(row) in own), dense, text)
    return lost


def _settle_rebuilding(catalog: Catalog, index: Index, dense: DenseStore, text: TextStore) -> None:
    """A process died while the stores changed over: the dense one first, then the text store.

    Where the dense store is the new one, the text store gets its rows. All files are read again when they
    are indexed next: equal ids do not say whether the rows are old or new.
    """
    fresh = sorted({row for entry in catalog.entries(rebuilt(index)).values() for row in entry.rows})
    changed = bool(fresh) and dense.ids() == set(fresh)
    if changed:
        with text.rebuilding() as new:
            for start in range(0, len(fresh), _READ_ROWS):
                new.upsert(dense.read(fresh[start : start + _READ_ROWS])[0])
    catalog.settle_rebuilding(index, rebuilt_rows=changed)


def replace(
    catalog: Catalog,
    index: Index,
    dense: DenseStore,
    text: TextStore,
    changes: Sequence[Entry],
    rows: Sequence[Row],
    vectors: Vector,
) -> None:
    """Write documents, each whole, in place of what they were.

    Args:
        catalog: The catalogue.
        index: The index.
        dense: Its dense store.
        text: Its text store.
        changes: The documents in state `writing`.
        rows: All their new rows.
        vectors: Of the rows, in their order.
    """
    catalog.begin(index, changes)
    dense.upsert(rows, vectors)
    text.upsert(rows)
    dense.flush()
    text.flush()
    catalog.advance(index, [entry.document_id for entry in changes], "replacing")
    drop_rows((row for entry in changes for row in set(entry.rows) - set(entry.new_rows)), dense, text)
    catalog.settle(index, [Entry(e.document_id, e.source, "ready", e.new_hash, e.new_rows) for e in changes])


def drop_rows(row_ids: Iterable[str], dense: DenseStore, text: TextStore) -> None:
    """Remove rows from both stores, visibly."""
    doomed = sorted(set(row_ids))
    if doomed:
        dense.delete(doomed)
        text.delete(doomed)
        dense.flush()
        text.flush()


def _document(row_id: str) -> str:
    return row_id.rpartition("#")[0]
