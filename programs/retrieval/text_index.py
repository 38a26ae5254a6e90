"""The embedded text store: a tantivy index in a folder, over the tokens of `programs.retrieval.tokens`.

Any number of processes read it. One process at a time writes: it takes the lock with the first
write and gives it back with `flush()`. What was not flushed when a process dies is lost, and
what was flushed is not.
"""

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from programs.errors import StoreError, StoreLocked, StoreMismatch, StoreUnavailable
from programs.retrieval import tokens
from programs.retrieval.base import Kind, Match, Row, TextStore
from signatures.records import Passage

NAME = "tantivy"
META_FILE = "text_store.json"
SCHEMA_VERSION = 1
"""To be raised when the fields change."""

_HEAP = 50_000_000  # bytes that a writer collects before it writes a segment
_MAX_ID_BYTES = 65_530  # tantivy leaves out a longer term without a word
_HINT = "Delete the folder and index the documents again."


class TantivyTextStore:
    """A `TextStore` in the folder `path`, which is created where it is missing.

    Scores are tantivy's own BM25 (k1 1.2, b 0.75), rounded to five decimals, as the order in which
    the parts of a sum are added must not decide between equal rows.

    Args:
        path: Folder of the index.

    Raises:
        StoreMismatch: The folder holds an index of another schema or token version, or a damaged one.
        StoreUnavailable: The folder cannot be made or read.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        import tantivy

        self._tantivy = tantivy
        self._lock = threading.RLock()
        self._writer: Any = None
        # Of an index whose texts were cut into other words than queries are now.
        self._stale: StoreMismatch | None = None
        with _translated(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
            self._check_version()
            self._schema: Any = self._make_schema()
            self._index: Any = self._tantivy.Index(self._schema, str(self._path), reuse=True)
            self._index.config_reader("manual")

    @property
    def name(self) -> str:
        """`tantivy`."""
        return NAME

    def upsert(self, rows: Sequence[Row]) -> None:
        """Write rows; of several with one id the last one stays.

        Raises:
            StoreLocked: Another process, or another store object, is writing.
            StoreMismatch: An id is longer than 65,530 bytes; no row of the call is written.
        """
        if not rows:
            return
        self._refuse_stale()
        for row in rows:
            if not _is_key(row.id):
                raise StoreMismatch(f"The row id {row.id[:40]!r}… is too long or not valid Unicode.", store=NAME)
        with self._writing() as writer:
            for row in rows:
                writer.delete_documents_by_term("id", row.id)
                writer.add_document(
                    self._tantivy.Document(
                        id=row.id,
                        kind=row.kind,
                        category=_key(row.passage.category),
                        text=" ".join(tokens.tokenize(row.text)),
                        payload=row.passage.model_dump_json().encode(),
                    )
                )

    def search(self, query: str, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        """The `top_k` rows with the highest BM25; only the first 128 distinct tokens of `query` count."""
        self._refuse_stale()
        terms = tokens.query_terms(query)
        if not terms or top_k < 1:
            return []
        with _translated(self._path):
            self._index.reload()
            searcher = self._index.searcher()
            found = self._best(searcher, self._query(terms, kind, category), top_k)
        return [Match(row_id, _passage(row_id, payload), score) for row_id, payload, score in found]

    def delete(self, row_ids: Iterable[str]) -> None:
        """Remove rows; unknown ids are ignored."""
        known = [row_id for row_id in row_ids if _is_key(row_id)]
        if not known:
            return
        with self._writing() as writer:
            for row_id in known:
                writer.delete_documents_by_term("id", row_id)

    def clear(self) -> None:
        """Remove all rows, visibly at once."""
        with self._writing() as writer:
            writer.delete_all_documents()
        self.flush()
        self._renew()

    def rebuilding(self) -> AbstractContextManager[TextStore]:
        """A new content that is shown with one commit; other processes find the old one until then."""
        from programs.retrieval.text_rebuild import rebuilding

        return rebuilding(self)

    def ids(self) -> set[str]:
        """All row ids, of all kinds."""
        with _translated(self._path):
            self._index.reload()
            # Without a filter, terms of deleted rows are listed as well.
            every = self._tantivy.Query.all_query()
            return {term for term, _ in self._index.searcher().terms_with_prefix("id", "", filter_query=every)}

    def count(self, kind: Kind | None = None) -> int:
        """Number of rows, of one kind or of all."""
        with _translated(self._path):
            self._index.reload()
            searcher = self._index.searcher()
            if kind is None:
                return int(searcher.num_docs)
            return int(searcher.search(self._term("kind", kind), limit=1, count=True).count)

    def flush(self) -> None:
        """Commit what was written and give the writer's lock back."""
        with self._lock:
            if self._writer is None:
                return
            writer, self._writer = self._writer, None
            with _translated(self._path):
                try:
                    writer.commit()
                finally:
                    writer.wait_merging_threads()

    def close(self) -> None:
        """Flush, and release the lock."""
        self.flush()

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        with self._lock, _translated(self._path):
            if self._writer is None:
                self._writer = self._index.writer(heap_size=_HEAP, num_threads=1)
                # A process that died inside of a commit left files that the next commit refuses to overwrite.
                self._writer.garbage_collect_files()
            yield self._writer

    def _best(self, searcher: Any, query: Any, top_k: int) -> list[tuple[str, bytes, float]]:
        """The best rows, equal scores in the order of their ids."""
        limit = top_k + 1
        while True:
            hits = searcher.search(query, limit=limit, count=False).hits
            # Rows that tie with the last one wanted may lie behind the limit.
            if len(hits) < limit or round(hits[-1][0], 5) < round(hits[top_k - 1][0], 5):
                break
            limit *= 4
        rows = [(searcher.doc(address), round(float(score), 5)) for score, address in hits]
        found = [(str(row["id"][0]), bytes(row["payload"][0]), score) for row, score in rows]
        return sorted(found, key=lambda row: (-row[2], row[0]))[:top_k]

    def _query(self, terms: list[str], kind: Kind, category: str | None) -> Any:
        query, occur = self._tantivy.Query, self._tantivy.Occur
        filters = [self._term("kind", kind)]
        if category is not None:
            filters.append(self._term("category", _key(category)))
        words = query.boolean_query([(occur.Should, query.term_query(self._schema, "text", t, "freq")) for t in terms])
        # A filter says yes or no and adds nothing to the score.
        clauses = [(occur.Must, query.const_score_query(clause, 0.0)) for clause in filters]
        return query.boolean_query([*clauses, (occur.Must, words)])

    def _term(self, field: str, value: str) -> Any:
        return self._tantivy.Query.term_query(self._schema, field, value, "basic")

    def _make_schema(self) -> Any:
        builder = self._tantivy.SchemaBuilder()
        builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_text_field("kind", tokenizer_name="raw", index_option="basic")
        builder.add_text_field("category", tokenizer_name="raw", index_option="basic")
        builder.add_text_field("text", tokenizer_name="whitespace", index_option="freq")
        builder.add_bytes_field("payload", stored=True)
        return builder.build()

    def _check_version(self) -> None:
        wanted = {"schema": SCHEMA_VERSION, "tokens": tokens.VERSION}
        file = self._path / META_FILE
        if not file.exists():
            if self._tantivy.Index.exists(str(self._path)):
                raise StoreMismatch(f"{self._path} holds an index of another program.", store=NAME, hint=_HINT)
            # Before the index: without this file an index looks foreign.
            self._write_meta()
            return
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise StoreMismatch(f"{file} is damaged.", store=NAME, hint=_HINT) from error
        if found == wanted:
            return
        message = f"The text index {self._path} was made for {found}, this program needs {wanted}."
        if not isinstance(found, dict) or found.get("schema") != SCHEMA_VERSION:
            raise StoreMismatch(message, store=NAME, hint=_HINT)
        # Opened all the same, so that it can be made anew.
        hint = "adaptive-rag index --rebuild PATH… reads the files again."
        self._stale = StoreMismatch(message, store=NAME, hint=hint)

    def _renew(self) -> None:
        """Note that all texts are cut by today's rules."""
        self._write_meta()
        self._stale = None

    def _refuse_stale(self) -> None:
        if self._stale is not None:
            raise self._stale

    def _write_meta(self) -> None:
        file = self._path / META_FILE
        draft = file.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps({"schema": SCHEMA_VERSION, "tokens": tokens.VERSION}), encoding="utf-8")
        draft.replace(file)


def _is_key(row_id: str) -> bool:
    try:
        return len(row_id.encode()) <= _MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


def _key(value: str) -> str:
    """A term that stands for `value`, whatever its length and characters."""
    return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _passage(row_id: str, payload: bytes) -> Passage:
    try:
        return Passage.model_validate_json(payload)
    except ValidationError as error:
        raise StoreMismatch(f"The row {row_id!r} holds another kind of passage.", store=NAME, hint=_HINT) from error


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Errors of tantivy and of the file system as errors of this program."""
    try:
        yield
    except StoreError:
        raise
    except (ValueError, RuntimeError, OSError) as error:  # tantivy reports nearly everything as ValueError
        text = str(error)
        if "LockBusy" in text:
            raise StoreLocked(
                f"Another process is writing to the text index {path}.",
                store=NAME,
                hint="Wait until it has finished, or stop it; searching is possible meanwhile.",
            ) from error
        if any(sign in text for sign in ("schema does not match", "corrupt", "ncompatible")):
            raise StoreMismatch(f"The text index {path} cannot be used: {text}", store=NAME, hint=_HINT) from error
        raise StoreUnavailable(f"The text index {path} cannot be used: {text}", store=NAME) from error
