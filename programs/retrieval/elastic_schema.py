"""How rows lie in Elasticsearch, and how their words are cut. No call to Elasticsearch here.

Filters only ever hold digests and kinds, in `term` queries on keyword fields: a category is data of any
length with any characters, and a keyword may have 32,766 bytes. An `_id` may have 512 bytes, so it is
a digest as well.

Chinese and English are cut by `programs.retrieval.tokens`, also here: Elasticsearch sees the tokens
joined by spaces. A cut of the server's own can be added in a second field. Measured on Elasticsearch 9.5.3
(how often the right passage is among the first five): 120 public Chinese questions: tokens 0.958, the
analyzer `smartcn` alone 0.967, both 0.958; 51 public English questions: 0.961, 0.922, 0.961; 40 questions
with product codes, numbers and names of functions: 1.000, 0.950, 1.000; 595 pieces of 6 to 14 characters
copied out of passages: 0.847, 0.867, 0.859. And `smartcn` cuts 退货运费谁付 into 退, 货运费, 谁, 付, which
finds nothing in 无理由退货，运费由买家承担.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from programs.errors import StoreMismatch
from programs.retrieval import tokens
from programs.retrieval.base import Kind, Match, Row
from programs.retrieval.elastic_connection import NAME
from programs.retrieval.payload import passage_of, payload_of

SCHEMA_VERSION = 1
"""To be raised when the fields change."""

TOKENS = "tokens"
"""The analyzer that adds nothing to the tokens of `programs.retrieval.tokens`."""

STORED = ["id", "payload"]
"""Fields that a match is made of."""

SENTENCE = "本店支持七天无理由退货，运费由买家承担；电子发票可在订单页申请。"
PROBES = ("退货", "运费", "发票", "承担")
"""Words that must be found in `SENTENCE`."""

_TOKENIZERS = {"smartcn": "smartcn_tokenizer"}  # where the analyzer of this name has a tokenizer of another
_MAX_ID_BYTES = 32_766
_MAX_HAN = 200  # Chinese characters of a query: bounds its clauses, as an analyzer makes about one from each
_HAN = re.compile(r"[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_KEYWORD = {"type": "keyword"}


@dataclass(frozen=True, slots=True)
class Design:
    """An index before it is made.

    Attributes:
        identity: What its rows are made with; stands in `_meta`. Indexes of different identity must
            never be searched or written alike.
        fields: The searched fields, besides those that every index has.
        analysis: Settings of analysis.
    """

    identity: Mapping[str, str]
    fields: Mapping[str, Mapping[str, Any]]
    analysis: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """Eight digits that stand for the identity."""
        return digest(json.dumps(dict(self.identity), sort_keys=True))[:8]

    @property
    def mappings(self) -> dict[str, Any]:
        """What an index is made with. A field that is not named here is refused."""
        common = {
            "id": _KEYWORD,
            "kind": _KEYWORD,
            # For people, as far as a keyword can hold it; searched by its digest.
            "category": {"type": "keyword", "ignore_above": 8_000},
            "category_key": _KEYWORD,
            "payload": {"type": "object", "enabled": False},
        }
        return {"dynamic": "strict", "_meta": dict(self.identity), "properties": {**common, **self.fields}}

    @property
    def settings(self) -> dict[str, Any]:
        """A second copy where there is a second node."""
        return {"number_of_shards": 1, "auto_expand_replicas": "0-1", "analysis": self.analysis}

    def differences(self, mappings: Mapping[str, Any]) -> list[str]:
        """What an index with these mappings has otherwise: identity first, then fields."""
        found = mappings.get("_meta") or {}
        wrong = [
            f"{name}: {found.get(name)!r}, here {value!r}"
            for name, value in self.identity.items()
            if found.get(name) != value
        ]
        if mappings.get("dynamic") != "strict":
            wrong.append("unknown fields are not refused")
        types = {name: field.get("type") for name, field in (mappings.get("properties") or {}).items()}
        for name, field in self.mappings["properties"].items():
            if types.get(name) != field["type"]:
                wrong.append(f"field {name!r}: {types.get(name)}, here {field['type']}")
        return wrong


def dense_design(dimension: int, embedder: str) -> Design:
    """For vectors.

    `int8_hnsw`, as the default of recent servers loses one of ten neighbours. Searches score the nearest
    again with the whole numbers, which are kept: recall at 10 was 0.975 without and 1.000 with this on
    20,000 vectors of 384 numbers, in the same time, and only then is a score the cosine.
    """
    vector = {
        "type": "dense_vector",
        "dims": dimension,
        "index": True,
        "similarity": "cosine",
        "index_options": {"type": "int8_hnsw", "m": 16, "ef_construction": 100},
    }
    identity = {"store": "dense", "schema": str(SCHEMA_VERSION), "embedder": embedder, "dimension": str(dimension)}
    return Design(identity, {"vector": vector}, {})


def text_design(analyzer: str) -> Design:
    """For words, with the cut of `analyzer` in a second field unless it is `TOKENS`."""
    fields = {"words": {"type": "text", "analyzer": "words", "index_options": "freqs"}}
    analyzers: dict[str, Any] = {"words": {"type": "custom", "tokenizer": "whitespace"}}
    filters = {}
    if analyzer != TOKENS:
        # One analyzer for rows and queries: two cuts of one text are not subsets of each other.
        fields["han"] = {"type": "text", "analyzer": "han", "index_options": "freqs"}
        analyzers["han"] = {"type": "custom", "tokenizer": tokenizer_of(analyzer), "filter": ["grammar"]}
        filters["grammar"] = grammar_filter()
    identity = {
        "store": "text",
        "schema": str(SCHEMA_VERSION),
        "tokens": str(tokens.VERSION),
        "analyzer": analyzer,
    }
    return Design(identity, fields, {"analyzer": analyzers, "filter": filters})


def tokenizer_of(analyzer: str) -> str:
    """The server's tokenizer that belongs to a name such as `smartcn` or `ik_max_word`."""
    return _TOKENIZERS.get(analyzer, analyzer)


