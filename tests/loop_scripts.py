"""Replies and scripts for tests of the loop: judges that change their mind, and a plan of so many hops."""

import json
from typing import Any

from scripted_lm import Call, Reply

from signatures.records import Passage

QUESTION = "退货运费谁付"
NO = Reply('{"verdict": "否", "reason": "不对"}', probability=0.1)
YES = Reply('{"verdict": "是", "reason": "对"}', probability=0.9)


def judged(probability: float) -> Reply:
    label = "是" if probability >= 0.5 else "否"
    return Reply(
        json.dumps({"verdict": label, "reason": f"判为{probability}"}, ensure_ascii=False), probability=probability
    )


def in_turn(*replies: Any) -> Any:
    """The replies one after the other, the last one for ever."""
    rest = list(replies)

    def script(call: Call) -> Any:
        reply = rest.pop(0) if len(rest) > 1 else rest[0]
        return reply(call) if callable(reply) else reply

    return script


def relevant(*wanted: str) -> Any:
    """A relevance judge that likes passages holding one of the words."""

    def script(call: Call) -> Reply:
        lines = call.body["messages"][0]["content"].splitlines()
        numbered = [line for place, line in enumerate(lines) if place and lines[place - 1].startswith("[")]
        labels = ["是" if any(word in line for word in wanted) else "否" for line in numbered]
        text = " ".join(f"{n}{label}" for n, label in enumerate(labels, start=1))
        chances = [0.9 if label == "是" else 0.1 for label in labels]
        return Reply(json.dumps({"verdicts": text}, ensure_ascii=False), probability=chances)

    return script


def hop_plan(hops: int, **more: Any) -> dict[str, Any]:
    return {"max_hops": hops, **more}


ALL = [
    Passage(id="a", document_id="a", text="退货运费由买家承担。"),
    Passage(id="b", document_id="b", text="退货须在七天内提出。"),
    Passage(id="c", document_id="c", text="换货的运费由卖家承担。"),
    Passage(id="d", document_id="d", text="岚盒的管理端口是 8080。"),
]
TWO_ROUTES = {"routes": ["dense", "text"]}


def numbered_lines(call: Any) -> list[str]:
    """The texts of the passages that a call showed, in order."""
    lines = call.body["messages"][0]["content"].splitlines()
    return [line for place, line in enumerate(lines) if place and lines[place - 1].startswith("[")]
