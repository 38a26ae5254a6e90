"""What a wrong, broken or unwilling server answers becomes an error that says what to do, without secrets."""

import shutil
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import elastic_transport
import elasticsearch
import elasticsearch.helpers
import pytest
from conformance import assert_store_error
from servers import Loopback, Reply, Request, free_port, loopback_server

from programs.errors import StoreError, StoreMismatch, StoreUnavailable
from programs.retrieval.elastic import ElasticIndex, ElasticTextStore

KEY = "c2VjcmV0OmtleS1vZi10aGUtdGVzdA=="
SECRET = "p4ssw0rd-of-the-test"
INFO = {"name": "n", "version": {"number": f"{elasticsearch.__version__[0]}.0.0"}, "tagline": "You Know, for Search"}


def info(number: str) -> Reply:
    return Reply(200, {**INFO, "version": {"number": number}})


def always(reply: Reply) -> AbstractContextManager[Loopback]:
    return loopback_server(lambda request: reply)


def after_info(answer: Callable[[Request], Reply]) -> AbstractContextManager[Loopback]:
    """Greets as the right version, and then answers otherwise."""
    return loopback_server(lambda request: Reply(200, INFO) if request.path == "/" else answer(request))


def failure(call: Callable[[], Any]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        call()
    whole = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert KEY not in whole
    assert SECRET not in whole
    return caught.value


@pytest.mark.parametrize(
    ("number", "pin"),
    [
        ("8.13.4", "pip install 'elasticsearch>=8,<9'"),
        ("7.17.0", "pip install 'elasticsearch>=7,<8'"),
        ("10.0.0-beta1", "pip install 'elasticsearch>=10,<11'"),
    ],
)
def test_another_major_version_names_the_exact_pin(number: str, pin: str) -> None:
    with always(info(number)) as server:
        error = failure(lambda: ElasticIndex(server.url))
    assert isinstance(error, StoreMismatch)
    assert_store_error(error, number, pin)
    assert pin in error.message


def test_a_server_that_refuses_the_clients_media_type_is_another_version() -> None:
    reason = "Accept version must be either version 8 or 7, but found 9. Accept=application/vnd.elasticsearch+json"
    error = {"type": "media_type_header_exception", "reason": reason}
    with always(Reply(400, {"error": {"root_cause": [error], **error}, "status": 400})) as server:
        raised = failure(lambda: ElasticIndex(server.url))
    assert isinstance(raised, StoreMismatch)
    assert_store_error(raised, "pip install 'elasticsearch>=8,<9'")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_names_its_setting_and_is_not_shown(status: int) -> None:
    error = {"type": "security_exception", "reason": f"api key [{KEY}] was revoked"}
    with always(Reply(status, {"error": {"root_cause": [error], **error}, "status": status})) as server:
        raised = failure(lambda: ElasticIndex(server.url, api_key=KEY))
        assert server.requests[0].headers["authorization"] == f"ApiKey {KEY}"
    assert isinstance(raised, StoreUnavailable)
    assert_store_error(raised, "ADAPTIVE_RAG_ELASTICSEARCH_API_KEY", str(status))


def test_secrets_in_the_address_or_in_an_answer_are_not_shown() -> None:
    echo = {"type": "weird_exception", "reason": f"who is {SECRET} with what?"}
    with after_info(lambda request: Reply(400, {"error": {"root_cause": [echo], **echo}})) as server:
        store = ElasticTextStore(ElasticIndex(server.url.replace("//", f"//user:{SECRET}@")))
        error = failure(store.ids)
    assert isinstance(error, StoreMismatch)
    assert_store_error(error, "who is *** with", server.url)


@pytest.mark.parametrize("key", ["", f"{KEY}\n", f"{KEY} ", f"{KEY}密"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key: str) -> None:
    with always(Reply(200, INFO)) as server:
        error = failure(lambda: ElasticIndex(server.url, api_key=key))
        assert server.requests == []
    assert_store_error(error, "ADAPTIVE_RAG_ELASTICSEARCH_API_KEY")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, INFO, {"X-Elastic-Product": ""}),  # OpenSearch, or a proxy that takes the header away
        Reply(200, b"<html>It works!</html>", {"Content-Type": "text/html"}),
        Reply(200, b"{", {}),
        Reply(200, {"version": "new"}),
        Reply(200, []),
        Reply(404, b"<html>nothing here</html>", {"Content-Type": "text/html", "X-Elastic-Product": ""}),
    ],
    ids=["opensearch", "page", "broken", "no-version", "list", "404"],
)
def test_something_that_is_no_elasticsearch(reply: Reply) -> None:
    with always(reply) as server:
        error = failure(lambda: ElasticIndex(server.url))
    assert_store_error(error, server.url)


