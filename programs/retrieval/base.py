"""The seams of retrieval: what every embedder, dense store and text store promises.

Written once and in full, so that a store can be exchanged without reading the
pipeline. `tests/programs/retrieval/conformance.py` runs against every store.

Common to both stores
---------------------
- **Ids**: a row is known by `Row.id`. `upsert` replaces a row with the same id.
- **Payload**: a store keeps the whole passage and gives it back with each match, so that a
  reader needs nothing but the stores.
- **Order and direction**: `search` returns at most `top_k` matches, best first, higher score is
  better in every store, whatever the library calls its number. Ties are ordered by id.
- **Filter**: `category` is data. None means no filter; any string, also an empty or hostile one,
  matches exactly the rows whose category equals it, character by character.
- **Kinds**: `kind` says what a row stands for: `passage` the text itself, `question` a question
  that the passage answers, `summary` a summary of it. A search looks at one kind only.
  Several rows of one passage may match; the store returns them all.
- **Visibility**: after `flush()` returns, every row written before is found, and every row
  deleted before is not, by this process and by any other.
- **Errors**: an unreachable or slow store raises `StoreUnavailable`, a file held by another
  process `StoreLocked`, a wrong schema or version `StoreMismatch`. Nothing else leaves a store,
  and an outage never looks like an empty result. A query without any searchable token is no
  error: a text store returns [].
- **Threads**: any method may be called from any thread, several at once.
- **Blocking**: all methods block; the pipeline runs them in threads with its own time-outs.
- **Closing**: `close()` may be called twice; nothing else may be called after it.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from signatures.records import Passage

Kind = Literal["passage", "question", "summary"]
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Row:
    """One searchable unit.

    Attributes:
        id: The passage's id for kind `passage`; behind it `?` and a digest of the text for its
            questions, `~` and a digest for its summary.
        kind: What `text` is.
        text: What is searched: heading and text of the passage, a question, or a summary.
        passage: What a match returns.
    """

    id: str
    kind: Kind
    text: str
    passage: Passage


@dataclass(frozen=True, slots=True)
class Match:
    """A row that a store found.

    Attributes:
        row_id: Id of the row.
        passage: The passage of the row.
        score: Higher is better. Dense: cosine in [-1, 1]. Text: BM25, from 0 up.
    """

    row_id: str
    passage: Passage
    score: float


@runtime_checkable
class Embedder(Protocol):
    """Turns text into unit vectors; the method names are those of `SentenceTransformer`."""

    @property
    def name(self) -> str:
        """Identity of model and settings; vectors of two names must never share a collection."""
        ...

    @property
    def dimension(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """Longest text in tokens that is read whole; the rest of a longer one is not seen."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of tokens the model would see for `text` as a document."""
        ...

    def encode_query(self, texts: Sequence[str]) -> Vector:
        """Shape (n, dimension), float32, each row of length 1; (0, dimension) for no text."""
        ...

    def encode_document(self, texts: Sequence[str]) -> Vector:
        """As `encode_query`, for what is searched."""
        ...


@runtime_checkable
class DenseStore(Protocol):
    """Nearest neighbours by cosine. Vectors are finite, of length 1 and of `dimension`.

    A query vector that is not (NaN, zero, wrong size) raises `StoreMismatch` before any search.
    """

    @property
    def name(self) -> str: ...

    def upsert(self, rows: Sequence[Row], vectors: Vector) -> None:
        """Write rows; `vectors` has shape (len(rows), dimension), same order."""
        ...

    def search(self, vector: Vector, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        """The `top_k` rows nearest to `vector`, shape (dimension,)."""
        ...

    def read(self, row_ids: Sequence[str]) -> tuple[list[Row], Vector]:
        """The whole rows with these ids, in this order, and their vectors; unknown ids are left out.

        Made for moving rows to another store: the vectors are as exact as the search's own, to some
        six digits. Of an id that is named twice there is one row.

        Returns:
            n rows, and vectors of shape (n, dimension), float32.

        Raises:
            StoreMismatch: A row was written by another version of this program.
        """
        ...

    def delete(self, row_ids: Iterable[str]) -> None:
        """Remove rows; unknown ids are ignored."""
        ...

    def ids(self) -> set[str]:
        """All row ids, of all kinds."""
        ...

    def count(self, kind: Kind | None = None) -> int:
        """Number of rows, of one kind or of all."""
        ...

    def flush(self) -> None: ...

    def rebuilding(self) -> AbstractContextManager["DenseStore"]:
        """A new content beside the old one, also of another embedder; leaving exchanges them.

        Until then, every process searches the old content; after an exception inside, and after the
        process has died, it is still there. The store that is given takes `upsert`, `delete`, `ids`,
        `count`, `flush` and `clear`; it need not be searchable. What is written to the store itself
        meanwhile is lost. One process at a time.
        """
        ...

    def clear(self) -> None:
        """Remove everything, also what was made with another embedder or schema."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class TextStore(Protocol):
    """BM25 over words: Chinese is segmented, English stemmed, width and script folded."""

    @property
    def name(self) -> str: ...

    def upsert(self, rows: Sequence[Row]) -> None: ...

    def search(self, query: str, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        """The `top_k` rows with the highest BM25; only rows that share a word with `query`."""
        ...

    def delete(self, row_ids: Iterable[str]) -> None: ...

    def ids(self) -> set[str]: ...

    def count(self, kind: Kind | None = None) -> int: ...

    def flush(self) -> None: ...

    def rebuilding(self) -> AbstractContextManager["TextStore"]:
        """As in `DenseStore`."""
        ...

    def clear(self) -> None:
        """Remove everything."""
        ...

    def close(self) -> None: ...
