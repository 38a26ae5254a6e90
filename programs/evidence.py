"""What can be checked without a language model: numbers, names, negation, overlap.

Used in three ways: as a veto (a number in an answer that no passage holds), as the stand-in for a
judge whose language model failed, and as features beside the language model's own score.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from programs.retrieval.sentences import sentences
from programs.retrieval.tokens import fold, words
from signatures.records import Passage

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_THOUSANDS = re.compile(r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)")  # "8080,8443" are two numbers
_SCALED = re.compile(r"(\d+(?:\.\d+)?) ?([万亿])")
_PERCENT = re.compile(r"百分之(\d+(?:\.\d+)?|[零〇一二两三四五六七八九十百]+)")
_CITATION = re.compile(r"[\[［【]\s*\d{1,2}(?:\s*[,，、]\s*\d{1,2})*\s*[\]］】]")
_LIST_MARK = re.compile(r"(?m)^\s*(?:[（(]?\d{1,2}[.)、）](?!\d)|第?[一二三四五六七八九十]+[、.])\s*")
_CHINESE = re.compile(r"[零〇一二两三四五六七八九十百千万]+")
_CHINESE_UNIT = re.compile(r"[个天年月日周次人元倍小时分秒晚级项条章种步成折公里米度位路页岁名台份期]")
# Numerals that state no number: articles, enumerations of what follows, steps, adverbs. "一个月" states one.
_NO_NUMBER = re.compile(
    r"(?<![第十百千万零一二两三四五六七八九])(?:一[个种项款条份位步]|两[个种项款]|[三四五六七八九]种|"
    r"[三四五六七八九]个(?:步骤|方面|版本|产品|型号|部分|情况|阶段|条件|方式))"
    r"(?!月|半|工作日|自然日|小时|星期|季度|学期|人)"
    r"|第(?:[一二三四五六七八九十]+|\d{1,2})步|(?<![一二两三四五六七八九])[十百千万]分(?![钟之])"
)
_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10_000}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_./][A-Za-z0-9]+)*")
_NEGATION = re.compile(
    r"不(?!仅|但|同|少于|超过|低于|高于|满|论|管|断|错|妨|如|止)|没有|无需|无须|未|非(?!常)|禁止|严禁|勿|"
    r"\b(?:not|no|never|without|cannot)\b|n't\b",
    re.IGNORECASE,
)
_SOURCE = r"(?:资料|知识库|文档|上下文|段落)"
_SAID = r"(?:提到|提及|提供|说明|包含|给出|找到|查到)"
_SUBJECT = r"(?:答案|相关|信息|内容|规定|说明|记录|资料|依据|这个问题|该问题)"
# "未找到设备" and "如不清楚，请咨询" are content; a refusal names the sources, the answer or itself.
_REFUSAL = re.compile(  # of text with narrow punctuation
    rf"{_SOURCE}[^。!?\n]{{0,12}}(?:没有?|未|无)[^。!?\n]{{0,3}}{_SAID}|"
    rf"{_SOURCE}[^。!?\n]{{0,12}}(?:没有?|不包?含|无)[^。!?\n]{{0,8}}(?:答案|相关|信息)|"
    rf"{_SOURCE}[里中内]?(?:都|也|并|均)?(?:没有|无)(?:[,。!]|$)|"
    rf"(?:没有?|未能?|无法)(?:能)?{_SAID}[^。!?\n]{{0,8}}{_SUBJECT}|(?:没有|未)(?:提到|提及|说明)(?:[。!]|$)|"
    rf"(?:没有|无)相关(?:资料|信息|内容|规定|记录)|"
    rf"无法(?:回答|得知)|无法(?:确定|判断)(?:[。!]|$|{_SUBJECT})|(?:^|我|[。!?\n])(?:也|还|并)?不(?:知道|清楚|确定)(?:[,。!]|$)|"
    r"\bi (?:do not|don't) know\b|\b(?:cannot|can't|unable to) (?:answer|determine)\b|"
    r"\bno (?:relevant |such )?(?:information|answer) (?:about|on|in|is given|was found)\b|"
    r"\bnot (?:mentioned|found|stated|specified|provided)(?: anywhere)? in (?:the|these|any)\b|"
    r"\b(?:passages?|documents?|sources?|context|knowledge base) (?:do(?:es)? not|doesn't|don't) "
    r"(?:mention|say|state|specify|contain|provide|include)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Support:
    """How far an answer stands on passages.

    Attributes:
        overlap: Share of the answer's terms that the passages hold, in [0, 1]; 0 for no terms.
        missing_numbers: Numbers of the answer that neither passages nor question hold.
        missing_names: Latin names and codes of the answer that neither holds.
        negation: 1 where an answer sentence denies what its closest passage sentence states, or
            the other way round; share of such sentences in [0, 1].
    """

    overlap: float
    missing_numbers: tuple[str, ...]
    missing_names: tuple[str, ...]
    negation: float

    @property
    def features(self) -> dict[str, float]:
        return {
            "overlap": self.overlap,
            "missing_numbers": float(len(self.missing_numbers)),
            "missing_names": float(len(self.missing_names)),
            "negation": self.negation,
        }


def strip_citations(text: str) -> str:
    """`text` without its citation marks."""
    return _CITATION.sub("", text)


def is_refusal(answer: str) -> bool:
    """Whether an answer says that it cannot answer; also where it then goes on regardless."""
    return bool(_REFUSAL.search(unicodedata.normalize("NFKC", answer)[:400]))


def numbers(text: str) -> set[str]:
    """Numbers of a text in one spelling: `１，０００.0`, `1000` and `一千元` are the same.

    Chinese numerals count before a unit only; elsewhere they are mostly words.
    """
    text = _LIST_MARK.sub("", unicodedata.normalize("NFKC", strip_citations(text)))
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = _PERCENT.sub(lambda match: f"{_chinese_value(match[1]) or match[1]}%", text)
    text = _SCALED.sub(lambda match: f"{float(match[1]) * (10**4 if match[2] == '万' else 10**8):.10g} ", text)
    found = {_plain(match.group()) for match in _NUMBER.finditer(text)}
    for match in _CHINESE.finditer(text):
        following = text[match.end() : match.end() + 2]
        if _CHINESE_UNIT.match(following):
            value = _chinese_value(match.group())
            if value is not None:
                found.add(str(value))
    return found


def names(text: str) -> set[str]:
    """Latin words, codes and identifiers, folded; single letters are no names."""
    text = strip_citations(unicodedata.normalize("NFKC", text))
    return {match.group().casefold() for match in _NAME.finditer(text) if len(match.group()) > 1}


def support(answer: str, passages: Sequence[Passage], question: str = "") -> Support:
    """Compare an answer with the passages it was written from."""
    given = "\n".join(f"{p.heading}\n{p.text}" for p in passages)
    known = f"{given}\n{question}"
    answer = strip_citations(answer)
    terms, held = words(answer), words(given)
    known_names = names(known)
    english = len(re.findall(r"[\u4e00-\u9fff]", known)) > 0 and not re.search(r"[\u4e00-\u9fff]", answer)
    missing = () if english else tuple(sorted(n for n in names(answer) if not _known_name(n, known_names)))
    return Support(
        overlap=len(terms & held) / len(terms) if terms else 0.0,
        missing_numbers=tuple(sorted(numbers(_NO_NUMBER.sub("", answer)) - _all_numbers(known))),
        missing_names=missing,
        negation=_negation(answer, passages),
    )


def term_overlap(question: str, text: str) -> float:
    """Share of the question's terms that a text holds, in [0, 1]; 0 for a question without terms."""
    terms = words(question)
    return len(terms & words(text)) / len(terms) if terms else 0.0


