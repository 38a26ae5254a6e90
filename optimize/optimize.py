"""From bad cases to better prompts: compile, calibrate, replay, compare, promote, blame.

    python -m optimize compile --component grounding --optimizer bootstrap
    python -m optimize calibrate --component relevance
    python -m optimize compare
    python -m optimize promote RUN

Every command has `--help`. Nothing that a command makes changes the running program; only `promote` does,
and only for a gain that is more than noise.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from programs.errors import AdaptiveRAGError

COMMANDS = {
    "compile": ("optimize.compiling", "let an optimizer write better prompts for a component"),
    "calibrate": ("optimize.calibrate", "fit thresholds and how evidence is weighed"),
    "replay": ("optimize.replay", "recompute decisions of recorded traces for other thresholds"),
    "compare": ("optimize.compare", "runs side by side, case by case"),
    "promote": ("optimize.promote", "put a proven improvement into the running program, or take it back"),
    "blame": ("optimize.blame", "say which stage made a case fail"),
}
"""Module and description; each module has `configure(parser)` and `run(arguments)`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is the result."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m optimize", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (module, description) in COMMANDS.items():
        command = commands.add_parser(name, help=description, description=description)
        if name in words[:1]:  # the others' libraries take seconds to import
            importlib.import_module(module).configure(command)
    arguments = parser.parse_args(words)
    try:
        return int(importlib.import_module(COMMANDS[arguments.command][0]).run(arguments))
    except AdaptiveRAGError as error:
        sys.stderr.write(f"optimize: {error.message}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return 1


if __name__ == "__main__":
    sys.exit(main())
