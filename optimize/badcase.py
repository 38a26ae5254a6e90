"""`adaptive-rag badcase add`: a question that went wrong becomes a labelled case.

    adaptive-rag ask --json 骑车出差补多少 > trace.json
    adaptive-rag badcase add --trace trace.json --answer '每公里 1.5 元。' --facts '1.5 元|1.5元' \
        --gold 'corpus/handbook/walking-travel.md:骑行出差每公里补贴 1.5 元'

Of the trace only the question and the intent are taken. `programs` knows nothing of this file: the command
line finds it through the entry point group `adaptive_rag.commands` of the installed package.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from data import loading
from data.loading import DataError, load_cases
from data.schema import Gold, QuestionCase, Split
from optimize.gold import sample_passages
from optimize.traces import TraceError, read_traces
from optimize.tracking import connect
from programs.errors import AdaptiveRAGError
from programs.language import detect_language
from programs.rewriter import canonical
from programs.settings import ROLES, Settings, load_settings
from signatures.records import Answer
from signatures.vocabulary import INTENTS, Intent

KINDS: dict[Intent, str] = {"HOW_TO": "how_to", "COMPARISON": "comparison", "CODE_SEARCH": "code"}
MASK = "***"
_SECRET = re.compile(
    r"\b(?:sk|pk|ghp|gho|xox[a-z]|glpat)[-_][A-Za-z0-9_-]{8,}|\bAKIA[A-Z0-9]{12,}|\bBearer\s+\S{8,}|\beyJ[\w-]{10,}\.[\w.-]+",
    re.ASCII,
)
"""What keys of well-known services look like."""


class BadCaseError(AdaptiveRAGError):
    """The trace and what was said about it make no labelled case."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the command; `adaptive-rag` calls this when the command is asked for."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    add = actions.add_parser("add", help="write a labelled case from a trace and the right answer")
    source = add.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, metavar="FILE", help="what `adaptive-rag ask --json` printed")
    source.add_argument("--mlflow", metavar="TRACE_ID", help="a trace that MLflow keeps")
    add.add_argument("--answer", required=True, metavar="TEXT", help="the right answer")
    add.add_argument(
        "--facts", nargs="+", default=[], metavar="FACT", help="what a right answer must hold; spellings divided by |"
    )
    add.add_argument(
        "--gold", nargs="+", default=[], metavar="DOC:QUOTE", help="where it stands; none says that it stands nowhere"
    )
    add.add_argument("--either", action="store_true", help="one of several --gold is enough")
    add.add_argument("--intent", choices=INTENTS, help="the right class; the trace's when not given")
    add.add_argument("--split", choices=get_args(Split), help="train when not given, or that of --group")
    add.add_argument("--group", help="of a case that asks the same in other words")
    add.add_argument("--kind", help="kind of failure or difficulty; told from the rest when not given")
    add.add_argument("--category", help="filter that was set")
    add.add_argument(
        "--output", type=Path, metavar="FILE", help="JSON Lines file; data/bad_cases/qa.jsonl when not given"
    )
    add.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the case; nothing is written unless all of it is right."""
    settings = load_settings()
    if arguments.mlflow:
        record, origin = from_mlflow(arguments.mlflow, settings), arguments.mlflow
    else:
        record, origin = from_file(arguments.trace)
    path = arguments.output or loading.FOLDER / "qa.jsonl"
    case = make_case(record, origin, arguments, _known(path), settings)
    append(path, case)
    sys.stdout.write(f"{case.id} ({case.kind}, {case.split}) → {path}\n")
    if path.resolve() == (loading.FOLDER / "qa.jsonl").resolve():
        sys.stdout.write("data/README.md states counts and digests: bring them up to date.\n")
    return 0


def from_file(path: Path) -> tuple[Answer, str]:
    """The trace of a file, and an id for it that the same trace always gets.

    Raises:
        TraceError: The file holds none, or several.
    """
    found = read_traces([path])
    if len(found) != 1:
        raise TraceError(f"{path} holds {len(found)} traces", hint="Take one: adaptive-rag ask --json QUESTION > FILE")
    return found[0], hashlib.sha256(found[0].model_dump_json().encode()).hexdigest()[:12]


def from_mlflow(trace_id: str, settings: Settings) -> Answer:
    """The record that a trace in MLflow ends with.

    Raises:
        TraceError: There is no such trace, MLflow cannot be reached, or it is no trace of this program.
    """
    mlflow = connect(settings)
    try:
        trace = mlflow.MlflowClient().get_trace(trace_id)
    except (mlflow.exceptions.MlflowException, OSError) as error:
        raise TraceError(
            f"MLflow gives no trace {trace_id!r} ({type(error).__name__})", hint="See ADAPTIVE_RAG_TRACKING_URI."
        ) from error
    outputs = [span.outputs for span in trace.data.spans if isinstance(span.outputs, dict) and "record" in span.outputs]
    try:
        return Answer.model_validate_json(json.dumps(outputs[0]["record"]))
    except (IndexError, TypeError, ValidationError) as error:
        raise TraceError(f"the trace {trace_id!r} was not made by this program") from error


def make_case(
    record: Answer, origin: str, arguments: argparse.Namespace, known: Sequence[QuestionCase], settings: Settings
) -> QuestionCase:
    """The labelled case.

    Args:
        record: The trace.
        origin: Its id.
        arguments: As `configure` describes them.
        known: Cases that there are already.
        settings: Their secrets must not get into the case.

    Raises:
        BadCaseError: It is there already, something does not fit together, or a text holds a secret.
    """
    question = masked(record.question, settings)
    if same := next((one for one in known if canonical(one.question) == canonical(question)), None):
        raise BadCaseError(f"{same.id} asks the same: {same.question}")
    family = [one for one in known if arguments.group and one.group == arguments.group]
    if arguments.group and not family:
        raise BadCaseError(f"no case has the group {arguments.group!r}")
    if family and arguments.split not in (None, family[0].split):
        raise BadCaseError(f"the group {arguments.group!r} is in {family[0].split}: its cases stay together")
    intent = arguments.intent or record.decision.intent
    values: dict[str, Any] = {
        "id": f"qa-{_next(known, 'id', 'qa-'):04d}",
        "group": arguments.group or f"q{_next(known, 'group', 'q'):04d}",
        "split": family[0].split if family else arguments.split or "train",
        "kind": arguments.kind or _kind(intent, len(arguments.gold)),
        "origin": f"trace {origin}",
        "lang": "zh" if detect_language(question) == "zh" else "en",
        "question": question,
        "intent": intent,
        "category": arguments.category,
        "answerable": bool(arguments.gold),
        "facts": [[part.strip() for part in fact.split("|") if part.strip()] for fact in arguments.facts],
        "gold": [_place(text) for text in arguments.gold],
        "either": arguments.either,
        "answer": arguments.answer.strip(),
    }
    typed = [arguments.answer, *arguments.facts, *arguments.gold, arguments.kind or "", arguments.category or ""]
    if any(masked(text, settings) != text for text in typed):
        raise BadCaseError("an option holds a secret", hint="Leave it out: labelled cases are shared.")
    if arguments.facts and not arguments.gold:
        raise BadCaseError("--facts needs --gold: without it the case says that the answer stands nowhere")
    try:
        case = QuestionCase.model_validate(values)
        for gold in case.gold:
            sample_passages().find(gold)
    except ValidationError as error:
        fields = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'case'}: {e['msg']}" for e in error.errors())
        raise BadCaseError(fields, hint="An answer that stands somewhere needs --gold and --facts.") from error
    except DataError as error:
        raise BadCaseError(str(error), hint="The quote must stand in exactly one passage of that document.") from error
    return case


def append(path: Path, case: QuestionCase) -> None:
    """Put a case behind the others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    gap = "\n" if before and not before.endswith("\n") else ""
    line = json.dumps(case.model_dump(mode="json"), ensure_ascii=False)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{gap}{line}\n")


