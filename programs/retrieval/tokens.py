"""The words of a text, for every text store that is searched by words cut here.

The same function runs when a passage is indexed and when a query is searched: two different
cuts of Chinese are not subsets of each other, and a store then finds nothing. `VERSION` names
the rules; an index that was made under other rules must be made anew.
"""

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

VERSION = 2
"""To be raised with every change that gives other tokens for some text."""

MAX_LENGTH = 100
"""Longer tokens, such as encoded data, are cut to so many characters; indexes refuse very long ones."""

# Words of grammar, in nearly every passage. Negations, question words and numbers are content.
_GRAMMAR = """
的 了 吗 呢 吧 啊 呀 嘛 哦 哈 着 地 得 之 其 和 与 及 或 以及 并 且 而 则 在 于 也 都 就 还 很 把 被 将 由 向 从 是
这 那 我 你 您 他 她 它 我们 你们 他们 请 请问 一下
a an the of to in on at is are was be and or for with
"""
STOP_WORDS = frozenset(_GRAMMAR.split())

_UNITS = (
    "万元|亿元|美元|新元|欧元|港元|元|块钱|块|个月|个工作日|工作日|个小时|小时|分钟|毫秒|秒|年|月|日|号|天|周|点|"
    "公里|千米|厘米|毫米|平方米|米|千克|公斤|毫克|克|吨|升|次|条|路|项|种|份|页|人|名|位|岁|倍|级|个|台|套|件|户|用户|"
    "兆|字节|度|千瓦时|千瓦|瓦|伏|安|折|成|季度|"
    r"(?:[kmgt]i?b|[kmg]?hz|[km]?bps|k?wh|[mk]?[wv]|ms|min|km|cm|mm|kg|mg|ml|℃|°c|px|tokens?)(?![a-z])|[%‰]"
)
_HAN = r"\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(
    rf"(?P<han>[{_HAN}]+)"
    # Possessive, as backtracking into a run of digits takes quadratic time.
    rf"|(?P<number>\d{{1,3}}(?:,\d{{3}})++(?:\.\d++)?+|\d++(?:\.\d++)*+)(?![^\W{_HAN}])"
    rf"|(?P<word>[^\W{_HAN}]+(?:[-.](?=\d)[^\W{_HAN}]+)*)(?:['’](?:s|t|d|m|re|ve|ll)\b)?"
)
_UNIT = re.compile(rf" ?({_UNITS})", re.IGNORECASE)
_PART = re.compile(r"[A-Z]{2,}s(?![a-z])|[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+(?:\.\d+)*")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufe00-\ufe0f]")
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")


def fold(text: str) -> str:
    """`text` with differences of writing removed: width, compatibility forms, case, script.

    Full-width becomes half-width, traditional Chinese simplified, capitals small, and invisible
    characters vanish. For searching and comparing only; what a reader sees is never folded.
    """
    return _simplify(_narrow(text)).lower()


def tokenize(text: str) -> list[str]:
    """The tokens of `text` in reading order, with repetitions; [] where it has none.

    - Chinese: words of the dictionary, the shorter words inside them, and pairs of characters; simplified.
    - English: lower case, stemmed.
    - Identifiers and codes: whole, and each part at a change of case, `_`, `-` or digit:
      `refresh_access_token` gives `refresh_access_token refresh access token`.
    - Numbers: without thousands separator; before a unit also joined with it: `50 元` gives `50元 50 元`.

    Punctuation and symbols are no tokens. Words of `STOP_WORDS` are left out, except where
    nothing else would remain. No token contains white space.
    """
    return _kept(text, pairs=True)


def words(text: str) -> set[str]:
    """The distinct tokens of `text` without the pairs of characters, for comparing two texts word by word."""
    return set(_kept(text, pairs=False))


def _kept(text: str, *, pairs: bool) -> list[str]:
    tokens = [token[:MAX_LENGTH] for token in _tokens(_simplify(_narrow(_unlist(text))), pairs=pairs)]
    return [token for token in tokens if token not in STOP_WORDS] or tokens


def query_terms(text: str, limit: int = 128) -> list[str]:
    """The first `limit` distinct tokens of `text`, in reading order.

    The limit keeps a long generated text from becoming a query of thousands of clauses.
    """
    return list(dict.fromkeys(tokenize(text)))[:limit]


def _narrow(text: str) -> str:
    # A lone surrogate cannot be encoded, and both the converter and the index encode.
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", _UNUSABLE.sub(" ", text)))


def _unlist(text: str) -> str:
    # Folded, the comma of a Chinese list would look like a thousands separator: 100，200 is two numbers.
    return text.replace("，", " ")


def _simplify(text: str) -> str:
    return text if text.isascii() else str(_converter().convert(text))


def _tokens(text: str, *, pairs: bool) -> Iterator[str]:
    for match in _WORD.finditer(text):
        piece = match.group()
        if match.lastgroup == "han":
            yield from _cut(piece, pairs=pairs)
        elif match.lastgroup == "number":
            number = piece.replace(",", "")
            if unit := _UNIT.match(text, match.end()):
                yield number + unit.group(1).lower()
            yield number
        else:
            yield from _identifier(match["word"])


def _identifier(word: str) -> Iterator[str]:
    whole = word.strip("_").lower()
    if not whole:
        return
    # LB-200 and LB200 are written for the same thing.
    yield _stem(whole.replace("-", ""))
    parts = _PART.findall(word) if word.isascii() else word.strip("_").split("_")
    if len(parts) > 1:
        # A single letter finds too much; a single digit only counts where it leads, as in 5GB.
        yield from (_stem(part.lower()) for part in parts if len(part) > 1 or (part.isdigit() and word[0] == part))


def _stem(word: str) -> str:
    return _english(word) if len(word) <= MAX_LENGTH and word.isascii() and word.isalpha() else word


def _cut(text: str, *, pairs: bool) -> Iterator[str]:
    # The words of the search mode, then pairs of neighbouring characters that are no word of it. Words alone
    # miss what was cut otherwise in the query than in the passage, such as a phrase copied out of a sentence.
    import rjieba

    found = rjieba.cut_for_search(text)
    yield from found
    if not pairs:
        return
    known = set(found)
    yield from (pair for pair in map("".join, pairwise(text)) if pair not in known)


_local = threading.local()


@lru_cache(maxsize=65536)
def _english(word: str) -> str:
    # A stemmer keeps its state on itself, so each thread has its own.
    if not hasattr(_local, "stemmer"):
        import snowballstemmer

        _local.stemmer = snowballstemmer.stemmer("english")
    return str(_local.stemmer.stemWord(word))


@cache
def _converter() -> Any:
    import opencc

    return opencc.OpenCC("t2s")
