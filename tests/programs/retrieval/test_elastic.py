"""Elasticsearch stores on a real node keep the promises of `base.py`."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conformance import DIMENSION, DenseConformance, TextConformance
from servers import ElasticsearchNode, elasticsearch_node

from programs.retrieval.elastic import ElasticDenseStore, ElasticIndex, ElasticTextStore

pytestmark = pytest.mark.server


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticsearchNode | None]:
    if os.environ.get("ELASTICSEARCH_URL"):
        yield None
        return
    with elasticsearch_node(tmp_path_factory.mktemp("elasticsearch")) as running:
        yield running


@pytest.fixture(scope="session")
def url(node: ElasticsearchNode | None) -> str:
    return node.url if node else os.environ["ELASTICSEARCH_URL"]


@pytest.fixture
def opening() -> Iterator[Callable[[Callable[[], Any]], Callable[[], Any]]]:
    opened = []
    def wrap(make):
        make().clear()
        def open_it():
            opened.append(make())
            return opened[-1]
        return open_it
    yield wrap
    for s in opened: s.close()

class TestElasticTokensConformance(TextConformance):
    @pytest.fixture
    def open_store(self, url, opening):
        return opening(lambda: ElasticTextStore(ElasticIndex(url, prefix="tokens")))

class TestElasticSmartcnConformance(TextConformance):
    @pytest.fixture
    def open_store(self, url, opening):
        return opening(lambda: ElasticTextStore(ElasticIndex(url, prefix="smartcn"), analyzers=("smartcn",)))

class TestElasticDenseConformance(DenseConformance):
    @pytest.fixture
    def open_store(self, url, opening):
        return opening(lambda: ElasticDenseStore(ElasticIndex(url, prefix="dense"), dimension=DIMENSION, embedder="t"))
