"""The set-up of a team: vectors on a Milvus server, words on Elasticsearch, and each of them dies once.

Real servers (Milvus 2.3.5, Elasticsearch 9), the real indexer, the real default embedder, and the whole
program with a scripted language model.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from index_bench import write
from scripted_lm import Call, Reply, helpful, scripted_lm
from servers import HAS_MILVUS, NO_MILVUS, START_ELASTICSEARCH, ElasticsearchNode, MilvusServer

from programs.build import build_indexer, build_program
from programs.retrieval.embedding import load_embedder
from programs.retrieval.pipeline import Searcher, SearchResult
from programs.retrieval.plan import RetrievalPlan
from programs.settings import Settings, load_settings
from programs.stores import Stores

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not HAS_MILVUS, reason=NO_MILVUS),
    pytest.mark.skipif(not START_ELASTICSEARCH.is_file(), reason="no shared/elasticsearch beside this repository"),
]

FILES: dict[str, str | bytes] = {
    "leave.md": "# 年假办法\n\n## 结转\n\n年假最多结转 5 天，次年三月底前休完。\n",
    "phone.md": "# 通讯补贴\n\n## 标准\n\n话费补贴每月 50 元，随工资发放。\n",
    "box.md": "# LB-200 gateway\n\n## Reset\n\nHold the button for ten seconds to reset the gateway.\n",
}
KNOWN = "年假最多结转几天？"
UNKNOWN = "火星基地的电话号码是多少？"
"""The scripted judge finds no passage relevant to it."""
SECONDS_BACK = 120.0
"""Within which a server that was started again must be of use."""


def judge(call: Call) -> Reply:
    relevant = "火星" not in call.text
    verdicts = " ".join(f"{n}{'是' if relevant else '否'}" for n in range(1, call.passage_count + 1))
    return Reply(json.dumps({"verdicts": verdicts}, ensure_ascii=False), probability=0.9 if relevant else 0.1)


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    server = MilvusServer(tmp_path_factory.mktemp("milvus"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def elasticsearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticsearchNode]:
    node = ElasticsearchNode(tmp_path_factory.mktemp("elasticsearch"))
    node.start()
    yield node
    node.stop()


@pytest.fixture
def lm() -> Iterator[str]:
    with scripted_lm(helpful(relevance=judge, generate={"answer": "最多结转 5 天[1]。"})) as endpoint:
        yield endpoint.line


@pytest.fixture
def team(milvus: MilvusServer, elasticsearch: ElasticsearchNode, lm: str, tmp_path: Path) -> Settings:
    """Settings of a team, with an index of three files."""
    settings = load_settings(
        lm=lm, milvus_uri=milvus.uri, elasticsearch_url=elasticsearch.url, store_prefix=f"team_{time.time_ns():x}"
    )
    with build_indexer("documents", settings) as indexer:
        report = indexer.index_paths([write(tmp_path / "docs", FILES)])
    assert len(report.added) == len(FILES)
    assert not report.failed
    return settings


@pytest.fixture
def make_program(team: Settings) -> Iterator[Callable[[], Any]]:
    programs: list[Any] = []

    def make() -> Any:
        programs.append(build_program(team))
        return programs[-1]

    yield make
    for program in programs:
        program.resources.close()


def ask(program: Any, question: str) -> Any:
    return program(question=question, strategy="fast_retrieval").record


def search(program: Any, question: str) -> SearchResult:
    plan = RetrievalPlan(rerank=False)
    result: SearchResult = asyncio.run(program.resources.searcher.search([question], plan))
    return result


def routes(result: SearchResult) -> set[str]:
    """Routes that found the first hit."""
    return set(result.hits[0].routes) if result.hits else set()


def assert_whole(program: Any) -> None:
    """Both stores answer, at the latest after `SECONDS_BACK`, and a "no" is a no again."""
    deadline = time.monotonic() + SECONDS_BACK
    while (result := search(program, KNOWN)).outages and time.monotonic() < deadline:
        time.sleep(0.5)
    assert (result.outages, result.degraded) == ((), ())
    assert routes(result) == {"dense", "text"}
    known = ask(program, KNOWN)
    assert (known.status, known.degraded) == ("answered", ())
    assert [citation.location for citation in known.citations] == ["docs/leave.md"]
    assert ask(program, UNKNOWN).status == "no_evidence"


def assert_half(program: Any, dead: str, alive: str) -> None:
    """One store answers and the other is named; what is not found then is "unavailable", not "not there"."""
    started = time.monotonic()
    result = search(program, KNOWN)
    assert set(result.outages) == {dead}
    assert [line.partition(":")[0] for line in result.degraded] == [dead]
    assert routes(result) == {alive}
    assert result.hits[0].passage.document_id == "docs/leave.md"
    known = ask(program, KNOWN)
    assert known.status == "answered"
    assert any(line.startswith(f"{dead}:") for line in known.degraded)
    unknown = ask(program, UNKNOWN)
    assert unknown.status == "unavailable"
    assert any(line.startswith(f"{dead}:") for line in unknown.degraded)
    assert time.monotonic() - started < 60


def test_both_stores_hold_the_same_rows_on_the_servers(team: Settings) -> None:
    stores = Stores(team, load_embedder(team.embedder))
    dense, text = stores.dense("documents"), stores.text("documents")
    assert (dense.name, text.name) == ("milvus", "elasticsearch")
    assert dense.ids() == text.ids()
    assert dense.count() == len(FILES)
    assert not (team.index_dir / "vectors.db").exists()
    stores.close()


def test_milvus_dies_and_comes_back(make_program: Callable[[], Any], milvus: MilvusServer) -> None:
    before = make_program()
    assert_whole(before)
    milvus.kill()
    try:
        assert_half(before, "dense", "text")
        meanwhile = make_program()  # a program that never saw the server
        assert_half(meanwhile, "dense", "text")
    finally:
        milvus.start()
    for program in (before, meanwhile):
        assert_whole(program)


def test_elasticsearch_dies_and_comes_back(make_program: Callable[[], Any], elasticsearch: ElasticsearchNode) -> None:
    before = make_program()
    assert_whole(before)
    elasticsearch.kill()
    try:
        assert_half(before, "text", "dense")
        meanwhile = make_program()
        assert_half(meanwhile, "text", "dense")
    finally:
        elasticsearch.start()
    for program in (before, meanwhile):
        assert_whole(program)


def test_an_old_milvus_without_elasticsearch_leaves_the_words_to_the_embedded_index(
    milvus: MilvusServer, lm: str, tmp_path: Path
) -> None:
    settings = load_settings(lm=lm, milvus_uri=milvus.uri, store_prefix=f"old_{time.time_ns():x}")
    with build_indexer("documents", settings) as indexer:
        indexer.index_paths([write(tmp_path / "docs", FILES)])
    embedder = load_embedder(settings.embedder)
    stores = Stores(settings, embedder)
    assert (stores.dense("documents").name, stores.text("documents").name) == ("milvus", "tantivy")
    searcher = Searcher({"documents": stores.index("documents")}, embedder)
    result = asyncio.run(searcher.search(["reset the LB-200"], RetrievalPlan(rerank=False)))
    assert (result.outages, routes(result)) == ((), {"dense", "text"})
    assert result.hits[0].passage.document_id == "docs/box.md"
    stores.close()
