"""What the tests of the Elasticsearch stores have in common.

The node is the one beside the project (`servers.START_ELASTICSEARCH`), or, where the variable
ELASTICSEARCH_URL is set, the one there.
"""

import os
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from conformance import DIMENSION, row
from servers import Loopback, Reply, Request, forward, loopback_server, shared_elasticsearch

from programs.errors import StoreMismatch
from programs.retrieval.elastic import ElasticDenseStore, ElasticIndex, ElasticTextStore

RUN = f"t{uuid.uuid4().hex[:8]}"
"""Begins all names, so that a shared server is left as it was."""

_CLEAN = pytest.StashKey[bool]()


def server_url(config: pytest.Config) -> str:
    """Address of the node."""
    url = os.environ.get("ELASTICSEARCH_URL")
    if not url:
        return shared_elasticsearch(config).url
    if _CLEAN not in config.stash:
        config.stash[_CLEAN] = True
        config.add_cleanup(lambda: _sweep(url))
    return url


def _sweep(url: str) -> None:
    index = ElasticIndex(url)
    for name in index.client.indices.get(index=f"{RUN}*"):
        index.client.indices.delete(index=name)
    index.close()


def text(url: str, name: str, **options: tuple[str, ...]) -> ElasticTextStore:
    return ElasticTextStore(ElasticIndex(url, prefix=f"{RUN}_{name}"), **options)


def smartcn(url: str, name: str) -> ElasticTextStore:
    store = text(url, name, analyzers=("smartcn",))
    try:
        store._choose()
    except StoreMismatch:
        store.close()
        pytest.skip("this server has no smartcn")
    return store


def dense(url: str, name: str, embedder: str = "test-embedder", dimension: int = DIMENSION) -> ElasticDenseStore:
    return ElasticDenseStore(ElasticIndex(url, prefix=f"{RUN}_{name}"), dimension=dimension, embedder=embedder)


def fill(store: ElasticTextStore, **texts: str) -> None:
    """One visible row for each text."""
    store.upsert([row(name, value) for name, value in texts.items()])
    store.flush()


def indexes(store: ElasticTextStore | ElasticDenseStore) -> list[str]:
    """Names of all indexes of a store on the server."""
    return sorted(store._alias.all())


def in_front_of(url: str, answer: Callable[[Request], Reply | None]) -> AbstractContextManager[Loopback]:
    """A server that hands requests on to the real one, unless `answer` answers in its place."""
    return loopback_server(lambda request: answer(request) or forward(url, request))
