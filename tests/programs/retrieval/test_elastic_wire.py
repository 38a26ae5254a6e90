"""What goes over the wire to Elasticsearch, and what a busy server does."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conformance import HOSTILE, assert_store_error, row, vector_of
from elastic_bench import dense, fill, in_front_of, server_url, text
from servers import Reply, Request, forward

from programs.errors import StoreMismatch, StoreUnavailable

pytestmark = pytest.mark.server


@pytest.fixture
def url(pytestconfig: pytest.Config) -> str:
    return server_url(pytestconfig)


def test_values_are_data_and_nothing_needs_a_licence(url: str) -> None:
    with in_front_of(url, lambda request: None) as server:
        words, vectors = text(server.url, "wire"), dense(server.url, "wire")
        fill(words, a="退货")
        vectors.upsert([row("a", "退货")], np.stack([vector_of("退货")]))
        vectors.flush()
        for category in HOSTILE[::2]:
            assert words.search('a) OR (* AND "退货~^`', top_k=3, category=category) == []
            assert vectors.search(vector_of("退货"), top_k=3, category=category) == []
        words.search("退货的运费由谁来承担呢？" * 400, top_k=3)
        words.close()
        vectors.close()
    bodies = [request.body.decode() for request in server.requests if "_search" in request.path]
    assert len(bodies) == 2 * len(HOSTILE[::2]) + 1
    for body in bodies:
        assert not any(word in body for word in ("rrf", "query_string", "script", "wildcard", "公开"))
        query = json.loads(body)
        filters = query["knn"]["filter"] if "knn" in query else query["query"]["bool"]["filter"]
        assert all(list(condition) == ["term"] for condition in filters)
        if "query" in query:
            assert len(query["query"]["bool"]["must"]["bool"]["should"][0]["match"]["words"]["query"].split()) <= 64


def pushed_back(reply: Reply, keep: int) -> Reply:
    """The same answer to a bulk request, but with rows refused behind the first `keep`."""
    answer = json.loads(reply.body)
    error = {"type": "es_rejected_execution_exception", "reason": "queue full"}
    refused = [{"index": {**item["index"], "status": 429, "error": error}} for item in answer["items"][keep:]]
    return Reply(200, {**answer, "errors": True, "items": answer["items"][:keep] + refused})


def test_rows_that_a_busy_server_pushes_back_are_sent_again(url: str) -> None:
    sent: list[int] = []

    def answer(request: Request) -> Reply | None:
        if "/_bulk" not in request.path:
            return None
        sent.append(len(request.body.splitlines()) // 2)
        reply = forward(url, request)
        return pushed_back(reply, keep=2) if len(sent) == 1 else reply

    with in_front_of(url, answer) as server:
        store = text(server.url, "busy")
        fill(store, **{f"d{number}": "退货" for number in range(5)})
        assert sent == [5, 3]
        assert store.ids() == {f"d{number}" for number in range(5)}
        store.close()


def test_a_server_that_stays_busy_is_an_outage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("programs.retrieval.elastic_connection._ROW_RETRIES", 1)
    with in_front_of(url, lambda r: pushed_back(forward(url, r), keep=0) if "/_bulk" in r.path else None) as server:
        store = text(server.url, "jammed")
        with pytest.raises(StoreUnavailable) as caught:
            fill(store, a="退货")
        store.close()
    assert_store_error(caught.value, "429", "queue full")


def test_a_row_that_is_refused_is_named(url: str) -> None:
    def answer(request: Request) -> Reply | None:
        broken = request.body.replace(b'"kind":"summary"', b'"no_such_field":"summary"')
        return forward(url, replace(request, body=broken)) if "/_bulk" in request.path else None

    with in_front_of(url, answer) as server:
        store = text(server.url, "refused")
        with pytest.raises(StoreMismatch) as caught:
            store.upsert([row("a#1", "退货"), row("b#1~", "退货", kind="summary")])
        store.close()
    assert_store_error(caught.value, "b#1~", "no_such_field")
