"""The gate: whether a candidate may take the baseline's place. A pure function over two tables of cases.

Every rule has to pass, so a rule more can only make promotions rarer. Two of them speak of chance:

- **gain**: the 95 % interval of the paired gain on test lies above zero, and a permutation test agrees
  (p at most 0.025), because the interval is too narrow where few cases differ. A candidate that is no
  better passes in at most 2.5 % of runs, also when it was the best of many on dev: test is touched once,
  by the one candidate that dev chose, so there is no choice on test to correct for.
- **slices**: no intent and no kind of failure with enough cases lies below zero with its whole one-sided
  95 % interval. There are many slices, and this is *not* corrected for their number. A correction (Holm,
  Bonferroni) protects the candidate from being refused by chance; here the users of the slice are to be
  protected, and a candidate that is refused by chance costs another compile, nothing else. With ten cases
  or so a corrected test would see nothing but a collapse.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from optimize.cases import COSTS, CaseRow, mean_cost, paired
from optimize.statistics import interval, paired_gain, sign_flip

SPLIT = "test"
MIN_SLICE = 10
"""Cases from which on a slice is looked at; with fewer, two unlucky ones would decide."""
MAX_COST = 0.2
"""How much more each of `COSTS` may be, as a share of the baseline's."""
CHANCE = 0.025
"""Of a one-sided test; with a 95 % interval each side has as much."""


@dataclass(frozen=True)
class Check:
    """One rule: its name, whether it let the candidate through, and why."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True)
class Judgement:
    """What the gate says.

    Attributes:
        checks: One for each rule, in the order they are told.
        gain: Mean paired gain on test with its 95 % interval; [0, 0, 0] without common cases.
        before, after: Mean score on test with its 95 % interval.
        cost: Cost of a case on test by name: baseline's and candidate's, None where not measured.
        cases: Test cases that both have.
    """

    checks: tuple[Check, ...]
    gain: list[float]
    before: list[float]
    after: list[float]
    cost: dict[str, tuple[float | None, float | None]]
    cases: int

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def judge(
    baseline: Sequence[CaseRow],
    candidate: Sequence[CaseRow],
    *,
    data_then: str,
    data_now: str,
    signature_problem: str = "",
    min_slice: int = MIN_SLICE,
    max_cost: float = MAX_COST,
) -> Judgement:
    """Hold a candidate against the baseline.

    Args:
        baseline, candidate: Their tables; only rows of the split `test` are used.
        data_then: Digest of the labelled cases that the run was scored on.
        data_now: Digest of the labelled cases as they are today.
        signature_problem: Why the state does not fit today's signatures, "" when it does.
        min_slice: Cases from which on an intent or kind is looked at.
        max_cost: How much more a case may cost, as a share of the baseline's cost.
    """
    before = [row for row in baseline if row.split == SPLIT]
    after = [row for row in candidate if row.split == SPLIT]
    pairs = paired(before, after)
    gains, groups = [b.score - a.score for a, b in pairs], [a.group for a, _ in pairs]
    gain = paired_gain([a.score for a, _ in pairs], [b.score for _, b in pairs], groups)
    cost = {name: (mean_cost(before, name), mean_cost(after, name)) for name in COSTS}
    checks = (
        _same_data(data_then, data_now),
        Check("signatures", not signature_problem, signature_problem or "the state fits today's signatures"),
        _same_cases(before, after),
        _gain(gain, gains, groups),
        _slices(pairs, min_slice),
        *(_cost(name, *both, max_cost) for name, both in cost.items()),
    )
    return Judgement(
        checks=checks,
        gain=gain,
        before=interval([row.score for row in before], [row.group for row in before]),
        after=interval([row.score for row in after], [row.group for row in after]),
        cost=cost,
        cases=len(pairs),
    )


def _same_data(then: str, now: str) -> Check:
    if then == now and now:
        return Check("data", True, f"scored on today's labelled cases ({now})")
    return Check("data", False, f"scored on the labelled cases {then or '?'}, today's are {now or '?'}: score again")


def _same_cases(before: Sequence[CaseRow], after: Sequence[CaseRow]) -> Check:
    known = {row.id: (row.group, row.kind, row.expected) for row in before}
    other = {row.id: (row.group, row.kind, row.expected) for row in after}
    apart = sorted(known.keys() ^ other.keys())
    changed = sorted(name for name in known.keys() & other.keys() if known[name] != other[name])
    if not known or not other:
        return Check("cases", False, f"test cases: {len(known)} of the baseline, {len(other)} of the candidate")
    if apart or changed:
        return Check(
            "cases",
            False,
            f"{len(apart) + len(changed)} test cases differ, such as {', '.join([*apart, *changed][:3])}",
        )
    return Check("cases", True, f"the same {len(known)} test cases on both sides")


def _gain(gain: Sequence[float], gains: Sequence[float], groups: Sequence[str]) -> Check:
    chance = sign_flip(gains, groups)
    text = f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}], p {chance:.3f}"
    if gain[1] <= 0:
        return Check("gain", False, f"{text}: the interval does not lie above zero")
    if chance > CHANCE:
        return Check("gain", False, f"{text}: too few cases differ to rule out chance")
    return Check("gain", True, text)


def _slices(pairs: Sequence[tuple[CaseRow, CaseRow]], min_slice: int) -> Check:
    slices: dict[str, list[tuple[CaseRow, CaseRow]]] = {}
    for pair in pairs:
        for attribute in ("intent", "kind"):
            if value := getattr(pair[0], attribute):
                slices.setdefault(f"{attribute} {value}", []).append(pair)
    known = {name: own for name, own in slices.items() if len(own) >= min_slice}
    worse = []
    for name, own in sorted(known.items()):
        # The upper end of a two-sided 90 % interval is that of a one-sided 95 % interval.
        gain, _, high = paired_gain(
            [a.score for a, _ in own], [b.score for _, b in own], [a.group for a, _ in own], level=0.9
        )
        if high < 0:
            worse.append(f"{name} {gain:+.3f} (at most {high:+.3f}, n {len(own)})")
    if worse:
        return Check("slices", False, f"worse beyond noise: {'; '.join(worse)}")
    return Check("slices", True, f"none of {len(known)} intents and kinds with {min_slice} cases or more is worse")


def _cost(name: str, before: float | None, after: float | None, bound: float) -> Check:
    if before is None and after is None:
        return Check(name, True, "not measured")
    if before is None or after is None:
        return Check(name, False, "measured on one side only")
    text = f"{before:.4g} → {after:.4g} a case"
    if after > before * (1 + bound) + 1e-9:
        return Check(name, False, f"{text}: more than {bound:+.0%}")
    return Check(name, True, text)
