"""What runs. `from programs import build_program` gives the ready program."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from programs.build import build_program

__all__ = ["build_program"]


def __getattr__(name: str) -> Any:
    # Late: the command line's --help must not wait for DSPy.
    if name == "build_program":
        from programs.build import build_program

        return build_program
    raise AttributeError(f"module 'programs' has no attribute {name!r}")
