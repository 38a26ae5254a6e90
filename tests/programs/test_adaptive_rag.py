"""The whole program: every road ends in one record, whatever comes in."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError
from scripted_lm import Reply, helpful

from programs.errors import PlanError
from signatures.records import Answer
from signatures.vocabulary import STATUSES, STRATEGIES, StopReason

QUESTION = "退货运费谁付"


def calls(bench: Any) -> list[str]:
    return [call.signature for call in bench.lm.calls]


def routed(intent: str, strategy: str, **more: Any) -> dict[str, Any]:
    fields = {"intent": intent, "strategy": strategy, "confidence": 95, "reasoning": "", "clarification_questions": []}
    return {**fields, **more}


# -- one record for all roads (B4) -----------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_the_same_record(make_rag: Any, strategy: str) -> None:
    bench = make_rag()
    prediction = bench.rag(question=QUESTION, strategy=strategy)
    record = prediction.record
    assert isinstance(record, Answer)
    assert record.strategy == record.decision.strategy == strategy
    assert record.decision.source == "user"
    assert record.status in STATUSES
    assert record.stop_reason in get_args(StopReason)
    assert record.answer
    assert set(Answer.model_fields) <= set(prediction.keys())
    for name in Answer.model_fields:
        assert getattr(prediction, name) == getattr(record, name)
    assert Answer.model_validate_json(record.model_dump_json()) == record
    assert record.usage.lm_calls == len(bench.lm.calls)
    assert bench.lm.count("route") == 0


def test_small_talk_is_answered_without_passages_and_judges(make_rag: Any) -> None:
    bench = make_rag(helpful(route=routed("CHIT_CHAT", "direct_reply")), passages=[])
    record = bench.ask("你好呀")
    assert (record.status, record.stop_reason) == ("answered", "no_retrieval")
    assert record.answer == "您好，请问有什么可以帮您？"
    assert (record.trace, record.passages, record.citations, record.best_hop) == ((), (), (), 0)
    assert calls(bench) == ["route", "reply"]


@pytest.mark.parametrize("broken", ["嗯……", Reply(status=500), {"answer": ""}])
@pytest.mark.parametrize(("question", "start"), [("你好呀", "您好"), ("Hello there", "Hello!")])
def test_small_talk_has_a_reply_also_without_a_model(make_rag: Any, broken: Any, question: str, start: str) -> None:
    record = make_rag(helpful(route=routed("CHIT_CHAT", "direct_reply"), reply=broken)).ask(question)
    assert record.status == "answered"
    assert record.answer.startswith(start)
    assert any("语言模型" in text for text in record.degraded)


@pytest.mark.parametrize(
    ("question", "start"), [("帮我转账", "这个问题超出"), ("Transfer money please", "This is outside")]
)
def test_what_is_outside_is_refused_politely_with_one_call(make_rag: Any, question: str, start: str) -> None:
    bench = make_rag(helpful(route=routed("UNKNOWN", "fallback")))
    record = bench.ask(question)
    assert (record.status, record.stop_reason) == ("refused", "no_retrieval")
    assert record.answer.startswith(start)
    assert calls(bench) == ["route"]


def test_an_unclear_question_is_asked_back(make_rag: Any) -> None:
    asked = ["您问的是哪个型号？", "您问的是哪一年的规定？"]
    bench = make_rag(helpful(route=routed("HOW_TO", "clarify_needed", clarification_questions=asked)))
    record = bench.ask("那个怎么弄")
    assert (record.status, record.stop_reason) == ("clarify", "no_retrieval")
    assert record.answer == "为了准确回答，请补充：\n1. 您问的是哪个型号？\n2. 您问的是哪一年的规定？"
    assert record.decision.clarification_questions == tuple(asked)
    assert record.trace == ()


@pytest.mark.parametrize(
    ("intent", "named", "signatures"),
    [
        ("FACT_LOOKUP", "fast_retrieval", ["route", "relevance", "generate", "grounding", "utility"]),
        ("HOW_TO", "standard_retrieval", ["route", "relevance", "generate", "grounding", "utility"]),
        ("COMPARISON", "deep_search", ["route", "decompose", "relevance", "generate", "grounding", "utility"]),
        ("CODE_SEARCH", "code_search", ["route", "relevance", "generate", "grounding", "utility"]),
    ],
)
def test_a_question_that_goes_well_costs_these_calls(
    make_rag: Any, intent: str, named: str, signatures: list[str]
) -> None:
    bench = make_rag(helpful(route=routed(intent, named)))
    record = bench.ask(QUESTION)
    assert record.status == "answered"
    assert sorted(calls(bench)) == sorted(signatures)


def test_an_answer_carries_its_sources(make_rag: Any) -> None:
    record = make_rag().ask(QUESTION)
    assert record.answer == "本店支持七天无理由退货[1]。"
    assert [(c.number, c.passage_id, c.location) for c in record.citations] == [(1, "d1", "d1")]
    assert record.citations[0].passage_id in [passage.id for passage in record.passages]
    assert record.passages[0].text == "本店支持七天无理由退货，运费由买家承担。"


def test_code_is_searched_in_its_own_index(make_rag: Any) -> None:
    from programs.retrieval.pipeline import Searcher

    bench = make_rag()
    searched: list[str] = []

    class Spy(Searcher):
        async def search(self, queries: Any, plan: Any, **options: Any) -> Any:
            searched.append(plan.index)
            return await super().search(queries, plan, **options)

    bench.rag.resources.searcher.__class__ = Spy
    bench.ask("登录函数在哪", strategy="code_search")
    bench.ask("退货", strategy="fast_retrieval")
    assert searched == ["code", "documents"]


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [None, *STRATEGIES])
@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ({"topk": 8}, "topk"),
        ({"weights": {"x": 1}}, "weights.x"),
        ({"routes": ["x"]}, "routes.0"),
        ({"top_k": 0}, "top_k"),
    ],
)
def test_a_wrong_plan_names_its_key_before_anything_is_spent(
    make_rag: Any, strategy: str | None, patch: dict[str, Any], named: str
) -> None:
    bench = make_rag()
    with pytest.raises(PlanError) as caught:
        bench.ask(QUESTION, strategy=strategy, plan=patch)
    assert named in caught.value.message
    assert bench.lm.calls == []


def test_a_plan_patch_changes_one_part_of_the_strategys_plan(make_rag: Any) -> None:
    record = make_rag().ask(QUESTION, plan={"top_k": 1})
    assert len(record.trace[0].hits) == 1
    assert record.trace[0].hits[0].routes == ("dense", "text")


def test_a_plan_without_routes_retrieves_nothing(make_rag: Any) -> None:
    bench = make_rag(passages=[])
    record = bench.ask(QUESTION, plan={"routes": []})
    assert record.status == "no_evidence"
    assert bench.dense.searches == bench.text.searches == []


def test_a_strategy_that_does_not_exist_is_an_error(make_rag: Any) -> None:
    with pytest.raises((ValidationError, KeyError)):
        make_rag().ask(QUESTION, strategy="guess")


@pytest.mark.parametrize(
    "category",
    ['公开" or id > 0 or category == "x', "公开' or 1==1 or 'a'=='a", "a\\", "%", "公开\n", "*", "", "公" * 10_000],
    ids=lambda value: ascii(value)[:20],
)
def test_a_hostile_category_finds_nothing_and_breaks_nothing(make_rag: Any, category: str) -> None:
    """L1, with the real stores."""
    record = make_rag().ask("供应商底价", category=category)
    assert record.status == "no_evidence"
    assert record.degraded == ()
    assert "83 元" not in record.model_dump_json()


def test_a_category_finds_its_own(make_rag: Any) -> None:
    record = make_rag(helpful(generate={"answer": "底价为 83 元[1]。"})).ask("供应商底价", category="机密")
    assert record.status == "answered"
    assert [passage.id for passage in record.passages] == ["d3"]


# -- history ---------------------------------------------------------------------------------


def test_a_follow_up_is_searched_as_a_whole_question(make_rag: Any) -> None:
    bench = make_rag(helpful(resolve={"standalone_question": "退货的运费由谁承担"}))
    record = bench.ask("那运费呢", history="用户：退货要几天\n助手：七天。")
    assert record.question == "那运费呢"
    assert record.trace[0].query == "退货的运费由谁承担"
    assert calls(bench)[:2] == ["resolve", "route"]
    assert bench.lm.asked("route")[0].input("history") == "用户：退货要几天\n助手：七天。"
    assert bench.lm.asked("generate")[0].input("question") == "退货的运费由谁承担"


@pytest.mark.parametrize(
    "broken", ["嗯……", Reply(status=500), {"standalone_question": "。"}, {"standalone_question": ""}]
)
def test_a_follow_up_that_cannot_be_resolved_is_searched_as_it_is(make_rag: Any, broken: Any) -> None:
    record = make_rag(helpful(resolve=broken)).ask("退货的运费呢", history="用户：退货要几天\n助手：七天。")
    assert record.trace[0].query == "退货的运费呢"
    assert record.status == "answered"


def test_without_history_nothing_is_resolved(make_rag: Any) -> None:
    bench = make_rag()
    bench.ask(QUESTION)
    assert "resolve" not in calls(bench)