def grammar_filter() -> dict[str, Any]:
    """Drops what `tokens` drops, and the comma that `smartcn` makes from every sign."""
    return {"type": "stop", "stopwords": [*sorted(tokens.STOP_WORDS), ","]}


def han(text: str) -> str:
    """The Chinese of `text`, simplified; pieces that were apart stay apart."""
    return "。".join(_HAN.findall(tokens.fold(text)))


def text_query(query: str, analyzer: str) -> dict[str, Any] | None:
    """A query that any word of `query` satisfies; None where it has none."""
    terms = tokens.query_terms(query)
    if not terms:
        return None
    clauses = [{"match": {"words": {"query": " ".join(terms)}}}]
    if analyzer != TOKENS and (chinese := han(query)[:_MAX_HAN]):
        clauses.append({"match": {"han": {"query": chinese}}})
    return {"bool": {"should": clauses, "minimum_should_match": 1}}


def text_fields(text: str, analyzer: str) -> dict[str, str]:
    """The searched fields of a row."""
    fields = {"words": " ".join(tokens.tokenize(text))}
    return fields if analyzer == TOKENS else {**fields, "han": han(text)}


def missed(cut: Callable[[str], Iterable[str]]) -> list[str]:
    """The words of `PROBES` that a search with this cut would not find in `SENTENCE`."""
    known = set(cut(SENTENCE))
    return [word for word in PROBES if not known & set(cut(word))]


def conditions(kind: Kind, category: str | None) -> list[dict[str, Any]]:
    """The filter for a kind and, where it is not None, exactly one category."""
    terms = {"kind": str(kind)} if category is None else {"kind": str(kind), "category_key": digest(category)}
    return [{"term": {field: {"value": value}}} for field, value in terms.items()]


def digest(value: str) -> str:
    """32 hexadecimal digits that stand for `value`.

    Raises:
        TypeError: `value` is no string.
    """
    if not isinstance(value, str):
        raise TypeError(f"a key is a string, not {type(value).__name__}")
    return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def pack(rows: Sequence[Row], extra: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rows as Elasticsearch takes them, by `_id`; of several with one id the last one stays.

    Args:
        rows: What is written.
        extra: The searched fields, by row.

    Raises:
        StoreMismatch: An id is too long for a keyword, or no Unicode; names the row.
    """
    packed = {}
    for row, fields in zip(rows, extra, strict=True):
        if not _is_key(row.id):
            raise StoreMismatch(f"The row id {row.id[:40]!r}… is too long or not valid Unicode.", store=NAME)
        packed[digest(row.id)] = {
            "id": row.id,
            "kind": row.kind,
            "category": row.passage.category,
            "category_key": digest(row.passage.category),
            "payload": payload_of(row),
            **fields,
        }
    return packed


def unpack(hit: Mapping[str, Any], score: float) -> Match:
    """A match from the stored fields.

    Raises:
        StoreMismatch: The payload is not a passage of this version.
    """
    source = hit["_source"]
    try:
        return Match(str(source["id"]), passage_of(source["payload"]), score)
    except ValidationError as error:
        raise StoreMismatch(
            f"The row {source['id']!r} holds another kind of passage.",
            store=NAME,
            hint="adaptive-rag index --rebuild PATH… reads the files again.",
        ) from error


def _is_key(row_id: str) -> bool:
    try:
        return len(row_id.encode()) <= _MAX_ID_BYTES
    except UnicodeEncodeError:
        return False
