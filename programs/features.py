"""What can be seen of a case without a language model, as numbers for `programs.weighing`.

Each judge weighs these beside the language model's opinion. All are small, cheap and language-neutral;
which of them is worth anything is measured by `python -m optimize calibrate` and stands in its report.
"""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise

from programs import evidence
from programs.retrieval.sentences import sentences
from programs.retrieval.tokens import fold, words
from programs.similarity import Similarity
from signatures.records import Passage

RELEVANCE: Mapping[str, int] = {
    "nearest": 1,
    "cosine_gap": -1,
    "overlap": 1,
    "codes": 1,
    "heading": 1,
    "pairs": 1,
}
"""Features of a judge by name, and which way each may count: more of it can speak only for a pass (1) or only
against one (-1). Few labelled cases teach a fit without this that shared words speak against an answer, because
the cases are hard on purpose; length and script, which speak for neither, are left out (`optimize/LOG.md`)."""
FORM = ("length", "same_script")
"""More features of a passage, which rank it among others and judge nothing."""
GROUNDING: Mapping[str, int] = {
    "support_least": 1,
    "support_mean": 1,
    "overlap": 1,
    "pairs": 1,
    "aligned": 1,
    "foreign_words": -1,
    "missing_numbers": -1,
    "stray_numbers": -1,
    "missing_names": -1,
    "negation": -1,
    "absolute": -1,
}
UTILITY: Mapping[str, int] = {
    "cosine": 1,
    "nearest": 1,
    "overlap": 1,
    "part_overlap": 1,
    "pairs": 1,
    "echo": -1,
    "number_due": 1,
    "duration_due": 1,
    "money_due": 1,
    "polarity_due": 1,
    "steps_due": 1,
    "sides_due": 1,
    "code_due": 1,
    "refusal": -1,
    "empty_talk": -1,
    "open_end": -1,
}

_HAN = re.compile(r"[\u4e00-\u9fff]")
_ASKS_NUMBER = re.compile(
    r"多少|几(?!乎|何|个步骤)|多[久长大高远]|何时|什么时候|哪[天年月]|\bhow (?:many|much|long|often|far)\b|\bwhen\b",
    re.I,
)
_ASKS_STEPS = re.compile(r"怎么(?!样的人|回事)|如何|怎样|步骤|流程|咋|\bhow (?:do|can|to|should)\b|\bsteps?\b", re.I)
_ASKS_SIDES = re.compile(
    r"区别|差别|不同|相比|比较|对比|差多少|哪个(?:更|好|快|贵)|还是|\bvs\b|versus|difference|compare|\bor\b", re.I
)
_ASKS_CODE = re.compile(r"代码|命令|脚本|sql|函数|示例|写(?:个|一|段)|\bcode\b|command|snippet|script|function", re.I)
_ASKS_DURATION = re.compile(
    r"多久|几天|多少天|几个?小时|何时|什么时候|期限|多长时间|时长"
    r"|\bhow long\b|\bwhen\b|\bhow many (?:days|hours)\b|deadline",
    re.I,
)
_DURATION = re.compile(
    r"(?:\d|[一二两三四五六七八九十半])\s*个?(?:天|小时|分钟|秒|工作日|月|年|周|日|号|点)|:\d\d|底前|当[天日]|次[日年]"
    r"|\d ?(?:h\b|hour|minute|day|month|year|week|second)",
    re.I,
)
_ASKS_MONEY = re.compile(
    r"多少[钱元]|金额|补贴.{0,4}多少|费用|价格|奖金|上限|限额|how much|allowance|price|cost|limit", re.I
)
_MONEY = re.compile(
    r"\d ?(?:元|块|万|%)|[百千万]元|免费|不收|\bfree\b|(?:USD|SGD|EUR|\$|¥) ?\d|\d ?(?:USD|SGD|EUR)", re.I
)
_ASKS_YES_NO = re.compile(
    r"吗|能不能|是不是|可不可以|有没有|要不要|行不行|算不算|会不会|用不用|[不么][？?]?$"
    r"|(?:^|, )(?:is|are|can|do|does|may|must|should|will|did|has|have)\b",
    re.I,
)
_POLAR_START = re.compile(r"\W*(?:不|能|可以|是|有|没|要|行|会|算|给|yes|no\b)", re.I)
_POLAR = re.compile(r"不[能行会用]|不可以|不需要|可以|必须|\bnot?\b|n't|\bcan\b", re.I)
_PARTS = re.compile(r"[，,？?；;。、]|以及|和(?!谐)|[与及跟]|还有|还是|另外|\b(?:and|or|vs)\b", re.I)
_STEP = re.compile(
    r"(?m)^\s*(?:\d+[.、)]|[-*•])|第[一二三四五六]步|首先|其次|然后|再|接着|最后|先|点击|进入|打开|\bthen\b|\bfirst\b|\bclick\b|\bopen\b",
    re.I,
)
_CODE = re.compile(r"```|`[^`]+`|\b(?:SELECT|def|curl|import|function|const|pip|npm|git|docker)\b|[{}();=]{2}|--\w+")
_ABSOLUTE = re.compile(
    r"只有|仅限|全部|所有|一律|任何|都可以|必须|不得|最[多少高低]|至[多少]|\ball\b|\bonly\b|\bany\b|\bmust\b|\balways\b",
    re.I,
)
_EMPTY = re.compile(
    r"具体(?:情况|规定|流程|金额|以)|视情况|因(?:情况|人|地)而|咨询(?:相关|有关|人力|行政|客服)|联系(?:相关|客服|管理员|人力)|"
    r"相关(?:规定|制度|部门|文档|手册)|参考(?:官方|相关|手册|文档)|建议您?(?:查看|咨询|联系|参考)|希望(?:对|能|以上)|"
    r"it depends|please (?:contact|refer|consult|check)|relevant department|official documentation",
    re.I,
)
_ENDS = re.compile(r"[。．.!！?？；;)）」』”\"'`%％℃元天时日年月号个次\]】…]\s*$|[A-Za-z0-9]\s*$")


