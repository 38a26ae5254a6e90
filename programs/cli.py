"""The command `adaptive-rag`: ask, chat, doctor, `index_command`, and what is installed beside it.

Only these two files print.

Exit codes: 0 answered · 3 no checked answer (not in the knowledge base, a question back, or an answer
that did not pass the checks) · 1 error · 2 wrong usage.

Imports are late, so that `--help` and a wrong option answer at once.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from programs import index_command
from programs.errors import AdaptiveRAGError, DocumentError, PlanError
from programs.exit_codes import ANSWERED, ERROR, NO_ANSWER, USAGE
from signatures.vocabulary import STRATEGIES

if TYPE_CHECKING:
    from programs.adaptive_rag import AdaptiveRAG
    from signatures.records import Answer

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS = "adaptive_rag.commands"
"""Entry point group; each entry is a function that configures the parser of its command and sets `run`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is the result."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe in another encoding must not end the program.
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    # Under an old locale Python reads the command line as bytes that are no text; it is UTF-8 all the same.
    words = [os.fsencode(word).decode("utf-8", "replace") for word in (sys.argv[1:] if argv is None else argv)]
    parser, built_in = _parser()
    _add_installed(built_in, words[:1])
    arguments = parser.parse_args(words)
    _quiet_libraries()
    try:
        return int(arguments.run(arguments))
    except AdaptiveRAGError as error:
        _complain(error)
        return USAGE if isinstance(error, PlanError) else ERROR
    except KeyboardInterrupt:
        return ERROR
    except BrokenPipeError:
        return ERROR


def _parser() -> "tuple[argparse.ArgumentParser, Commands]":
    parser = argparse.ArgumentParser(
        prog="adaptive-rag", description="Route a question, answer it from the knowledge base, and check the answer."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    ask = commands.add_parser("ask", help="answer one question")
    ask.add_argument("question", help="the question; - reads it from standard input")
    _add_answer_options(ask)
    ask.add_argument("--json", action="store_true", help="print the whole result record as JSON")
    ask.add_argument("--trace", action="store_true", help="print every hop as a table")
    ask.set_defaults(run=_ask)

    chat = commands.add_parser("chat", help="ask several questions; history is kept")
    _add_answer_options(chat)
    chat.set_defaults(run=_chat)

    index = commands.add_parser("index", help="read files into the knowledge base")
    index_command.configure(index)

    doctor = commands.add_parser("doctor", help="check language models, stores and settings")
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor.add_argument("--canaries", action="store_true", help="give the judges all planted cases (some 25 calls)")
    doctor.set_defaults(run=_doctor)
    return parser, commands


def _add_installed(commands: "Commands", wanted: Sequence[str]) -> None:
    """Commands that other packages declare; only the one that is wanted is imported."""
    if wanted and wanted[0] in commands.choices:
        return
    from importlib.metadata import entry_points

    for name, entry in {entry.name: entry for entry in entry_points(group=COMMANDS)}.items():
        if name not in commands.choices:
            command = commands.add_parser(name, help=f"see: adaptive-rag {name} --help")
            if wanted and wanted[0] == name:
                entry.load()(command)


def _add_answer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--category", help="only documents of this category")
    parser.add_argument("--strategy", choices=STRATEGIES, metavar="STRATEGY", help=f"one of: {', '.join(STRATEGIES)}")
    parser.add_argument("--plan", type=_json_object, default={}, metavar="JSON", help='patch, such as {"top_k": 8}')
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is needed")
    return value


def _ask(arguments: argparse.Namespace) -> int:
    from programs.build import build_program
    from programs.rendering import Progress, print_answer

    question = sys.stdin.read() if arguments.question == "-" else arguments.question
    with Progress(enabled=not (arguments.quiet or arguments.json)) as progress:
        rag = build_program(on_progress=progress.long_step)
        with progress.events():
            record: Answer = rag(
                question=question,
                category=arguments.category,
                strategy=arguments.strategy,
                plan=arguments.plan,
            ).record
    if arguments.json:
        print(json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=2))
    else:
        print_answer(record, trace=arguments.trace, currency=_currency(rag))
    return _exit_code(record)


def _currency(rag: "AdaptiveRAG") -> str:
    """What money is shown in; "" where nothing has a price."""
    return rag.resources.settings.currency if rag.resources.lms.paid else ""


def _exit_code(record: "Answer") -> int:
    match record.status:
        case "answered":
            return ANSWERED
        case "unavailable" | "invalid_question":
            return ERROR
    return NO_ANSWER


def _chat(arguments: argparse.Namespace) -> int:
    from programs.build import build_program
    from programs.chat import Conversation
    from programs.rendering import Progress, print_answer, prompt_line

    conversation = Conversation()
    with Progress(enabled=not arguments.quiet) as progress:
        rag = build_program(on_progress=progress.long_step)
        while (line := prompt_line()) is not None:
            if not line.strip():
                continue
            if line.strip() in ("/quit", "/exit"):
                break
            if line.strip() == "/new":
                conversation = Conversation()
                continue
            with progress.events():
                record = rag(
                    question=conversation.question(line),
                    history=conversation.history,
                    category=arguments.category,
                    strategy=arguments.strategy,
                    plan=arguments.plan,
                    ask_back=not conversation.asked_back,
                ).record
            print_answer(record, currency=_currency(rag))
            conversation.add(line, record)
    return ANSWERED


def _doctor(arguments: argparse.Namespace) -> int:
    from programs.doctor import examine
    from programs.rendering import Progress, print_checks

    with Progress(enabled=not arguments.json) as progress:
        checks = examine(canaries=arguments.canaries, on_progress=progress.long_step)
    if arguments.json:
        print(json.dumps([check.model_dump(mode="json") for check in checks], ensure_ascii=False, indent=2))
    else:
        print_checks(checks)
    return ANSWERED if all(check.ok for check in checks) else ERROR


def _complain(error: AdaptiveRAGError) -> None:
    path = f"{error.path}: " if isinstance(error, DocumentError) and error.path else ""
    print(f"adaptive-rag: {path}{error.message}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)


def _quiet_libraries() -> None:
    """Libraries log what we report in our own words; MLflow and DSPy warn on standard error."""
    import logging

    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")
    for name in ("dspy", "pymilvus", "elastic_transport", "mlflow", "httpx"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main())
