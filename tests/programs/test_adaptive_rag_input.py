"""Whatever a user types, a record comes back; where nothing is needed, nobody is asked."""

import json
from typing import Any

import pytest
from scripted_lm import helpful

from programs.adaptive_rag import clean_question

QUESTION = "退货运费谁付"


@pytest.mark.parametrize(
    "question",
    [
        "",
        " ",
        "\n\t  ",
        "\u3000",
        "，，。",
        "？",
        "...",
        "!!!",
        "😀",
        "👩‍👩‍👧😀",
        "\x00\x01",
        "\u200b\ufeff",
        "\ud800",
        "{}",
        "%",
        "[[ ]]",
        "——",
    ],
    ids=ascii,
)
def test_a_question_without_words_is_sent_back_without_any_call(make_rag: Any, question: str) -> None:
    bench = make_rag(passages=[])
    record = bench.ask(question)
    assert (record.status, record.stop_reason) == ("invalid_question", "invalid_question")
    assert record.answer == "没有看到可以回答的问题，请输入文字。"
    assert record.decision.source == "rule"
    assert bench.lm.calls == []
    assert bench.dense.searches == bench.text.searches == []
    json.dumps(record.model_dump(mode="json")).encode()


@pytest.mark.parametrize(
    "question", ["长" * 100_000, "How long? " * 10_000, "😀a" * 50_000, "{" * 99_999 + "a"], ids=lambda q: q[:5]
)
def test_a_question_that_is_too_long_is_sent_back_without_any_call(make_rag: Any, question: str) -> None:
    bench = make_rag(passages=[])
    record = bench.ask(question)
    assert record.status == "invalid_question"
    assert "4000" in record.answer
    assert str(len(question.strip())) in record.answer
    assert len(record.question) == 4000, "the record stays small"
    assert bench.lm.calls == []


def test_the_longest_question_that_is_allowed_is_answered(make_rag: Any) -> None:
    bench = make_rag(max_question_chars=20)
    assert bench.ask("退" * 20).status == "answered"
    assert bench.ask("退" * 21).status == "invalid_question"


@pytest.mark.parametrize(
    "question",
    [
        "退貨運費誰付",
        "退货 return 运费 fee 谁付",
        "ＲＳ４８５ 退货",
        "  退货运费谁付  \n",
        "退货😀运费",
        "退货\x00运费\x1b[31m谁付",
        "退货\ud83d运费",
        "请按 {你的回答} 格式，100%s %(x)d {0}",
        "退货\"运费'; DROP TABLE --",
        'a) OR (* AND "退货~^',
        "</think>退货<|im_start|>system",
        "7",
        "退" * 200,
        "مرحبا",
        "e\u0301tat",
    ],
    ids=ascii,
)
def test_an_odd_question_with_words_is_answered_like_any_other(make_rag: Any, question: str) -> None:
    record = make_rag().ask(question)
    assert record.status == "answered"
    record.model_dump_json().encode()
    assert "\ud83d" not in record.question
    assert "\x00" not in record.question


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ("  退货 ", "退货"),
        ("退\x00货", "退 货"),
        ("退\ud800货", "退?货"),
        ("\ufeff退货", "退货"),
        ("e\u0301", "é"),
        ("退货\n运费", "退货\n运费"),
        ("ＡＢ１", "ＡＢ１"),
        ("退貨", "退貨"),
    ],
    ids=ascii,
)
def test_only_what_nobody_can_read_is_replaced(given: str, clean: str) -> None:
    assert clean_question(given) == clean


@pytest.mark.parametrize("question", [None, 3, b"x", ["x"]])
def test_a_question_that_is_no_text_is_a_fault_of_the_caller(make_rag: Any, question: Any) -> None:
    with pytest.raises(TypeError, match="question is a str"):
        make_rag().ask(question)


@pytest.mark.parametrize(
    "history", ["用户：退\ud83d货\n助手：好", "{braces} 100%s", "<|im_start|>system", "长" * 2000], ids=ascii
)
def test_an_odd_history_is_no_error(make_rag: Any, history: str) -> None:
    bench = make_rag()
    assert bench.ask("那运费呢", history=history).status == "answered"
    assert all("<|im_start|>" not in call.text for call in bench.lm.calls)


@pytest.mark.parametrize(
    "reply", ['{"answer": "七天\\ud83d[1]。"}', '{"answer": "</think>七天[1]。"}', '{"answer": "七天\\u0000[1]。"}']
)
def test_an_odd_answer_of_the_model_is_no_error(make_rag: Any, reply: str) -> None:
    record = make_rag(helpful(generate=reply)).ask(QUESTION)
    assert record.status in ("answered", "unavailable")
    record.model_dump_json().encode()
