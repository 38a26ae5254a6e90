"""Measures the parts of the program on public labelled questions and judgements that lie outside of this project.

    python -m optimize.public FOLDER                                # what needs no language model, and what is recorded
    python -m optimize.public FOLDER --task grounding --record      # ask the language model about the rest, first
    python -m optimize.public FOLDER --task route --task clarify --json figures.json

FOLDER holds `route.jsonl`, `clarify.jsonl`, `relevance.jsonl`, `grounding.jsonl` and `utility.jsonl`, or some of
them; `optimize.public_rows` says what a row is. Only `--record` makes calls; recordings go on where they stopped.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import get_args

from data.loading import DataError
from optimize.public_judges import measure_judge
from optimize.public_report import Report
from optimize.public_router import measure_clarify, measure_route
from optimize.public_rows import JUDGE_ROWS, ClarifyRow, RouteRow, Task, load_rows, row_groups
from optimize.tracking import git_commit
from programs.build import build_resources, compiled_program
from programs.errors import AdaptiveRAGError
from programs.module import Resources
from programs.retrieval.base import Embedder
from programs.retrieval.embedding import load_embedder
from programs.settings import load_settings
from programs.similarity import Similarity

TASKS: tuple[Task, ...] = get_args(Task)


def measure(arguments: argparse.Namespace, task: Task, resources: Resources, embedder: Embedder) -> Report:
    """Measure one task.

    Raises:
        DataError: A row is wrong.
    """
    folder, quick, limit = arguments.folder, arguments.quick, arguments.limit
    if task == "route":
        return measure_route(load_rows(folder, RouteRow, quick=quick, limit=limit), resources, embedder)
    if task == "clarify":
        return measure_clarify(load_rows(folder, ClarifyRow, quick=quick, limit=limit), resources, embedder)
    rows = load_rows(folder, JUDGE_ROWS[task], quick=quick, limit=limit)
    cases = [row.case(group) for row, group in zip(rows, row_groups(rows), strict=True)]
    return measure_judge(task, cases, resources, Similarity(embedder), record=arguments.record)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m optimize.public", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds the files of rows")
    parser.add_argument("--task", choices=[*TASKS, "all"], action="append", help="which; all when none is named")
    parser.add_argument("--lm", help="language model, as in ADAPTIVE_RAG_LM")
    parser.add_argument("--record", action="store_true", help="ask it about rows that are not recorded yet")
    parser.add_argument("--quick", action="store_true", help="only the rows that are marked as quick")
    parser.add_argument("--limit", type=int, help="most rows of a task")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures, and each row's, to a file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = _parser().parse_args(argv)
    named = arguments.task or ["all"]
    wanted = [task for task in TASKS if task in named or "all" in named]
    there = [task for task in wanted if (arguments.folder / f"{task}.jsonl").is_file()]
    missing = [f"{task}.jsonl" for task in wanted if task not in there]
    if missing:
        sys.stderr.write(f"{arguments.folder} holds no {', '.join(missing)}\n")
    if not there or (missing and "all" not in named):
        return 1
    try:
        settings = load_settings(**({"lm": arguments.lm} if arguments.lm else {}))
        embedder = load_embedder(settings.embedder)
        resources = compiled_program(build_resources(settings)).resources
        reports = []
        with closing(resources):
            for task in there:
                reports.append(measure(arguments, task, resources, embedder))
                sys.stdout.write(f"{reports[-1].text()}\n")
                sys.stdout.flush()
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except AdaptiveRAGError as error:
        sys.stderr.write(f"{error.message}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return 1
    if arguments.json:
        made = {
            "lm": {role: resources.lms.identity(role) for role in ("router", "judge")},
            "embedder": embedder.name,
            "git": git_commit(),
            "quick": arguments.quick,
            "limit": arguments.limit,
            "tasks": {report.task: report.record() for report in reports},
        }
        arguments.json.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