def relevance_features(question: str, passages: Sequence[Passage], similarity: Similarity) -> list[dict[str, float]]:
    """Features of each passage, `RELEVANCE` and `FORM`; same order."""
    nearest = similarity.nearest_sentence(question, passages)
    best = max(nearest, default=0.0)
    asked, asked_pairs = words(question), _pairs(question)
    asked_codes = _codes(question)
    found = []
    for passage, near in zip(passages, nearest, strict=True):
        whole = f"{passage.heading}\n{passage.text}"
        held, heading = words(whole), words(passage.heading)
        found.append(
            {
                "nearest": near,
                "cosine_gap": best - near,
                "overlap": _share(asked, held),
                "codes": _share(asked_codes, _codes(whole)) if asked_codes else 1.0,
                "heading": _share(asked, heading),
                "pairs": _share(asked_pairs, _pairs(whole)),
                "length": math.log1p(len(passage.text)),
                "same_script": float(_script(question) == _script(passage.text)),
            }
        )
    return found


def grounding_features(
    question: str, answer: str, passages: Sequence[Passage], similarity: Similarity
) -> dict[str, float]:
    """Features for `GROUNDING`."""
    answer = evidence.strip_citations(answer)
    found = evidence.support(answer, passages, question)
    statements = sentences(answer) or [answer]
    near = similarity.support(statements, passages)
    given = "\n".join(f"{p.heading}\n{p.text}" for p in passages)
    places = [(f"{p.heading} {s}", words(f"{p.heading} {s}")) for p in passages for s in sentences(p.text) or [p.text]]
    aligned, stray = [], 0
    for statement in statements:
        # By what it is about, not by its numbers: a wrong number stands in some other sentence.
        own = {word for word in words(statement) if not any(char.isdigit() for char in word)}
        place, held = max(places, key=lambda one: _share(own, one[1]))
        aligned.append(_share(own, held))
        # A number that the passages hold elsewhere, but not where the rest of the sentence stands.
        stray += len(evidence.numbers(statement) - evidence.numbers(place) - evidence.numbers(question))
    return {
        "support_least": min(near),
        "support_mean": sum(near) / len(near),
        "overlap": found.overlap,
        "pairs": _share(_pairs(answer), _pairs(given)),
        "aligned": min(aligned),
        "foreign_words": math.log1p(len(words(answer) - words(f"{given}\n{question}"))),
        "missing_numbers": float(min(len(found.missing_numbers), 3)),
        "stray_numbers": float(min(stray, 3)),
        "missing_names": float(min(len(found.missing_names), 3)),
        "negation": found.negation,
        "absolute": float(len(set(_ABSOLUTE.findall(answer)) - set(_ABSOLUTE.findall(given)))),
    }


def utility_features(question: str, answer: str, similarity: Similarity) -> dict[str, float]:
    """Features for `UTILITY`."""
    answer = evidence.strip_citations(answer)
    asked, said = words(question), words(answer)
    parts = [part for part in _PARTS.split(question) if len(part.strip()) > 1] or [question]
    polar = bool(_POLAR_START.match(answer))
    return {
        "cosine": similarity.between(question, answer),
        # Of the sentence that is nearest: the rest may well be about something else.
        "nearest": similarity.support([question], [Passage(id="", document_id="", text=answer)])[0],
        "overlap": _share(asked, said),
        # An answer to one half of a question shares no word with the other half.
        "part_overlap": min(_share(words(part), said) for part in parts),
        "pairs": _share(_pairs(question), _pairs(answer)),
        # An answer of nothing but the question's words says nothing.
        "echo": _share(said, asked),
        "number_due": _due(_ASKS_NUMBER, question, bool(evidence.numbers(answer))),
        "duration_due": _due(_ASKS_DURATION, question, bool(_DURATION.search(answer))),
        "money_due": _due(_ASKS_MONEY, question, bool(_MONEY.search(answer))),
        "polarity_due": _due(_ASKS_YES_NO, question, polar or bool(_POLAR.search(answer))),
        "steps_due": _due(_ASKS_STEPS, question, len(_STEP.findall(answer)) > 1),
        "sides_due": _due(_ASKS_SIDES, question, _share(asked, said) >= 0.5),
        "code_due": _due(_ASKS_CODE, question, bool(_CODE.search(answer))),
        "refusal": float(evidence.is_refusal(answer)),
        "empty_talk": float(min(len(_EMPTY.findall(answer)), 3)),
        "open_end": float(not _ENDS.search(answer)),
    }


def _due(asks: re.Pattern[str], question: str, given: bool) -> float:
    """1 where the question asks for something and gets it, -1 where it does not, 0 where it does not ask."""
    return (1.0 if given else -1.0) if asks.search(question) else 0.0


def _share(part: set[str], whole: set[str]) -> float:
    return len(part & whole) / len(part) if part else 0.0


def _pairs(text: str) -> set[str]:
    """Pairs of neighbouring characters, folded; they see words that a dictionary cuts otherwise."""
    plain = "".join(char for char in fold(text) if char.isalnum())
    return {f"{a}{b}" for a, b in pairwise(plain)}


def _codes(text: str) -> set[str]:
    """Numbers and Latin names, which a passage about something near does not share."""
    return evidence.numbers(text) | evidence.names(text)


def _script(text: str) -> bool:
    """Whether a text is Chinese."""
    text = unicodedata.normalize("NFKC", text)
    return len(_HAN.findall(text)) * 4 >= len(text.replace(" ", ""))
