"""A fault that is planted at a stage is found there."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from loop_scripts import relevant
from memory_store import MemoryDenseStore, MemoryTextStore
from scripted_lm import Call, Reply, helpful

from data.loading import load_question_cases
from data.schema import QuestionCase
from optimize.blame import blame, print_blame
from optimize.gold import GoldPassages
from optimize.optimize import main
from signatures.records import Passage

GOLD = Passage(id="gold", document_id="corpus/shoes.md", text="年累计步行满 200 公里为银靴。")
OTHER = Passage(id="other", document_id="corpus/boots.md", text="年累计步行满 600 公里为金靴，银靴另有规定。")
KNOWN = GoldPassages([GOLD, OTHER])
SHARED = {
    "id": "qa-x",
    "group": "x",
    "split": "dev",
    "kind": "single_fact",
    "origin": "written",
    "lang": "zh",
    "question": "步行达到多少公里算银靴",
    "intent": "FACT_LOOKUP",
}
CASE = QuestionCase.model_validate(
    {
        **SHARED,
        "answerable": True,
        "facts": [["200 公里"]],
        "gold": [{"document_id": GOLD.document_id, "quote": "满 200 公里"}],
        "answer": "满 200 公里为银靴。",
    }
)
NO_ANSWER = QuestionCase.model_validate({**SHARED, "answerable": False})
LOST = {
    "intent": "CHIT_CHAT",
    "strategy": "direct_reply",
    "confidence": 99,
    "reasoning": "",
    "clarification_questions": [],
}


def reads(call: Call) -> dict[str, str]:
    """Writes what stands in the passages."""
    return {"answer": "满 200 公里为银靴[1]。" if "200 公里为银靴" in call.text else "满 600 公里为银靴[1]。"}


def rejects(word: str) -> Callable[[Call], Reply]:
    """A relevance judge that drops what holds a word, and nothing else."""

    def script(call: Call) -> Reply:
        lines = call.body["messages"][0]["content"].splitlines()
        bodies = [line for place, line in enumerate(lines) if place and lines[place - 1].startswith("[")]
        chances = [0.1 if word in body else 0.9 for body in bodies]
        labels = " ".join(f"{n}{'是' if c > 0.5 else '否'}" for n, c in enumerate(chances, start=1))
        return Reply(json.dumps({"verdicts": labels}, ensure_ascii=False), probability=chances)

    return script


def found(make_rag: Any, passages: list[Passage], case: QuestionCase = CASE, **script: Any) -> Any:
    # An answer that is written beside the relevance judge does not lack what the judge rejects.
    bench = make_rag(helpful(**{"generate": reads, **script}), passages=passages, overlap=False)
    return blame(case, bench.rag.resources, KNOWN)


def test_nothing_is_to_blame_for_a_right_answer(make_rag: Any) -> None:
    made = found(make_rag, [GOLD, OTHER])
    assert made.stages == ()
    assert len(made.attempts) == 1


@pytest.mark.parametrize(
    ("passages", "script", "stages"),
    [
        ([GOLD, OTHER], {"route": LOST}, ("route",)),
        ([OTHER], {}, ("passages",)),
        ([GOLD, OTHER], {"relevance": rejects("200")}, ("verdicts",)),
        ([GOLD, OTHER], {"relevance": relevant("没有")}, ("verdicts",)),
        ([GOLD, OTHER], {"generate": {"answer": "满 20 公里为银靴[1]。"}}, ("answer",)),
        ([GOLD, OTHER], {"generate": {"answer": ""}}, ("answer",)),
        ([OTHER], {"route": LOST}, ("route", "passages")),
        ([OTHER], {"relevance": relevant("600")}, ("passages", "verdicts")),
        ([OTHER], {"route": LOST, "relevance": relevant("没有")}, ("route", "passages", "verdicts")),
    ],
)
def test_the_stage_with_the_planted_fault_is_named(
    make_rag: Any, passages: list[Passage], script: dict[str, Any], stages: tuple[str, ...]
) -> None:
    made = found(make_rag, passages, **script)
    assert made.stages == stages
    assert [attempt.stages for attempt in made.attempts][:6] == [
        (), ("route",), ("passages",), ("verdicts",), ("route", "passages"), ("route", "passages", "verdicts")
    ]  # fmt: skip


def test_an_answer_to_a_question_that_has_none_is_the_judges_fault_not_the_searches(make_rag: Any) -> None:
    made = found(make_rag, [OTHER], NO_ANSWER)
    assert made.stages == ("verdicts",)
    assert all("passages" not in attempt.stages for attempt in made.attempts)


def test_an_outage_is_no_stage(make_rag: Any) -> None:
    down = {"dense": MemoryDenseStore(384, down=True), "text": MemoryTextStore(down=True)}
    bench = make_rag(helpful(), **down)
    assert blame(CASE, bench.rag.resources, KNOWN).stages == ("outage",)


def test_what_is_printed_says_what_was_seen(make_rag: Any, capsys: pytest.CaptureFixture[str]) -> None:
    print_blame(CASE, found(make_rag, [GOLD, OTHER], relevance=rejects("200")))
    out = capsys.readouterr().out
    assert "to blame: verdicts" in out
    assert "gold passage gold: hop 1 place" in out
    assert "dropped" in out
    assert "right  gold verdicts: answered" in out


def test_the_command_runs_the_program_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    case = next(one for one in load_question_cases() if one.answerable)
    assert main(["blame", "qa-nobody"]) == 1
    assert "qa-nobody" in capsys.readouterr().err
    from scripted_lm import scripted_lm

    script = helpful(generate={"answer": case.answer})
    with scripted_lm(script) as lm:
        assert main(["blame", case.id, "--lm", lm.line]) == 0
    out = capsys.readouterr().out
    assert case.question in out
    assert "to blame: passages" in out, "the index is empty"
