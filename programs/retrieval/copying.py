"""Moves an index to other stores, without reading its sources or embedding them again.

    copy_index("documents", source, target)

Documents are copied as the indexer writes them: recorded in the target's catalogue, written to both
stores, settled. So a copy that was killed leaves no half document, is undone where it was half done, and
the next one goes on behind what is whole. Vectors come from the dense store, which keeps whole rows; the
text store of the source is not read.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from programs.errors import StoreMismatch
from programs.retrieval import recovery, tokens
from programs.retrieval.base import DenseStore, TextStore
from programs.retrieval.catalog import Catalog, Entry
from programs.retrieval.plan import Index
from programs.retrieval.source_files import content_part

BATCH_ROWS = 512
"""Rows that are copied together: some seconds of work, and 30 MB where all are of the longest."""

ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an index lies: its catalogue and both stores."""

    catalog: Catalog
    dense: DenseStore
    text: TextStore


@dataclass
class CopyReport:
    """What a copy did.

    Attributes:
        copied, unchanged: Documents by id; `unchanged` were in the target already.
        others: Documents of the target that the source does not have; they stay.
        failed: Documents that were not copied, with the reason.
        rows: Rows copied.
        seconds: Wall time.
    """

    copied: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0


def copy_index(
    index: Index, source: Place, target: Place, *, on_progress: ProgressCallback | None = None
) -> CopyReport:
    """Copy all documents of an index. The caller sees to it that nothing else writes to either place.

    Args:
        index: Name of the index.
        source: Where it is; what a crash left half done there is settled.
        target: Where it goes: an empty place, or one with an index of the same embedder, of which
            documents with the same id are replaced.
        on_progress: Told name of the step, documents done and documents in all.

    Raises:
        StoreMismatch: The target was made with another embedder, or its stores hold rows that its
            catalogue does not know, as those of the source itself do; nothing was written. Or the target
            does not hold in the end what it should.
    """
    started = time.monotonic()
    recovery.recover(source.catalog, index, source.dense, source.text)
    facts = source.catalog.facts(index)
    wanted = source.catalog.entries(index)
    report = CopyReport()
    if not facts:
        return report
    _check_facts(index, facts, target)
    recovery.recover(target.catalog, index, target.dense, target.text)
    recovery.reconcile(target.catalog, index, target.dense, target.text, ())
    if not holds_its_rows(index, target):
        raise StoreMismatch(
            f"The stores of the target hold rows of another index {index!r}.",
            store=target.dense.name,
            hint="Name other stores, or another ADAPTIVE_RAG_STORE_PREFIX, in the file of the target.",
        )
    known = target.catalog.entries(index)
    target.catalog.set_facts(index, {**facts, "tokens": str(tokens.VERSION)})
    todo = {name: entry for name, entry in wanted.items() if not _same(entry, known.get(name))}
    report.unchanged = sorted(wanted.keys() - todo.keys())
    report.others = sorted(known.keys() - wanted.keys())
    done = len(report.unchanged)
    for batch in _batches(todo.values()):
        _copy(index, batch, source, target, known, report)
        done += len(batch)
        if on_progress is not None:
            on_progress("复制", done, len(wanted))
    if not holds_its_rows(index, target):
        raise StoreMismatch(
            f"After copying {index!r} the target holds {target.dense.count()} and {target.text.count()} rows,"
            f" and not {target.catalog.count(index)}.",
            store=target.dense.name,
            hint="Does another program write there? Copy again: only what is missing is written.",
        )
    report.seconds = time.monotonic() - started
    return report


def holds_its_rows(index: Index, place: Place) -> bool:
    """Whether both stores hold exactly the rows that the catalogue names."""
    expected = place.catalog.count(index)
    if place.dense.count() == place.text.count() == expected:
        return True
    # Milvus Lite, killed inside of a flush, may count a row twice until it is written again.
    rows = {row for entry in place.catalog.entries(index).values() for row in entry.rows}
    return len(rows) == expected and place.dense.ids() == place.text.ids() == rows


def _check_facts(index: Index, facts: Mapping[str, str], target: Place) -> None:
    there = target.catalog.facts(index)
    different = [
        f"{name} {there[name]!r}, here {facts.get(name)!r}"
        for name in ("embedder", "dimension")
        if name in there and there[name] != facts.get(name)
    ]
    if "tokens" in there and there["tokens"] != str(tokens.VERSION):
        different.append(f"tokens {there['tokens']!r}, now {tokens.VERSION!r}")
    if different:
        raise StoreMismatch(
            f"The target has an index {index!r} made with other settings: {'; '.join(different)}.",
            store="catalog",
            hint="Name an empty home and other stores, or another ADAPTIVE_RAG_STORE_PREFIX.",
        )


def _same(entry: Entry, there: Entry | None) -> bool:
    # Not by the whole hash: behind the content's it holds the revision of each side's own enrichments.
    return there is not None and (content_part(there.hash), there.rows) == (content_part(entry.hash), entry.rows)


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Whole documents; one that is larger than a batch is one of its own."""
    batch: list[Entry] = []
    rows = 0
    for entry in entries:
        if batch and rows + len(entry.rows) > BATCH_ROWS:
            yield batch
            batch, rows = [], 0
        batch.append(entry)
        rows += len(entry.rows)
    if batch:
        yield batch


def _copy(
    index: Index, batch: list[Entry], source: Place, target: Place, known: Mapping[str, Entry], report: CopyReport
) -> None:
    rows, vectors = source.dense.read([row for entry in batch for row in entry.rows])
    found = {row.id for row in rows}
    whole = [entry for entry in batch if found.issuperset(entry.rows)]
    for entry in batch:
        if entry not in whole:
            report.failed[entry.document_id] = "some of its passages are not in the store; index it again"
    wanted = {row for entry in whole for row in entry.rows}
    kept = [number for number, row in enumerate(rows) if row.id in wanted]
    if not whole:
        return
    changes = []
    for entry in whole:
        old = known.get(entry.document_id)
        before = (old.hash, old.rows) if old else ("", ())
        changes.append(Entry(entry.document_id, entry.source, "writing", *before, entry.hash, entry.rows))
    written = [rows[number] for number in kept]
    recovery.replace(target.catalog, index, target.dense, target.text, changes, written, vectors[kept])
    report.copied += [entry.document_id for entry in whole]
    report.rows += len(written)
