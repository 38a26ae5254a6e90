"""The language of a question, and the program's own sentences to the user in it."""

import re
from typing import Literal

from signatures.vocabulary import Status

Language = Literal["zh", "en"]

NAMES: dict[Language, str] = {"zh": "中文", "en": "English"}
"""As the generator is told."""

_HAN = re.compile(r"[\u3400-\u9fff]")
_LATIN_WORD = re.compile(r"[A-Za-z]{2,}")


def detect_language(text: str) -> Language:
    """`en` for a text of Latin words without enough Chinese; `zh` otherwise.

    A Chinese question full of English terms is Chinese: each Chinese character weighs as much as
    a Latin word of two.
    """
    han, words = len(_HAN.findall(text)), len(_LATIN_WORD.findall(text))
    return "en" if words > 2 * han else "zh"


_MESSAGES: dict[Language, dict[str, str]] = {
    "zh": {
        "no_evidence": "知识库里没有找到这个问题的答案。您可以换一种说法，或补充对象、版本、部门等信息再问。",
        "refused": "这个问题超出了我能处理的范围。我可以回答公司制度、产品和代码方面的问题；其他事项请联系人工服务。",
        "unavailable": "知识库检索或语言模型暂时不可用，无法判断有没有答案，请稍后再试。",
        "invalid_question": "没有看到可以回答的问题，请输入文字。",
        "too_long": "问题太长（{length} 个字符，上限 {limit}），请缩短后再问。",
        "clarify": "为了准确回答，请补充：",
        "unverified": "（注意：这个回答没有通过核对，请以原文为准。原因：{reason}）",
        "greeting": "您好！我可以回答公司制度、产品和代码方面的问题，请问有什么可以帮您？",
        "clarify_1": "您问的具体是哪个产品、制度或系统？",
        "clarify_2": "您想知道的是规定、步骤，还是几种情况的区别？",
    },
    "en": {
        "no_evidence": "The knowledge base does not hold the answer to this question. "
        "Try other words, or name the product, version or department.",
        "refused": "This is outside what I can do. I answer questions on company rules, products and code; "
        "for anything else please contact a person.",
        "unavailable": "The knowledge base or the language model cannot be reached right now, "
        "so I cannot tell whether there is an answer. Please try again later.",
        "invalid_question": "I see no question. Please type one.",
        "too_long": "The question is too long ({length} characters, at most {limit}). Please shorten it.",
        "clarify": "To answer exactly, please tell me:",
        "unverified": "(Note: this answer did not pass the checks; rely on the sources. Reason: {reason})",
        "greeting": "Hello! I answer questions on company rules, products and code. How can I help?",
        "clarify_1": "Which product, rule or system do you mean?",
        "clarify_2": "Do you want the rule, the steps, or the difference between cases?",
    },
}


def message(key: Status | str, language: Language) -> str:
    """One of the program's own sentences; placeholders stay for `str.replace`."""
    return _MESSAGES[language][key]
