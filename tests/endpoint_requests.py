"""One real request through everything below a module, for the tests of endpoints."""

import dspy
import pytest
from scripted_lm import Reply

from programs import budget
from programs.budget import Budget
from programs.errors import LanguageModelError
from programs.lm import RoleLMs, ask
from programs.settings import load_settings
from signatures.answering import AnswerFromPassages

GOOD = Reply('{"answer": "七天"}')


async def request(line: str, account: Budget | None = None, **inputs: str) -> str:
    lms = RoleLMs(load_settings(lm=line))
    given = {"passages": "资料", "question": "退货要几天", "answer_language": "中文", **inputs}
    with budget.spending(account or Budget()):
        reply = await ask(dspy.Predict(AnswerFromPassages), lms["generator"], role="generator", **given)
    return str(reply.answer)


async def failure(line: str, account: Budget | None = None) -> LanguageModelError:
    with pytest.raises(LanguageModelError) as caught:
        await request(line, account)
    assert caught.value.role == "generator"
    return caught.value