def _all_numbers(text: str) -> set[str]:
    # Digits inside codes count on this side, "LB-200" holds 200, and "80,443" may be one number or two.
    plain = _NUMBER.findall(unicodedata.normalize("NFKC", text))
    return numbers(text) | {_plain(number) for number in plain}


def _known_name(name: str, known: set[str]) -> bool:
    return name in known or any(name in other for other in known)


def _plain(number: str) -> str:
    if number.count(".") == 1:
        number = number.rstrip("0").rstrip(".")
    return number.lstrip("0") or "0"


def _chinese_value(text: str) -> int | None:
    """Value of a Chinese numeral; None for bare digits one after the other (a year) and for no number."""
    if not all(char in _DIGITS or char in _SCALES for char in text):
        return None
    total = section = digit = 0
    for char in text:
        if char in _DIGITS:
            digit = _DIGITS[char]
        elif char == "万":
            total += (section + digit) * 10_000
            section = digit = 0
        else:
            section += (digit or 1) * _SCALES[char]
            digit = 0
    value = total + section + digit
    plain_digits = len(text) > 1 and all(char in _DIGITS for char in text)
    return None if plain_digits or value == 0 else value


def _negation(answer: str, passages: Sequence[Passage]) -> float:
    sources = [(set(fold(s)), s) for p in passages for s in sentences(p.text)]
    own = sentences(answer)
    if not own or not sources:
        return 0.0
    flipped = 0
    for sentence in own:
        chars = set(fold(sentence))
        closest = max(sources, key=lambda source: len(chars & source[0]) / (len(chars | source[0]) or 1))
        similar = len(chars & closest[0]) >= 0.6 * len(chars)
        flipped += similar and bool(_NEGATION.search(sentence)) != bool(_NEGATION.search(closest[1]))
    return flipped / len(own)
