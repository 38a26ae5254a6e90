"""Documents are read, cut and embedded by the processes of a Ray cluster; this one writes.

    with ray_workers("", DOCUMENTS, make_embedder) as workers:
        Indexer(..., workers=workers).index_paths(paths)

What must be read is decided here, from the catalogue, and so is what is written and when: passages, ids
and what happens after an interruption are those of a single process. Workers see files under the same
paths, so on several machines these lie on a shared disk. Between processes go JSON and the bytes of
vectors, in memory; the logs and sockets of a local Ray are removed in the end.
"""

import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from programs.errors import DocumentError, StoreUnavailable, missing_package
from programs.retrieval.base import Embedder, Row
from programs.retrieval.enrichment import Enrichment
from programs.retrieval.preparing import Prepared, Splitter, Task, embedded, reason, rows_of, split
from signatures.records import Passage

NAME = "ray"
DOCUMENTS_TOGETHER = 8
"""That one worker reads before it hands them over: few, so that an interruption costs seconds of work."""

_STORE_BYTES = 512 * 2**20  # of a local Ray, for what is between the processes
_MOST_PARTS = 10_000  # more would only cost the scheduler time

_CAUSE = re.compile(r"^[\w.]*(?:Error|Exception): .+$", re.MULTILINE)  # where it stands in a trace of Ray

MakeEmbedder = Callable[[], Embedder]


class RayWorkers:
    """A `Workers`; get one with `ray_workers`.

    Args:
        library: Ray.
        splitter: How files become passages.
        make_embedder: Makes the embedder in each worker.
    """

    def __init__(self, library: Any, splitter: Splitter, make_embedder: MakeEmbedder) -> None:
        self._ray = library
        self._splitter = splitter
        self._make_embedder = make_embedder

    def prepare(self, tasks: Sequence[Task], enrichments: Mapping[str, Enrichment]) -> Iterator[Prepared]:
        """One result for each task, in any order.

        Raises:
            StoreUnavailable: A worker failed, and again when Ray tried once more.
        """
        by_id = {task.document_id: task for task in tasks}
        parts = min(-(-len(tasks) // DOCUMENTS_TOGETHER), _MOST_PARTS)
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        context = self._ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        try:
            done = self._ray.data.from_items(
                [{"task": json.dumps(asdict(task))} for task in tasks], override_num_blocks=parts
            ).map_batches(
                _Worker,
                fn_constructor_args=(self._splitter, self._make_embedder, dict(enrichments)),
                batch_size=DOCUMENTS_TOGETHER,
                concurrency=max(1, min(processors, parts)),
                num_cpus=1,
            )
            for record in done.iter_rows():
                yield _unpack(record, by_id)
        except self._ray.exceptions.RayError as error:
            found = _CAUSE.search(str(error))
            raise StoreUnavailable(
                f"A worker of Ray failed: {(found[0] if found else type(error).__name__)[:500]}",
                store=NAME,
                hint="What is indexed stays; run it again. On several machines files must lie on a shared disk.",
            ) from error


class _Worker:
    """Lives in a process of Ray, and keeps the embedder there."""

    def __init__(self, splitter: Splitter, make_embedder: MakeEmbedder, enrichments: Mapping[str, Enrichment]) -> None:
        self._splitter = splitter
        self._embedder = make_embedder()
        self._enrichments = enrichments

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        done = [self._prepare(Task(**json.loads(text))) for text in batch["task"]]
        return {"document": [text for text, _ in done], "vectors": [vectors for _, vectors in done]}

    def _prepare(self, task: Task) -> tuple[str, bytes]:
        try:
            passages = split(self._splitter, self._embedder, task.document_id, Path(task.path), task.category)
        except DocumentError as error:
            return json.dumps({"id": task.document_id, "failed": reason(error)}), b""
        rows = rows_of(passages, self._enrichments)
        packed: dict[str, Any] = {
            "id": task.document_id,
            "rows": [(row.id, row.kind, row.text, row.passage.model_dump()) for row in rows],
        }
        vectors = b""
        if set(task.rows) != {row.id for row in rows}:
            limit = self._embedder.max_tokens
            packed["truncated"] = [row.id for row in rows if self._embedder.count_tokens(row.text) > limit]
            started = time.monotonic()
            vectors = np.ascontiguousarray(embedded(rows, self._embedder), dtype=np.float32).tobytes()
            packed["seconds"] = time.monotonic() - started
        return json.dumps(packed), vectors


def _unpack(record: Mapping[str, Any], tasks: Mapping[str, Task]) -> Prepared:
    found = json.loads(record["document"])
    rows = [Row(row_id, kind, text, Passage(**passage)) for row_id, kind, text, passage in found.get("rows", ())]
    numbers = np.frombuffer(record["vectors"], dtype=np.float32)
    return Prepared(
        tasks[found["id"]],
        rows,
        numbers.reshape(len(rows), -1) if len(numbers) else None,
        found.get("truncated", ()),
        found.get("seconds", 0.0),
        found.get("failed", ""),
    )


@contextmanager
def ray_workers(
    address: str, splitter: Splitter, make_embedder: MakeEmbedder, *, processes: int | None = None
) -> Iterator[RayWorkers]:
    """Workers of a Ray cluster.

    Args:
        address: `host:6379` or `ray://host:10001`; "" starts a Ray on this machine, which ends with the block.
        splitter: How files become passages.
        make_embedder: Makes the embedder in each worker.
        processes: Of a Ray on this machine; one for each processor when None.

    Raises:
        MissingPackageError: Ray is not installed.
        StoreUnavailable: There is no cluster at the address, or none can be started.
    """
    # Before the import, which reads it: what is indexed here is nobody else's business.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise missing_package("ray", "ray") from error
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    # A short path: that of a socket may have some 100 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        if not address:
            options |= {
                "num_cpus": processes or os.cpu_count() or 1,
                "include_dashboard": False,
                "object_store_memory": _STORE_BYTES,
                "_temp_dir": folder,
            }
        try:
            ray.init(address=address or "local", **options)
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            raise StoreUnavailable(
                f"Ray at {address or 'this machine'} cannot be used: {str(error).strip()[:500]}",
                store=NAME,
                hint="Check that the cluster runs (ray status), or leave the address out.",
            ) from error
        try:
            yield RayWorkers(ray, splitter, make_embedder)
        finally:
            ray.shutdown()
