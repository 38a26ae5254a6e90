"""Whatever comes in from outside, what comes out is a typed record or a typed error, and never anything else.

Each test is one border of the program and says what a user would notice if it broke. Known ways to break it
stand beside the drawn ones as examples, so that they are tried in every run.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from scripted_lm import Call, Reply, helpful

from programs.adapter import FieldAdapter
from programs.errors import CompiledStateError, DocumentError, LanguageModelError, PlanError, SettingsError
from programs.retrieval.chunking import split_file
from programs.retrieval.pipeline import IndexStores, Searcher
from programs.retrieval.plan import RetrievalPlan
from programs.retrieval.reading import DOCUMENT_SUFFIXES
from programs.settings import ROLES, load_settings
from programs.state import apply_state, read_state
from programs.weighing import JudgeState, LinearModel
from signatures.judging import JudgeGrounding, JudgeRelevance
from signatures.records import Answer
from signatures.rewriting import DecomposeQuestion
from signatures.routing import RouteQuestion

fuzz = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True
)
QUESTION = "退货运费谁付"
SURROGATES = st.sampled_from("\ud800\udbff\udc00\udfff\x00\ufeff\u202e\u200b")
TEXT = st.text(
    st.one_of(st.characters(), SURROGATES, st.sampled_from("退货运费七天【】<|>{}[]\"'\\%：；\n")), max_size=60
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


def whole(record: Answer) -> None:
    """A record that can be stored and sent, and that calls nothing checked that was not."""
    assert Answer.model_validate_json(record.model_dump_json().encode()) == record
    assert record.answer
    if record.trace and record.status == "answered":
        best = record.trace[record.best_hop - 1]
        for verdict in (best.relevance, best.grounding, best.utility):
            assert verdict is not None and verdict.passed and verdict.score is not None


# -- what a user types -----------------------------------------------------------------------


@pytest.fixture
def bench(make_rag: Callable[..., Any]) -> Any:
    return make_rag()


@settings(fuzz, max_examples=20)
@given(question=TEXT, history=TEXT)
@example(question="a\u0301" * 400, history="")
@example(question="退货", history="\ud83d")
def test_any_question_and_history_give_a_record(bench: Any, question: str, history: str) -> None:
    whole(bench.ask(question, history=history, plan={"max_hops": 1}))


@fuzz
@given(category=TEXT)
@example(category="机密'")
@example(category='公开" or category == "机密')
@example(category="\ud800")
@example(category="\x00")
@example(category="a" * 70_000)
def test_any_category_gives_a_record_and_nothing_of_another_category(
    stores_k: tuple[Any, Any], embedder: Any, category: str
) -> None:
    """Through the real stores: their filters are built from it."""
    assume(category not in ("公开", "机密"))
    dense, text = stores_k
    searcher = Searcher({"documents": IndexStores(lambda: dense, lambda: text)}, embedder)
    found = asyncio.run(searcher.search(["供应商底价"], RetrievalPlan(), category=category))
    assert found.hits == ()
    assert found.outages == (), found.degraded


VALUES = {
    "index": st.sampled_from(["documents", "code", "x", None]),
    "routes": st.lists(st.sampled_from(["dense", "text", "questions", "summaries", "rewritten", "", "x"]), max_size=4),
    "top_k": st.integers() | st.floats() | st.integers(1, 50),
    "rough_top_k": st.integers() | st.integers(1, 200),
    "score_threshold": st.floats() | st.floats(0, 1),
    "weights": st.dictionaries(st.sampled_from(["dense", "text", "x"]), st.floats() | st.floats(0, 9), max_size=3),
    "route_timeout": st.floats() | st.floats(0.5, 10),
    "decompose": st.booleans() | TEXT,
    "max_hops": st.integers() | st.integers(1, 2),
    "rerank": st.booleans(),
}
PATCH = st.one_of(
    st.fixed_dictionaries({}, optional=VALUES),
    st.dictionaries(st.sampled_from([*VALUES, "x"]) | TEXT, JSON, max_size=4),
)


@fuzz
@given(patch=PATCH)
@example(patch={"weights": {"dense": 0.0, "text": 0.0}})
@example(patch={"weights": {"dense": 1e308, "text": 1e308}})
@example(patch={"routes": []})
@example(patch={"routes": ["dense", "dense", "dense"]})
@example(patch={"route_timeout": 1e-300})
@example(patch={"top_k": 10**400})
def test_any_plan_is_obeyed_or_is_a_plan_error_that_names_it(bench: Any, patch: dict[str, Any]) -> None:
    hops = {"max_hops": 1} if "max_hops" not in patch else {}
    try:
        record = bench.ask(QUESTION, strategy="fast_retrieval", plan={**hops, **patch})
    except PlanError as error:
        assert error.message
    else:
        whole(record)


# -- what a language model says --------------------------------------------------------------

FIELDS = ("answer", "verdict", "verdicts", "reason", "query", "parts", "intent", "confidence", "strategy")
REPLIES = st.one_of(
    TEXT,
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=9).map(json.dumps),
    st.fixed_dictionaries({name: JSON for name in FIELDS}).map(json.dumps),
)


@fuzz
@given(text=REPLIES)
@example(text='{"verdicts": "' + "1是" * 3000 + '"}')
@example(text='{"confidence": 1e999, "intent": "FACT_LOOKUP"}')
@example(text="[" * 5000)
def test_any_reply_is_fields_that_hold_or_a_parse_error(text: str) -> None:
    from dspy.utils.exceptions import AdapterParseError

    for signature in (RouteQuestion, JudgeGrounding, JudgeRelevance, DecomposeQuestion):
        try:
            fields = FieldAdapter().parse(signature, text)
        except AdapterParseError:
            continue
        assert set(fields) == set(signature.output_fields)
        json.dumps(fields, ensure_ascii=False).encode()


@settings(fuzz, max_examples=25)
@given(text=REPLIES)
@example(text='{"answer": "[1][1][1][99][0]七天", "verdict": "是", "reason": "", "verdicts": "1是"}')
@example(text='{"answer": "\\ud83d", "verdict": "是", "reason": "\\ud83d", "verdicts": "1是 2是 3是"}')
def test_a_model_that_says_the_same_to_everything_ends_in_a_record(make_rag: Any, text: str) -> None:
    bench = _kept(make_rag, "reply")
    bench.says[0] = Reply(text)
    whole(bench.ask(QUESTION, plan={"max_hops": 1}))


TOKEN = st.fixed_dictionaries(
    {},
    optional={
        "token": st.sampled_from(['{"verdict": "', "是", "否", '", "', "1是", '{"verdicts": "1']) | JSON,
        "logprob": st.floats() | JSON,
        "top_logprobs": st.lists(
            st.fixed_dictionaries({}, optional={"token": st.sampled_from(["是", "否"]) | JSON, "logprob": JSON}) | JSON,
            max_size=3,
        )
        | JSON,
    },
)
LABELS = '{"verdict": "是", "reason": "x"}'


def tokens(*pieces: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"token": '{"verdict": "', "logprob": -0.1}, *pieces, {"token": '"', "logprob": -0.1}]}


@fuzz
@given(logprobs=st.fixed_dictionaries({"content": st.lists(TOKEN | JSON, max_size=5)}) | TOKEN.map(tokens) | JSON)
@example(logprobs=tokens({"token": "是", "logprob": 1e9}))
@example(logprobs=tokens({"token": "是", "logprob": None}))
@example(logprobs=tokens({"token": "是", "logprob": "x"}))
@example(logprobs=tokens({"token": "是", "logprob": float("nan")}))
@example(logprobs=tokens({"token": "是"}))
@example(logprobs=tokens({"token": None, "logprob": 0.0}))
@example(logprobs=tokens({"token": "是", "logprob": 0.0, "top_logprobs": {"是": 0.0}}))
@example(logprobs=tokens({"token": "是", "logprob": 0.0, "top_logprobs": ["是"]}))
@example(logprobs=tokens({"token": "是", "logprob": -0.1, "top_logprobs": [{"logprob": -1.0}]}))
@example(logprobs={"content": ["是"]})
@example(logprobs=["是"])
def test_probabilities_that_are_none_leave_the_label(make_rag: Any, logprobs: Any) -> None:
    """Endpoints differ in what they call log-probabilities; a verdict is a probability whatever they send."""
    bench = _kept(make_rag, "logprobs")
    message = {"role": "assistant", "content": LABELS}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
    bench.says[0] = Reply(raw=json.dumps({"choices": [choice]}).encode())
    verdict = bench.rag.judges.utility(question=QUESTION, answer="买家付。").verdict
    assert verdict.score is not None
    assert 0.0 <= verdict.score <= 1.0
    assert verdict.source == "lm"


@fuzz
@given(
    body=st.binary(max_size=60)
    | st.one_of(JSON, st.dictionaries(st.sampled_from(["choices", "usage"]), JSON)).map(json.dumps).map(str.encode)
)
@example(body=b'{"choices": [{"message": {"content": 3}}]}')
@example(body=b'{"choices": {"0": 1}}')
@example(body=b'{"choices": [{"message": {"content": "{}"}}], "usage": {"prompt_tokens": "many"}}')
@example(body=b'{"choices": [{"message": {"content": "{}"}}], "usage": {"prompt_tokens": 1e400}}')
@example(body=b'{"choices": [{"message": {"content": "{}"}}], "usage": {"prompt_tokens_details": [1]}}')
@example(body=b'{"choices": [{"message": {"content": "{}"}}], "usage": "none"}')
@example(body=b'{"choices": [{"message": {"content": "{}"}, "finish_reason": 7}], "model": 3, "id": []}')
@example(body=b"[" * 20000)
@example(body=b"NaN")
def test_any_body_of_an_endpoint_is_a_typed_failure_or_a_reply(make_rag: Any, body: bytes) -> None:
    bench = _kept(make_rag, "body")
    bench.says[0] = Reply(raw=body)
    try:
        bench.rag.rewriter(question=QUESTION)
    except LanguageModelError as error:
        assert error.kind
    else:
        raise AssertionError("no drawn body holds a query")


# -- files -----------------------------------------------------------------------------------


def counts(text: str) -> int:
    return len(text)


MARKDOWN = st.lists(
    st.sampled_from(
        ["---\n", "title: x\n", "category: [\n", "# 标题\n", "```\n", "| a | b |\n", "\x00", "&#x0;", "<!--", "\r"]
    )
    | TEXT,
    max_size=8,
).map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))
HEADERS = st.sampled_from([b"", b"%PDF-1.4\n", b"PK\x03\x04", b"\xff\xfe", b"\xef\xbb\xbf", b"<html>", b"---\n"])


@settings(fuzz, max_examples=30)
@given(
    data=MARKDOWN | st.tuples(HEADERS, st.binary(max_size=80)).map(b"".join),
    suffix=st.sampled_from(sorted(DOCUMENT_SUFFIXES)),
)
@example(data=b"---\n" + b"a: " + b"[" * 2000 + b"\n---\nx", suffix=".md")
@example(data=b"---\na: &a [*a]\n---\nx", suffix=".md")
@example(data=b"---\n? [a]\n: b\n---\nx", suffix=".md")
@example(data=b"<div>" * 1200 + b"x", suffix=".html")
@example(data=b"<table>" * 100 + b"x", suffix=".html")
@example(data=b">" * 3000 + b"x", suffix=".md")
@example(data=b"- " * 3000 + b"x", suffix=".md")
def test_any_file_is_passages_or_a_document_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    """One bad file must not end the indexing of a thousand."""
    path = tmp_path_factory.getbasetemp() / f"fuzzed{suffix}"
    path.write_bytes(data)
    try:
        passages = split_file(path, "docs/fuzzed", category=None, count_tokens=counts, max_tokens=200)
    except DocumentError as error:
        assert error.message
        return
    for passage in passages:
        assert passage.text.strip()
        passage.model_dump_json().encode()


# -- the compiled state ----------------------------------------------------------------------


def linear(*features: str) -> dict[str, Any]:
    flat = [1.0 for _ in features]
    return {"features": features, "center": flat, "scale": flat, "weights": flat, "bias": 0.0}


def state(**judge: Any) -> dict[str, Any]:
    return {
        "lm": {"judge": "x"},
        "embedder": "e",
        "judges": {"utility": {"weighed": linear("lm", "cosine"), "alone": linear("cosine"), **judge}},
    }


LIMITS = {"threshold": 0.5, "low": 0.2, "high": 0.8}
STATE = st.one_of(
    st.binary(max_size=60),
    JSON.map(json.dumps).map(str.encode),
    st.fixed_dictionaries(
        {"lm": JSON, "embedder": JSON},
        optional={name: JSON for name in ("format", "signatures", "predictors", "judges", "card")},
    )
    .map(json.dumps)
    .map(str.encode),
)


@fuzz
@given(data=STATE)
@example(data=json.dumps(state(**LIMITS, alone=linear("lm"))).encode())
@example(data=json.dumps(state(**LIMITS, weighed=linear("lm", "no such feature"))).encode())
@example(data=json.dumps(state(**LIMITS, weighed={**linear("lm"), "bias": "NaN"})).encode())
@example(data=json.dumps(state(threshold=2, low=0, high=1)).encode())
@example(data=b"[" * 100_000)
def test_any_state_file_is_a_state_that_runs_or_an_error_that_names_the_file(
    make_rag: Any, tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.state.json"
    path.write_bytes(data)
    try:
        found = read_state(path)
    except CompiledStateError as error:
        assert "fuzzed.state.json" in error.message
        return
    for judge in found.judges:
        bench = make_rag(judges=found.judges)
        assert getattr(bench.rag.judges, judge).threshold is not None
        whole(bench.ask(QUESTION))


STORED = st.fixed_dictionaries(
    {},
    optional={
        "signature": JSON | st.fixed_dictionaries({"instructions": JSON, "fields": JSON}),
        "demos": JSON | st.lists(st.dictionaries(st.sampled_from(["question", "answer", "verdict"]), JSON), max_size=3),
        "lm": JSON,
        "traces": JSON,
        "train": JSON,
    },
)
GOOD_PROMPT = {"traces": [], "train": [], "lm": None}


@fuzz
@given(stored=STORED)
@example(stored={**GOOD_PROMPT, "demos": [3]})
@example(stored={**GOOD_PROMPT, "demos": "x"})
@example(stored={**GOOD_PROMPT, "demos": [], "lm": {"model": "openai/x"}})
@example(stored={**GOOD_PROMPT, "demos": [{}], "signature": {"instructions": 3, "fields": []}})
@example(stored={**GOOD_PROMPT, "demos": [], "signature": {"instructions": "x", "fields": [{"prefix": 1}]}})
def test_any_stored_prompt_is_a_prompt_that_runs_or_an_error(make_rag: Any, stored: dict[str, Any]) -> None:
    from programs.state import CompiledState, signature_digest

    bench = make_rag()
    name = "self_rag.judges.utility.judge"
    predict = dict(bench.rag.named_predictors())[name]
    made = CompiledState(
        lm={"judge": "x"},
        embedder="e",
        signatures={name: signature_digest(predict.signature)},
        predictors={name: stored},
    )
    try:
        apply_state(made, bench.rag)
    except CompiledStateError as error:
        assert name in error.message
        return
    whole(bench.ask(QUESTION, plan={"max_hops": 1}))


# -- settings --------------------------------------------------------------------------------

LINES = st.one_of(
    TEXT,
    st.tuples(
        st.sampled_from(["m@http://127.0.0.1", "m@https://[", "m@http://[::1", "local", "local:x", "@", "m@http://"]),
        st.sampled_from(
            ["", ":1", ":99999999", ":x", "/v1", "]", "?", "?timeout=", "?context=", "?key=", "?thinking="]
        ),
        st.sampled_from(["", "x", "nan", "inf", "-1", "1e400", "off", "１２", "%zz", "\u2028", " b"]),
    ).map("".join),
)


@settings(fuzz, max_examples=80)
@given(line=LINES)
@example(line="m@http://[/v1")
@example(line="m@http://127.0.0.1:99999999/v1")
@example(line="m@http://127.0.0.1:x/v1")
@example(line="m@http://127.0.0.1:1/v1?timeout=nan")
@example(line="m@http://127.0.0.1:1/\x7f?context=１２")
def test_any_line_for_a_model_is_an_endpoint_or_a_settings_error(line: str) -> None:
    try:
        made = load_settings(lm=line)
        endpoints = [made.endpoints(role) for role in ROLES]
    except SettingsError as error:
        assert error.message
        assert "ADAPTIVE_RAG_LM" in error.message
    else:
        assert all(endpoint.timeout > 0 and endpoint.concurrency > 0 for found in endpoints for endpoint in found)


@pytest.mark.parametrize(
    "line", ["m@http://127.0.0.1:99999999/v1", "m@http://127.0.0.1:1/\x7f", "m@http://127.0.0.1:/v1"]
)
def test_an_address_that_nobody_can_call_is_an_error_of_settings_or_of_the_model(make_rag: Any, line: str) -> None:
    try:
        bench = make_rag(generator_lm=line)
    except SettingsError:
        return
    record = bench.ask(QUESTION)
    whole(record)
    assert (record.status, record.stop_reason) == ("unavailable", "lm_unavailable")


@pytest.mark.parametrize("key", ["你的密钥", "sk-x\n", "sk-x\x00", "\ud800", "sk-é"], ids=ascii)
def test_a_key_that_no_header_can_hold_is_named_and_not_shown(make_rag: Any, key: str) -> None:
    """Somebody leaves the placeholder of the documentation in, or copies a line end with the key."""
    try:
        record = make_rag(api_key=key).ask(QUESTION)
    except SettingsError as error:
        assert "ADAPTIVE_RAG_API_KEY" in error.message
        assert key.strip() not in error.message
        return
    whole(record)
    assert key not in record.model_dump_json()


NAMES = [
    f"ADAPTIVE_RAG_{name}" for name in ("DEADLINE", "MAX_HOPS", "HOME", "COMPILED", "STORE_PREFIX", "API_KEY", "X")
]


@fuzz
@given(
    content=st.binary(max_size=60)
    | st.lists(st.tuples(st.sampled_from(NAMES), TEXT), max_size=4).map(
        lambda pairs: "\n".join(f"{name}={value}" for name, value in pairs).encode("utf-8", "surrogatepass")
    )
)
@example(content=b"ADAPTIVE_RAG_DEADLINE=nan")
@example(content=b"ADAPTIVE_RAG_HOME=\x00")
@example(content=b"ADAPTIVE_RAG_HOME=~nobody-of-this-name/x")
@example(content=b"\xff\xfeA\x00")
def test_any_env_file_is_settings_or_a_settings_error(content: bytes) -> None:
    with working_directory() as folder:
        (folder / ".env").write_bytes(content)
        try:
            made = load_settings()
        except SettingsError as error:
            assert error.message
        else:
            assert made.deadline > 0


@contextmanager
def working_directory() -> Iterator[Path]:
    """The test's own folder, which `.env` is read from."""
    folder = Path.cwd()
    assert folder != Path(__file__).parents[2]
    saved = dict(os.environ)
    yield folder
    os.environ.clear()
    os.environ.update(saved)


# -- one program for all examples ------------------------------------------------------------

_KEPT: dict[tuple[int, str], Any] = {}


def _kept(make_rag: Any, name: str) -> Any:
    """The bench of a test, with `says`: what its model answers to everything."""
    key = (id(make_rag), name)
    if key not in _KEPT:
        says: list[Any] = [None]
        bench = make_rag(lambda call: says[0])
        bench.says = says
        _KEPT.clear()
        _KEPT[key] = bench
    return _KEPT[key]


def test_a_kept_bench_is_a_program_like_any_other(make_rag: Any) -> None:
    bench = _kept(make_rag, "check")

    def script(call: Call) -> Any:
        return helpful()(call)

    bench.says[0] = Reply("{}")
    assert bench.ask(QUESTION).status == "unavailable"
    assert make_rag(script).ask(QUESTION).status == "answered"


def test_a_model_of_known_features_is_one_that_runs() -> None:
    made = LinearModel.model_validate(linear("cosine"))
    assert JudgeState(weighed=made, alone=made, **LIMITS).alone.probability({"cosine": 1.0}) == 0.5
