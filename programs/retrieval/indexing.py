"""From files to both stores, so that a crash at any moment leaves no half document and no doubles.

For each batch of documents: record the new rows -> write them to both stores -> record that they are
whole -> remove the old ones -> settle. `catalog` says what each state means after a crash.
"""

import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from programs.errors import DocumentError, StoreMismatch
from programs.retrieval import chunking, recovery, tokens
from programs.retrieval.base import DenseStore, Embedder, Row, TextStore, Vector
from programs.retrieval.catalog import Catalog, Entry
from programs.retrieval.chunking import CountTokens, split_file
from programs.retrieval.enrichment import (
    FILE_NAME,
    EnrichmentCache,
    enrichment_key,
    read_enrichments,
)
from programs.retrieval.index_report import IndexReport
from programs.retrieval.plan import Index
from programs.retrieval.preparing import Prepared, Splitter, Task, Workers, embedded, reason, rows_of, split
from programs.retrieval.reading import DOCUMENT_SUFFIXES
from programs.retrieval.source_files import (
    came_from,
    content_hash,
    content_part,
    find_files,
    is_elsewhere,
    is_gone,
    shown,
)
from signatures.records import Passage

BATCH_PASSAGES = 256
"""Passages that are written together: large enough that the embedder, not the stores' flushing, takes
the time; small enough that an interrupted run loses seconds of work."""
ProgressCallback = Callable[[str, int, int], None]


def _split_document(
    path: Path, document_id: str, category: str | None, count_tokens: CountTokens, max_tokens: int
) -> list[Passage]:
    return split_file(path, document_id, category=category, count_tokens=count_tokens, max_tokens=max_tokens)


DOCUMENTS = Splitter(DOCUMENT_SUFFIXES, _split_document, f"documents-{chunking.VERSION}")


@dataclass(frozen=True, slots=True)
class _Document:
    id: str
    source: Path
    hash: str
    rows: Sequence[Row]
    vectors: Vector | None = None


