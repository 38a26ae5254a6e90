"""From several ranked lists to one: reciprocal rank fusion, and a fair mix of several questions.

Ranks are fused, not scores: a cosine and a BM25 have no common scale. Reciprocal rank fusion is from
Cormack, Clarke and Büttcher, SIGIR 2009; the constant 60 is theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from programs.retrieval.base import Match
from programs.retrieval.plan import RouteName
from signatures.records import Hit, Passage

RANK_CONSTANT = 60


@dataclass(frozen=True, slots=True)
class RankedList:
    """What one search of one route gave, best first.

    Attributes:
        route: The route.
        matches: Its matches; several may belong to one passage.
        weight: Weight in the fusion, from 0 up.
    """

    route: RouteName
    matches: Sequence[Match]
    weight: float = 1.0


def fuse(lists: Sequence[RankedList]) -> list[Hit]:
    """One list of hits, best first, each passage once; ties by passage id.

    A score is the weighted sum of 1 / (60 + rank) over the lists that hold the passage, ranks from 1,
    divided by the sum a passage would have that is first in every list: 1.0 is unanimous. A list
    that is empty still counts below the line, so that agreement of few is worth less than of many.
    """
    ideal = sum(ranked.weight for ranked in lists) / (RANK_CONSTANT + 1)
    sums: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    routes: dict[str, dict[str, None]] = {}
    raw: dict[str, dict[str, float]] = {}
    for ranked in lists:
        for rank, match in enumerate(_first_of_each(ranked.matches), start=1):
            key = match.passage.id
            passages.setdefault(key, match.passage)
            sums[key] = sums.get(key, 0.0) + ranked.weight / (RANK_CONSTANT + rank)
            routes.setdefault(key, {})[ranked.route] = None
            known = raw.setdefault(key, {})
            known[ranked.route] = max(match.score, known.get(ranked.route, match.score))
    hits = [
        Hit(
            passage=passages[key],
            score=min(1.0, total / ideal) if ideal > 0 else 0.0,
            routes=tuple(routes[key]),
            raw=raw[key],
        )
        for key, total in sums.items()
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.passage.id))


def interleave(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """The first of each list, then the second of each …, each passage once.

    For the parts of a comparison: each side must be among the passages, even if all passages of
    one side score higher than the best of the other.
    """
    mixed: dict[str, Hit] = {}
    for rank in range(max((len(hits) for hits in lists), default=0)):
        for hits in lists:
            if rank < len(hits):
                mixed.setdefault(hits[rank].passage.id, hits[rank])
    return list(mixed.values())


def _first_of_each(matches: Sequence[Match]) -> list[Match]:
    best: Mapping[str, Match] = {match.passage.id: match for match in reversed(matches)}
    return sorted(best.values(), key=lambda match: (-match.score, match.passage.id))
