"""A comparison as one HTML file: nothing is loaded from elsewhere, and every value is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from optimize.cases import COSTS, CaseRow, shown
from optimize.compare import Comparison, Side, row_of
from optimize.plots import plots

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1c2733}
h2{margin-top:3rem;border-bottom:1px solid #ccd}table{border-collapse:collapse;margin:.5rem 0 1.5rem;font-size:14px}
th,td{border:1px solid #dde;padding:.25rem .6rem;text-align:left;vertical-align:top}th{background:#f3f5f8}
td.n{text-align:right;white-space:nowrap}.worse{color:#a4262c}.better{color:#1a7f37}svg{max-width:100%;height:auto}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(24rem,1fr));gap:1rem}
@media(prefers-color-scheme:dark){body{background:#fff}}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Whatever a case says, the page runs no script and fetches nothing."""


def write_report(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write the report.

    Args:
        comparisons: At least one.
        path: The file; folders above it are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(comparisons), encoding="utf-8")


def render(comparisons: Sequence[Comparison]) -> str:
    """The page."""
    body = "".join(_section(one) for one in comparisons)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>Runs compared</title><style>{STYLE}</style></head><body><h1>Runs compared</h1>{body}</body></html>\n"
    )


def _section(comparison: Comparison) -> str:
    sides = comparison.sides
    parts = [f"<h2>{escape(comparison.experiment)} · {escape(comparison.split)}</h2>"]
    params = {key: value for side in sides for key, value in side.run.params.items()}
    parts.append(_table(["parameter", "value"], [[str(k), str(v)] for k, v in sorted(params.items())]))
    head = ["run", "name", "cases", "score", "gain", "better/worse", *COSTS]
    parts.append(_table(head, [row_of(side) for side in sides]))
    drawn = (
        f"<figure><figcaption>{escape(name)}</figcaption>{svg}</figure>" for name, svg in plots(comparison).items()
    )
    parts.append(f'<div class="plots">{"".join(drawn)}</div>')
    for attribute in ("kind", "lang", "intent"):
        if any(getattr(row, attribute) for side in sides for row in side.rows):
            parts.append(f"<h3>Score by {attribute}</h3>{_slices(sides, attribute)}")
    for side in sides[1:]:
        name = escape(side.run.name)
        parts.append(f'<h3 class="worse">{name}: which cases got worse ({len(side.worse)})</h3>{_changes(side.worse)}')
        parts.append(f'<h3 class="better">{name}: which got better ({len(side.better)})</h3>{_changes(side.better)}')
    return "".join(parts)


def _slices(sides: Sequence[Side], attribute: str) -> str:
    shares = [side.by(attribute) for side in sides]
    names = sorted({name for own in shares for name in own})
    rows = [
        [name, *(f"{own[name][0]:.3f} (n {own[name][1]})" if name in own else "-" for own in shares)] for name in names
    ]
    return _table([attribute, *(side.run.name for side in sides)], rows)


def _changes(pairs: Iterable[tuple[CaseRow, CaseRow]]) -> str:
    rows = [
        [b.id, b.kind, b.lang, f"{a.score:.2f} → {b.score:.2f}", *(shown(x, 300) for x in (a.outcome, b.outcome)),
         shown(b.expected, 300), b.feedback]
        for a, b in pairs
    ]  # fmt: skip
    head = ["case", "kind", "lang", "score", "baseline", "outcome", "expected", "feedback"]
    return _table(head, rows) if rows else "<p>none</p>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
