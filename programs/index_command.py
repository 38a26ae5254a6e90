"""The command `adaptive-rag index`: its options, and what they do.

Imports are late, so that `--help` and a wrong option answer at once.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from programs.exit_codes import ANSWERED, ERROR, NO_ANSWER, USAGE

if TYPE_CHECKING:
    from programs.rendering import Progress
    from programs.retrieval.indexing import Indexer
    from programs.retrieval.plan import Index


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files or folders")
    parser.add_argument("--category", help="category of documents that name none (default: their folder)")
    parser.add_argument("--code", action="store_true", help="read source files into the code index")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--delete", action="store_true", help="remove the documents of PATH from the index")
    parser.add_argument("--prune", action="store_true", help="also remove documents whose file is gone")
    action.add_argument("--rebuild", action="store_true", help="make the index anew; the old one serves until then")
    parser.add_argument(
        "--enrich", action="store_true", help="first let the language model write questions for each passage"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="read and embed in the processes of a Ray cluster (none given: one on this machine)",
    )
    parser.add_argument(
        "--copy-to",
        type=Path,
        metavar="FILE",
        help="copy all indexes (with --code that one) to the stores of the settings in FILE, reading no source",
    )
    parser.add_argument(
        "--export-enrichment",
        type=Path,
        metavar="FILE",
        help="write what is known about the passages of PATH (none given: about all) into FILE, to review and share",
    )
    parser.add_argument("--summaries", action="store_true", help="with --enrich: also a summary of each passage")
    parser.add_argument("--yes", action="store_true", help="with --enrich: do not ask whether the cost is right")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; the exit code is the result."""
    from programs.build import build_indexer
    from programs.rendering import Progress, print_index_report

    if arguments.copy_to:
        return _copy(arguments)
    if arguments.export_enrichment:
        return _export(arguments)
    if arguments.ray and Path(arguments.ray).exists():
        # `--ray PATH`: what was meant is a path.
        arguments.paths.append(Path(arguments.ray))
        arguments.ray = ""
    if not arguments.paths:
        _usage("index needs at least one PATH")
    missing = [str(path) for path in arguments.paths if not path.exists()]
    if missing and not arguments.delete:
        _usage(f"no such file or folder: {', '.join(missing)}")
    index: Index = "code" if arguments.code else "documents"
    with Progress(enabled=True) as progress, build_indexer(index, ray=arguments.ray) as indexer:
        if arguments.delete:
            report = indexer.delete(arguments.paths)
        elif arguments.enrich and not _enrich(indexer, arguments, progress):
            return NO_ANSWER
        elif arguments.rebuild:
            report = indexer.rebuild(arguments.paths, category=arguments.category, on_progress=progress.long_step)
        else:
            report = indexer.index_paths(
                arguments.paths, category=arguments.category, prune=arguments.prune, on_progress=progress.long_step
            )
    print_index_report(report)
    return ERROR if report.failed else ANSWERED


def _copy(arguments: argparse.Namespace) -> int:
    from programs.build import copy_stores
    from programs.rendering import Progress, print_copy_report
    from programs.stores import INDEXES

    if arguments.paths or _given(arguments) - {"copy_to", "code", "summaries", "yes"}:
        _usage("index --copy-to goes with --code only: what is in the index is copied")
    with Progress(enabled=True) as progress:
        reports = copy_stores(
            arguments.copy_to, ("code",) if arguments.code else INDEXES, on_progress=progress.long_step
        )
    for index, report in reports.items():
        print_copy_report(index, report)
    if not reports:
        _usage("nothing to copy: the index is empty")
    return ERROR if any(report.failed for report in reports.values()) else ANSWERED


def _enrich(indexer: "Indexer", arguments: argparse.Namespace, progress: "Progress") -> bool:
    """Write what is missing about the passages of the paths; False when the user does not want to pay."""
    from programs.build import build_enricher
    from programs.rendering import print_cost, print_failures
    from programs.settings import load_settings

    settings = load_settings()
    enricher = build_enricher(settings, summaries=arguments.summaries, on_progress=progress.long_step)
    passages = indexer.passages(arguments.paths, category=arguments.category)
    cost = enricher.cost(passages)
    print_cost(cost, settings.currency)
    if not cost.passages:
        return True
    if not arguments.yes and not _agreed():
        return False
    print_failures(enricher.run(passages, on_progress=progress.long_step))
    return True


def _agreed() -> bool:
    if not sys.stdin.isatty():
        _usage("--enrich needs --yes where nobody can be asked")
    return input("继续？[y/N] ").strip().lower() in ("y", "yes", "是")


def _export(arguments: argparse.Namespace) -> int:
    """Write enrichments into a file; what people changed in it before is kept."""
    from programs.build import build_indexer
    from programs.rendering import Progress, print_export
    from programs.retrieval.enrichment import EnrichmentCache, enrichment_key, read_enrichments, write_enrichments
    from programs.settings import load_settings

    if _given(arguments) - {"export_enrichment", "paths", "code"}:
        _usage("index --export-enrichment goes with PATH and --code only: nothing is indexed")
    missing = [str(path) for path in arguments.paths if not path.exists()]
    if missing:
        _usage(f"no such file or folder: {', '.join(missing)}")
    settings = load_settings()
    cache = EnrichmentCache(settings.enrichment_file)
    if arguments.export_enrichment.is_file():
        cache.add(read_enrichments(arguments.export_enrichment))
    without = 0
    if arguments.paths:
        with Progress(enabled=True), build_indexer("code" if arguments.code else "documents", settings) as indexer:
            keys = list(dict.fromkeys(enrichment_key(one) for one in indexer.passages(arguments.paths)))
        known = cache.newest(keys)
        found = [known[key] for key in keys if key in known]
        without = len(keys) - len(found)
    else:
        # Of several about a passage the last is the one that is searched.
        found = list({one.key: one for one in cache.all()}.values())
    if not found:
        _usage("nothing to export: nothing was written about these passages; see index --enrich")
    write_enrichments(arguments.export_enrichment, found)
    print_export(arguments.export_enrichment, len(found), without)
    return ANSWERED


def _given(arguments: argparse.Namespace) -> set[str]:
    """Names of the options that were used."""
    return {name for name, value in vars(arguments).items() if name != "run" and value not in (None, False, [])}


def _usage(message: str) -> NoReturn:
    print(f"adaptive-rag: {message}", file=sys.stderr)
    raise SystemExit(USAGE)
