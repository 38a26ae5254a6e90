"""A new content for the text index, written behind the old one and shown with one commit."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from programs.errors import StoreUnavailable
from programs.retrieval.base import Kind, Match, Row
from programs.retrieval.text_index import NAME, TantivyTextStore, _translated


class TantivyRebuild(TantivyTextStore):
    """What `TantivyTextStore.rebuilding` gives: takes rows, and cannot be searched yet.

    Rows go to the disk but into no commit, so a process that dies leaves the old content.

    Args:
        store: The store that is rebuilt; nothing else may write to it meanwhile.
    """

    def __init__(self, store: TantivyTextStore) -> None:
        self.__dict__.update(store.__dict__)
        self._store = store
        self._stale = None  # every text is written anew
        self._before = store.ids()
        self._kinds: dict[str, Kind] = {}

    def upsert(self, rows: Sequence[Row]) -> None:
        super().upsert(rows)
        self._kinds.update((row.id, row.kind) for row in rows)

    def delete(self, row_ids: Iterable[str]) -> None:
        known = [row_id for row_id in row_ids if row_id in self._kinds]
        super().delete(known)
        for row_id in known:
            self._kinds.pop(row_id, None)

    def search(self, query: str, *, top_k: int, kind: Kind = "passage", category: str | None = None) -> list[Match]:
        raise StoreUnavailable("A new content cannot be searched before it takes its place.", store=NAME)

    def ids(self) -> set[str]:
        return set(self._kinds)

    def count(self, kind: Kind | None = None) -> int:
        return sum(kind in (None, found) for found in self._kinds.values())

    def clear(self) -> None:
        self.delete(list(self._kinds))

    def flush(self) -> None:
        """Nothing: there is one commit, at the end."""

    def close(self) -> None:
        """Nothing: the store that is rebuilt is closed."""

    def finish(self) -> None:
        """Show the new content, and nothing of the old."""
        # Not by emptying the index first: merging in between would then remove files that readers still use.
        super().delete(self._before - self._kinds.keys())
        super().flush()
        self._store._renew()

    def give_up(self) -> None:
        """Forget what was written."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                with _translated(self._path):
                    try:
                        writer.rollback()
                    finally:
                        writer.wait_merging_threads()


@contextmanager
def rebuilding(store: TantivyTextStore) -> Iterator[TantivyRebuild]:
    """See `TextStore.rebuilding`."""
    store.flush()
    fresh = TantivyRebuild(store)
    try:
        yield fresh
        fresh.finish()
    except BaseException:  # also an interrupt gives the lock back
        fresh.give_up()
        raise