def masked(text: str, settings: Settings) -> str:
    """`text` without the secrets of the settings, and without what looks like a key."""
    values = [settings.api_key, settings.milvus_token, settings.elasticsearch_api_key]
    values += [endpoint.api_key for role in ROLES for endpoint in settings.endpoints(role)]
    for secret in values:
        if secret is not None and secret.get_secret_value():
            text = text.replace(secret.get_secret_value(), MASK)
    return _SECRET.sub(MASK, text)


def _known(path: Path) -> list[QuestionCase]:
    """The project's questions, and those of the output."""
    own = loading.FOLDER / "qa.jsonl"
    files = {file.resolve() for file in (own, path) if file.exists()}
    try:
        return [case for file in sorted(files) for case in load_cases(file, QuestionCase)]
    except DataError as error:
        raise BadCaseError(str(error)) from error


def _next(known: Sequence[QuestionCase], name: str, prefix: str) -> int:
    numbers = [re.fullmatch(rf"{prefix}(\d+)", getattr(case, name)) for case in known]
    return max((int(found[1]) for found in numbers if found), default=0) + 1


def _kind(intent: Intent, gold: int) -> str:
    if not gold:
        return "unanswerable"
    return KINDS.get(intent) or ("multi_hop" if gold > 1 else "single_fact")


def _place(text: str) -> Gold:
    document, _, quote = text.partition(":")
    if not document or len(quote) < 2:
        raise BadCaseError(f"--gold {text!r} is not DOC:QUOTE")
    return Gold(document_id=document, quote=quote)