@pytest.mark.parametrize("address", ["localhost", "http://localhost", "ftp://localhost:9200", "http://[::1", ""])
def test_an_address_that_cannot_be_used_names_its_setting(address: str) -> None:
    assert_store_error(failure(lambda: ElasticIndex(address)), "ADAPTIVE_RAG_ELASTICSEARCH_URL")


def test_certificates_that_cannot_be_read_name_their_setting(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for path in (tmp_path / "missing.pem", broken):
        error = failure(lambda path=path: ElasticIndex("https://localhost:1", ca_certs=path))
        assert isinstance(error, StoreUnavailable)
        assert_store_error(error, "ADAPTIVE_RAG_ELASTICSEARCH_CA_CERTS")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_is_checked(tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", pem, "-out", tmp_path / "ca.pem"], check=True, capture_output=True)
    pem.write_text(pem.read_text() + (tmp_path / "ca.pem").read_text())
    with loopback_server(lambda request: Reply(200, INFO), certificate=pem) as server:
        error = failure(lambda: ElasticIndex(server.url))
        assert isinstance(error, StoreUnavailable)
        assert_store_error(error, "TLS", "ADAPTIVE_RAG_ELASTICSEARCH_CA_CERTS")
        for options in ({"ca_certs": tmp_path / "ca.pem"}, {"verify": False}):
            index = ElasticIndex(server.url, **options)
            assert index.version == INFO["version"]["number"]
            index.close()


def test_tls_to_a_server_without_it_is_an_outage() -> None:
    with always(Reply(200, INFO)) as server:
        error = failure(lambda: ElasticIndex(server.url.replace("http:", "https:"), verify=False))
    assert_store_error(error, "TLS")


def test_a_name_that_no_index_can_have() -> None:
    for prefix in ("", "Upper", "_x", "a*", "a,b", "知识"):
        assert isinstance(
            failure(lambda prefix=prefix: ElasticIndex("http://localhost:1", prefix=prefix)), StoreMismatch
        )


def test_a_refused_connection_is_an_outage_at_once() -> None:
    started = time.monotonic()
    error = failure(lambda: ElasticIndex(f"http://127.0.0.1:{free_port()}"))
    assert isinstance(error, StoreUnavailable)
    assert_store_error(error, "ADAPTIVE_RAG_ELASTICSEARCH_URL")
    assert time.monotonic() - started < 3


def test_a_server_that_does_not_answer_is_given_up_after_one_time_out() -> None:
    release = threading.Event()

    def hang(request: Request) -> Reply:
        release.wait(10)
        return Reply(0)

    with after_info(hang) as server:
        store = ElasticTextStore(ElasticIndex(server.url, timeout=0.5))
        started = time.monotonic()
        error = failure(lambda: store.search("退货", top_k=1))
        release.set()
    assert isinstance(error, StoreUnavailable)
    assert_store_error(error, "0.5 s")
    assert time.monotonic() - started < 2


def test_a_server_in_trouble_is_asked_three_times_and_is_no_empty_result() -> None:
    error = {"type": "no_shard_available_action_exception", "reason": "no shards"}
    with after_info(lambda request: Reply(503, {"error": {"root_cause": [error], **error}})) as server:
        store = ElasticTextStore(ElasticIndex(server.url))
        raised = failure(lambda: store.search("退货", top_k=1))
        assert len(server.requests) == 1 + 3
    assert isinstance(raised, StoreUnavailable)
    assert_store_error(raised, "503", "no shards")


def test_a_full_disk_is_no_question_of_the_key() -> None:
    error = {"type": "cluster_block_exception", "reason": "index [kb] blocked by: [FORBIDDEN/12/index read-only]"}
    with after_info(lambda request: Reply(403, {"error": {"root_cause": [error], **error}})) as server:
        store = ElasticTextStore(ElasticIndex(server.url))
        raised = failure(lambda: store.search("退货", top_k=1))
    assert_store_error(raised, "read-only", "disk space")
    assert "API_KEY" not in raised.hint


def subclasses(cls: type) -> set[type]:
    return {cls}.union(*(subclasses(child) for child in cls.__subclasses__()))


CLIENT = sorted(
    subclasses(elastic_transport.TransportError)
    | subclasses(elasticsearch.ApiError)
    | {elasticsearch.helpers.ScanError},
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("cls", CLIENT, ids=lambda cls: cls.__name__)
def test_each_error_of_the_client_has_a_counterpart(cls: Any) -> None:
    node = elastic_transport.NodeConfig("http", "localhost", 9200)
    meta = elastic_transport.ApiResponseMeta(500, "1.1", elastic_transport.HttpHeaders(), 0.0, node)
    with always(Reply(200, INFO)) as server:
        index = ElasticIndex(server.url)
    if issubclass(cls, elasticsearch.ApiError):
        error = cls("m", meta, {"error": "x"})
    else:
        error = cls("m", "why") if cls is elasticsearch.helpers.ScanError else cls("m")

    def fail() -> None:
        with index.translated():
            raise error

    assert_store_error(failure(fail))
