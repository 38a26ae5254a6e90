"""How well each route, and each plan, finds the passages that hold the answer.

    python -m optimize.eval_retrieval [--split test] [--lm LINE] [--output FILE]

Searches the sample knowledge base and the sample code on the stores that the settings name, once per
route and once per plan, and prints recall@1/3/5/8, nDCG@5 and MRR with bootstrap intervals, by intent and by
language. Without `--lm` the routes that need a language model are left out, of plans too. Logged to
MLflow where a tracking URI is set.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from data.loading import load_question_cases
from data.schema import QuestionCase
from optimize.gold import CORPUS, SAMPLE_CODE, GoldPassages, ndcg, recall, reciprocal_rank
from optimize.phrases import Phrases
from optimize.statistics import interval
from optimize.tracking import finish, git_commit, new_run
from programs import budget
from programs.build import default_reranker
from programs.retrieval.base import Embedder
from programs.retrieval.embedding import load_embedder
from programs.retrieval.pipeline import Searcher
from programs.retrieval.plan import ROUTES, Index, RetrievalPlan, RouteName
from programs.settings import load_settings
from programs.similarity import Similarity
from programs.stores import INDEXES, Stores
from programs.strategies import STRATEGY_TABLE

DEPTH = 20
"""Passages that are looked at of each ranking."""
LM_ROUTES: tuple[RouteName, ...] = ("rewritten", "hypothetical")


@dataclass(frozen=True)
class Ranked:
    """What one search found for one case.

    Attributes:
        case: The case.
        index: Which index was searched.
        gold: Ids of its gold passages.
        ranked: Ids of what was found, best first.
    """

    case: QuestionCase
    index: Index
    gold: tuple[str, ...]
    ranked: tuple[str, ...]

    def figures(self) -> dict[str, float]:
        """Metrics of this ranking, each in [0, 1]."""
        found = {f"recall@{k}": recall(self.ranked, self.gold, k, either=self.case.either) for k in (1, 3, 5, 8)}
        found["kept@5"] = len(self.ranked[:5]) / 5  # what the loop reads of five places
        return found | {"ndcg@5": ndcg(self.ranked, self.gold, 5), "mrr": reciprocal_rank(self.ranked, self.gold)}


def searches() -> dict[str, dict[Index, RetrievalPlan]]:
    """What is measured: each route by itself, and the plans of the strategies."""
    alone: dict[str, dict[Index, RetrievalPlan]] = {
        route: {
            index: RetrievalPlan(index=index, routes=(route,), top_k=DEPTH, rough_top_k=DEPTH, rerank=False)
            for index in INDEXES
        }
        for route in ROUTES
    }
    plans = {name: entry.plan for name, entry in STRATEGY_TABLE.items() if entry.plan is not None}
    fused = {f"plan {name}": {plan.index: plan.patched({"top_k": DEPTH})} for name, plan in plans.items()}
    # What an index that was never enriched gives, and what summaries would add.
    standard: RetrievalPlan = plans["standard_retrieval"].patched({"top_k": DEPTH})
    variants: dict[str, tuple[RouteName, ...]] = {
        "dense + text": ("dense", "text"),
        "dense + text + questions + summaries": ("dense", "text", "questions", "summaries"),
    }
    others: dict[str, dict[Index, RetrievalPlan]] = {
        f"{name}{'' if rerank else ', fused order'}": {
            "documents": standard.model_copy(update={"routes": routes, "rerank": rerank})
        }
        for name, routes in {**variants, "dense + text + questions": ("dense", "text", "questions")}.items()
        for rerank in (True, False)
    }
    others["standard_retrieval, nothing dropped"] = {"documents": standard.patched({"relative_threshold": 0.0})}
    return {**alone, **fused, **others}


def without_lm(plan: RetrievalPlan) -> RetrievalPlan | None:
    """The plan without the routes that need a language model; None when nothing is left."""
    routes = tuple(route for route in plan.routes if route not in LM_ROUTES)
    return plan.model_copy(update={"routes": routes}) if routes else None


async def rank(
    searcher: Searcher, plan: RetrievalPlan, cases: Sequence[QuestionCase], gold: GoldPassages, phrases: Phrases | None
) -> list[Ranked]:
    """Search every case with a plan.

    Raises:
        RuntimeError: A store failed; a figure on what is left would be wrong.
    """
    done = []
    for case in cases:
        with budget.spending(budget.Budget()):
            found = await searcher.search(
                [case.question],
                plan,
                category=case.category,
                rewritten=phrases.formal(case.question) if phrases and "rewritten" in plan.routes else "",
                hypothetical=phrases.hypothetical(case.question) if phrases and "hypothetical" in plan.routes else "",
            )
        if found.outages:
            raise RuntimeError(f"{case.id}: {found.degraded}")
        wanted = tuple(gold.find(one).id for one in case.gold)
        done.append(Ranked(case, plan.index, wanted, tuple(hit.passage.id for hit in found.hits)))
    return done


def table(rankings: dict[str, list[Ranked]], choose: Callable[[Ranked], bool]) -> list[dict[str, object]]:
    """One row per search: name, cases, and each figure as [value, low, high]."""
    rows: list[dict[str, object]] = []
    for name, ranked in rankings.items():
        chosen = [one for one in ranked if choose(one)]
        if not chosen:
            continue
        groups = [one.case.group for one in chosen]
        figures = [one.figures() for one in chosen]
        row: dict[str, object] = {"search": name, "cases": len(chosen)}
        rows.append(row | {key: interval([f[key] for f in figures], groups) for key in figures[0]})
    return rows


def index_of(case: QuestionCase) -> Index:
    """The index that holds the answer of a case."""
    return "code" if case.gold[0].document_id.startswith("code/") else "documents"


@contextmanager
def eval_stores() -> Iterator[tuple[Searcher, Embedder, GoldPassages]]:
    """The sample knowledge base and code on the stores of the settings, in indexes of their own.

    Raises:
        RuntimeError: Not everything could be indexed.
    """
    settings = load_settings(home=load_settings().home / "eval", store_prefix="adaptive_rag_eval")
    embedder = load_embedder(settings.embedder)
    stores = Stores(settings, embedder)
    try:
        passages = []
        with stores.writing():
            for index, folder in zip(INDEXES, (CORPUS, SAMPLE_CODE), strict=True):
                indexer = stores.indexer(index)
                report = indexer.index_paths([folder], prune=True)
                if report.failed:
                    raise RuntimeError(f"not everything was indexed: {report.failed}")
                passages += indexer.passages([folder])
        sys.stderr.write(f"stores: {stores.dense('documents').name} + {stores.text('documents').name}\n")
        # With the settings a user would have: the reranker is the one that `build_resources` takes.
        reranker = default_reranker(settings, Similarity(embedder))
        yield (
            Searcher({index: stores.index(index) for index in INDEXES}, embedder, reranker),
            embedder,
            GoldPassages(passages),
        )
    finally:
        stores.close()


def evaluate(split: str, line: str | None) -> dict[str, list[Ranked]]:
    """All rankings by the name of the search.

    Args:
        split: Of the labelled questions; `all` for every one.
        line: Language model for the routes that need one, as in `ADAPTIVE_RAG_LM`; None leaves them out.
    """
    with eval_stores() as (searcher, _, gold):
        cases = [case for case in load_question_cases() if case.gold and split in ("all", case.split)]
        phrases = Phrases(load_settings(lm=line)) if line else None
        rankings: dict[str, list[Ranked]] = {}
        for name, by_index in searches().items():
            for index, plan in by_index.items():
                wanted = plan if phrases else without_lm(plan)
                if wanted is None:
                    continue
                own = [case for case in cases if index_of(case) == index]
                sys.stderr.write(f"{name} ({index}): {len(own)}\n")
                rankings.setdefault(name, []).extend(asyncio.run(rank(searcher, wanted, own, gold, phrases)))
        return rankings


def render(rows: Sequence[dict[str, object]]) -> str:
    """Rows as a Markdown table."""
    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    for row in rows:
        cells = [f"{v[0]:.3f} [{v[1]:.3f}, {v[2]:.3f}]" if isinstance(v := row[key], list) else str(v) for key in keys]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m optimize.eval_retrieval")
    parser.add_argument("--split", default="test", choices=["train", "dev", "test", "all"])
    parser.add_argument("--lm", help="language model for the routes that need one, as in ADAPTIVE_RAG_LM")
    parser.add_argument("--output", type=Path, help="also write all rankings as JSON")
    arguments = parser.parse_args(argv)
    rankings = evaluate(arguments.split, arguments.lm)
    parts: dict[str, Callable[[Ranked], bool]] = {
        "documents": lambda one: one.index == "documents",
        "code": lambda one: one.index == "code",
        "zh": lambda one: one.index == "documents" and one.case.lang == "zh",
        "en": lambda one: one.index == "documents" and one.case.lang == "en",
        **{intent: partial(_of_intent, intent) for intent in ("FACT_LOOKUP", "HOW_TO", "COMPARISON")},
    }
    tables = {part: table(rankings, choose) for part, choose in parts.items()}
    for part, rows in tables.items():
        sys.stdout.write(f"\n### {part}, {arguments.split}\n\n{render(rows)}" if rows else "")
    if arguments.output:
        record = {
            name: [{"id": o.case.id, "gold": o.gold, "ranked": o.ranked, **o.figures()} for o in ranked]
            for name, ranked in rankings.items()
        }
        arguments.output.write_text(json.dumps(record, ensure_ascii=False, indent=1), encoding="utf-8")
    log(arguments.split, arguments.lm or "", tables)
    return 0


def _of_intent(intent: str, one: Ranked) -> bool:
    return one.index == "documents" and one.case.intent == intent


def log(split: str, line: str, tables: dict[str, list[dict[str, object]]]) -> None:
    """Keep the figures as a run."""
    run = new_run("retrieval", f"retrieval {split}")
    run.params = {"split": split, "lm": line, "git": git_commit()}
    for row in tables["documents"]:
        figures = {key: value for key, value in row.items() if isinstance(value, list)}
        run.metrics |= {f"{row['search']}/{key}": value[0] for key, value in figures.items()}
    run.write_json("tables.json", tables)
    finish(run)


if __name__ == "__main__":
    sys.exit(main())
