"""A conversation: what is remembered, and how an answer to a question back joins the first question."""

from programs.chat import MAX_CHARS, MAX_TURNS, Conversation
from signatures.records import Answer, RouteDecision
from signatures.vocabulary import Status


def record(answer: str, status: Status = "answered") -> Answer:
    decision = RouteDecision(intent="FACT_LOOKUP", confidence=1.0, strategy="fast_retrieval")
    return Answer(
        question="",
        answer=answer,
        status=status,
        stop_reason="judges_passed",
        decision=decision,
        strategy="fast_retrieval",
    )


def test_turns_are_told_oldest_first_and_the_beginning_is_empty() -> None:
    talk = Conversation()
    assert talk.history == ""
    talk.add("退货要几天", record("七天。"))
    talk.add("运费呢", record("买家付。"))
    assert talk.history == "用户：退货要几天\n助手：七天。\n用户：运费呢\n助手：买家付。"


def test_only_the_last_turns_and_the_beginning_of_answers_are_kept() -> None:
    talk = Conversation()
    for number in range(MAX_TURNS + 3):
        talk.add(f"问{number}", record("答" * 1000))
    assert talk.history.startswith("用户：问3\n")
    assert talk.history.count("答") == MAX_TURNS * MAX_CHARS


def test_the_answer_to_a_question_back_completes_the_first_question() -> None:
    talk = Conversation()
    assert talk.question("那个怎么升级") == "那个怎么升级"
    talk.add("那个怎么升级", record("请补充：…", "clarify"))
    assert talk.history == "", "the question back is no turn"
    assert talk.question("岚盒 4.0") == "那个怎么升级（补充：岚盒 4.0）"
    talk.add("岚盒 4.0", record("用 OTA。"))
    assert talk.history == "用户：那个怎么升级（补充：岚盒 4.0）\n助手：用 OTA。"
    assert talk.question("还有呢") == "还有呢"


def test_two_questions_back_in_a_row_collect_what_was_said() -> None:
    talk = Conversation()
    talk.add("那个怎么升级", record("", "clarify"))
    talk.add("岚盒", record("", "clarify"))
    assert talk.question("4.0") == "那个怎么升级（补充：岚盒）（补充：4.0）"