class Indexer:
    """Writes one index. The caller sees to it that there is one at a time.

    Args:
        catalog: The catalogue.
        dense: Dense store of the index.
        text: Text store of the index.
        embedder: Makes the vectors.
        index: Name of the index.
        splitter: How files become passages.
        enrichments: What was written about passages; None for nothing.
        workers: Read and embed documents; None does it here.

    Raises:
        StoreMismatch: From every method that writes, when the index was made with another embedder.
    """

    def __init__(
        self,
        catalog: Catalog,
        dense: DenseStore,
        text: TextStore,
        embedder: Embedder,
        *,
        index: Index = "documents",
        splitter: Splitter = DOCUMENTS,
        enrichments: EnrichmentCache | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._catalog = catalog
        self._dense = dense
        self._text = text
        self._embedder = embedder
        self._index: Index = index
        self._splitter = splitter
        self._enrichments = enrichments
        self._workers = workers

    def index_paths(
        self,
        paths: Sequence[Path],
        *,
        category: str | None = None,
        prune: bool = False,
        on_progress: ProgressCallback | None = None,
    ) -> IndexReport:
        """Bring the index up to date with files and folders.

        Args:
            paths: Files and folders; in folders, files with a known suffix at any depth.
            category: For documents that name none.
            prune: Also remove documents whose file is gone from a given folder.
            on_progress: Told name of the step, documents done and documents in all.
        """
        started = time.monotonic()
        self.recover()
        self._check_facts()
        report = IndexReport()
        self._take_over(paths, report)
        revision = self._enrichments.revision if self._enrichments else ""
        known = self._catalog.entries(self._index)
        files = find_files(paths, suffixes=self._splitter.suffixes, known=known, failed=report.failed)
        for lost in recovery.reconcile(self._catalog, self._index, self._dense, self._text, files):
            del known[lost.document_id]
            if lost.document_id not in files:
                report.failed[lost.source] = "its passages were lost from a store; index it again"
        batch: list[_Document] = []
        read = self._read_here if self._workers is None else partial(self._read_elsewhere, self._workers)
        for number, document in enumerate(read(self._due(files, category, known, revision, report), report), start=1):
            if document is not None:
                batch.append(document)
            if batch and (sum(len(d.rows) for d in batch) >= BATCH_PASSAGES or number == len(files)):
                self._write(batch, known, report)
                batch = []
            if on_progress is not None:
                on_progress("索引", number, len(files))
        # The last file may have been unchanged or unreadable.
        self._write(batch, known, report)
        if prune:
            folders = [path for path in paths if path.is_dir()]
            gone = [e for e in known.values() if is_gone(e) and any(came_from(e, f) for f in folders)]
            report.removed += recovery.remove(self._catalog, self._index, self._dense, self._text, gone)
        report.seconds = time.monotonic() - started
        return report

    def delete(self, paths: Sequence[Path]) -> IndexReport:
        """Remove the documents that came from files or folders, whether these still exist or not.

        A document's id also names it.
        """
        started = time.monotonic()
        self.recover()
        self._check_facts()
        report = IndexReport()
        known = self._catalog.entries(self._index)
        doomed: dict[str, Entry] = {}
        for path in paths:
            found = {document_id: entry for document_id, entry in known.items() if came_from(entry, path)}
            if not found:
                report.failed[shown(path)] = "is not in the index"
            doomed.update(found)
        report.removed = recovery.remove(self._catalog, self._index, self._dense, self._text, doomed.values())
        report.seconds = time.monotonic() - started
        return report

    def rebuild(
        self, paths: Sequence[Path], *, category: str | None = None, on_progress: ProgressCallback | None = None
    ) -> IndexReport:
        """Read the files into a new index that takes the place of the old one, also of another embedder.

        The old one is searched until then, and stays when this is interrupted or killed. On a Milvus Lite
        file no other process can search in any case: the one that writes holds it.

        Returns:
            What was done; `removed` names documents of the old index that the paths do not hold.

        Raises:
            DocumentError: None of the paths exists, or they hold no file that can be read; the index is as
                it was.
        """
        if not any(os.path.exists(path) for path in paths):
            raise DocumentError(
                "no such file or folder", path=", ".join(map(shown, paths)), hint="The index was left as it is."
            )
        fresh = copy.copy(self)
        fresh._index = self._catalog.begin_rebuilding(self._index)
        with self._text.rebuilding() as fresh._text, self._dense.rebuilding() as fresh._dense:
            report = fresh.index_paths(paths, category=category, on_progress=on_progress)
            if not report.added:
                path, reason = next(iter(report.failed.items()), (", ".join(map(shown, paths)), "holds no document"))
                raise DocumentError(reason, path=path, hint="No file could be read. The index was left as it was.")
            report.removed = sorted(self._catalog.entries(self._index).keys() - set(report.added))
            self._catalog.begin_switching(self._index)
        self._catalog.end_rebuilding(self._index)
        return report

    def recover(self) -> int:
        """Undo or finish what a crash left half done; gives the number of documents.

        An index of another embedder is left alone: only `rebuild` can do anything with it.
        """
        if self._differences():
            return 0
        return recovery.recover(self._catalog, self._index, self._dense, self._text)

    def passages(self, paths: Sequence[Path], *, category: str | None = None) -> list[Passage]:
        """What the files would become, without writing to the index; a file that cannot be read is left out.

        Enrichments that the folders bring are kept, so that nobody pays for them again.
        """
        self._take_over(paths, IndexReport())
        known = self._catalog.entries(self._index)
        found: list[Passage] = []
        for document_id, path in find_files(paths, suffixes=self._splitter.suffixes, known=known, failed={}).items():
            try:
                found += self._split(document_id, path, category)
            except DocumentError:
                continue  # `index_paths` reports it
        return found

    def _take_over(self, paths: Sequence[Path], report: IndexReport) -> None:
        """Keep the enrichments that the given folders bring."""
        if self._enrichments is None:
            return
        for path in paths:
            file = path / FILE_NAME
            if not file.is_file():
                continue
            try:
                self._enrichments.add(read_enrichments(file))
            except (DocumentError, OSError, UnicodeDecodeError) as error:
                report.failed[shown(file)] = error.message if isinstance(error, DocumentError) else str(error)

    def _due(
        self,
        files: Mapping[str, Path],
        category: str | None,
        known: Mapping[str, Entry],
        revision: str,
        report: IndexReport,
    ) -> Iterator[tuple[Task, Entry | None] | None]:
        """For each file what must be read; None where nothing must or can, which is reported."""
        for document_id, path in files.items():
            entry = known.get(document_id)
            try:
                content = content_hash(path, self._splitter.version, category or "")
                # What was written about passages belongs to the content, but must not be the reason to read all
                # files again in every run: the revision says whether any of it has changed since.
                digest = f"{content}+{revision}" if revision else content
                if entry is not None and entry.hash == digest:
                    self._note_move(document_id, path, entry, digest)
                    report.unchanged.append(document_id)
                    yield None
                    continue
                if entry is not None and is_elsewhere(entry, path):
                    raise DocumentError(
                        f"would replace {entry.source}, which has the same folder and name",
                        path=str(path),
                        hint="rename one of the folders, or delete that document first",
                    )
            except DocumentError as error:
                report.failed[shown(path)] = reason(error)
                yield None
                continue
            same = entry.rows if entry is not None and content_part(entry.hash) == content else ()
            yield Task(document_id, str(path), category, same, digest), entry

    def _read_here(
        self, due: Iterable[tuple[Task, Entry | None] | None], report: IndexReport
    ) -> Iterator[_Document | None]:
        for found in due:
            if found is None:
                yield None
                continue
            task, entry = found
            try:
                prepared = Prepared(task, self._rows(self._split(task.document_id, Path(task.path), task.category)))
            except DocumentError as error:
                prepared = Prepared(task, failed=reason(error))
            yield self._accepted(prepared, entry, report)

    def _read_elsewhere(
        self, workers: Workers, due: Iterable[tuple[Task, Entry | None] | None], report: IndexReport
    ) -> Iterator[_Document | None]:
        tasks: list[Task] = []
        entries: dict[str, Entry | None] = {}
        for found in due:
            if found is None:
                yield None
                continue
            tasks.append(found[0])
            entries[found[0].document_id] = found[1]
        written = self._enrichments.all() if self._enrichments and tasks else []
        for prepared in workers.prepare(tasks, {one.key: one for one in written}) if tasks else ():
            yield self._accepted(prepared, entries[prepared.task.document_id], report)

    def _accepted(self, prepared: Prepared, entry: Entry | None, report: IndexReport) -> _Document | None:
        """A document that must be written; None for one that need not or cannot, which is reported."""
        task, rows = prepared.task, prepared.rows
        if prepared.failed:
            report.failed[shown(task.path)] = prepared.failed
            return None
        report.embedding_seconds += prepared.seconds
        report.truncated += prepared.truncated
        if entry is not None and task.rows and set(task.rows) == {row.id for row in rows}:
            self._catalog.settle(self._index, [Entry(task.document_id, task.path, "ready", task.digest, entry.rows)])
            report.unchanged.append(task.document_id)
            return None
        (report.added if entry is None else report.changed).append(task.document_id)
        return _Document(task.document_id, Path(task.path), task.digest, rows, prepared.vectors)

    def _note_move(self, document_id: str, path: Path, entry: Entry, digest: str) -> None:
        if entry.source != str(path) and is_gone(entry):  # the folder was moved
            self._catalog.settle(self._index, [Entry(document_id, str(path), "ready", digest, entry.rows)])

    def _split(self, document_id: str, path: Path, category: str | None) -> list[Passage]:
        return split(self._splitter, self._embedder, document_id, path, category)

    def _rows(self, passages: Sequence[Passage]) -> list[Row]:
        keys = [enrichment_key(passage) for passage in passages] if self._enrichments else []
        known = self._enrichments.newest(keys) if self._enrichments else {}
        return rows_of(passages, known)

    def _write(self, batch: Sequence[_Document], known: Mapping[str, Entry], report: IndexReport) -> None:
        if not batch:
            return
        changes: list[Entry] = []
        rows: list[Row] = []
        for document in batch:
            old = known.get(document.id)
            rows += document.rows
            changes.append(
                Entry(
                    document.id,
                    str(document.source),
                    "writing",
                    old.hash if old else "",
                    old.rows if old else (),
                    document.hash,
                    tuple(row.id for row in document.rows),
                )
            )
        given = [document.vectors for document in batch if document.vectors is not None]
        vectors = np.concatenate(given) if len(given) == len(batch) else self._embedded(rows, report)
        recovery.replace(self._catalog, self._index, self._dense, self._text, changes, rows, vectors)
        report.passages += sum(row.kind == "passage" for row in rows)
        report.enriched += len({row.passage.id for row in rows if row.kind != "passage"})

    def _embedded(self, rows: Sequence[Row], report: IndexReport) -> Vector:
        limit = self._embedder.max_tokens
        report.truncated += [row.id for row in rows if self._embedder.count_tokens(row.text) > limit]
        started = time.monotonic()
        vectors = embedded(rows, self._embedder)
        report.embedding_seconds += time.monotonic() - started
        return vectors

    def _facts(self) -> dict[str, str]:
        return {
            "embedder": self._embedder.name,
            "dimension": str(self._embedder.dimension),
            "tokens": str(tokens.VERSION),
        }

    def _differences(self) -> list[str]:
        """How the index differs from what this indexer would make; [] also for a new one."""
        found = self._catalog.facts(self._index)
        if "embedder" not in found:
            return []
        return [f"{key} {found.get(key)!r}, now {new!r}" for key, new in self._facts().items() if found.get(key) != new]

    def _check_facts(self) -> None:
        differences = self._differences()
        if differences:
            raise StoreMismatch(
                f"The index {self._index!r} was made with other settings: {'; '.join(differences)}.",
                store="catalog",
                hint="adaptive-rag index --rebuild PATH… reads the files again.",
            )
        # The splitter may differ: it is part of each document's hash.
        self._catalog.set_facts(self._index, {**self._facts(), "splitter": self._splitter.version})
