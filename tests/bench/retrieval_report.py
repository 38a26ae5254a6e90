"""Results of `bench_retrieval` as lines of JSON, as a table and as a plot."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = {
    "build s": "build_s",
    "dense p50": "dense_p50_ms",
    "p95": "dense_p95_ms",
    "text p50": "text_p50_ms",
    " p95": "text_p95_ms",
    "fused p50": "fused_p50_ms",
    "  p95": "fused_p95_ms",
    "recall@10": "recall_at_10",
    "first s": "first_search_s",
    "RAM MB": "resident_mb",
    "disk MB": "disk_mb",
    "load": "load",
}
NAMES = {"embedded": "Milvus Lite + tantivy", "elasticsearch": "Elasticsearch"}


def add(path: Path, result: dict[str, Any]) -> None:
    """Append a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def newest(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The last result of each case."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = {(result["system"], result["size"]): result for result in map(json.loads, lines)}
    return dict(sorted(results.items()))


def show(path: Path, plot: Path) -> None:
    """Print the table and draw the plot."""
    console = Console(width=170)
    results = newest(path)
    embedders = [result for (system, _), result in results.items() if system == "embedder"]
    cases = [result for (system, _), result in results.items() if system in NAMES]
    table = Table("system", "passages", *COLUMNS, "fused + embedder p95", title="milliseconds unless said otherwise")
    extra = embedders[-1]["query_p95_ms"] if embedders else 0.0
    for case in cases:
        figures = [f"{case[key]:,}" if key in case else "" for key in COLUMNS.values()]
        # The sum of two 95th percentiles: never less than the percentile of the sum would be, nearly always more.
        table.add_row(NAMES[case["system"]], f"{case['size']:,}", *figures, f"{case['fused_p95_ms'] + extra:.1f}")
    console.print(table)
    for result in embedders:
        console.print(
            f"default embedder: {result['share']:.1%} of {result['indexing_s']} s that indexing {result['size']:,} "
            f"passages takes; a query {result['query_p50_ms']} ms (p95 {result['query_p95_ms']} ms)"
        )
    if cases:
        draw(cases, plot)
        console.print(f"plot: {plot}")


def draw(cases: list[dict[str, Any]], path: Path) -> None:
    """Latency, memory and time of building against size."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "retrieval"  # the same figures give the same file
    from matplotlib import pyplot

    panels = {
        "p95 of a search (ms)": {"fused": "fused_p95_ms", "dense": "dense_p95_ms", "text": "text_p95_ms"},
        "resident memory (MB)": {"": "resident_mb"},
        "build (s, without embedder)": {"": "build_s"},
    }
    styles = {"fused": "o-", "dense": "s--", "text": "^:", "": "o-"}
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 4), layout="constrained")
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for (system, name), colour in zip(NAMES.items(), ("tab:blue", "tab:orange"), strict=True):
            own = [case for case in cases if case["system"] == system]
            for label, key in lines.items():
                sizes, values = [case["size"] for case in own], [case[key] for case in own]
                axis.plot(sizes, values, styles[label], color=colour, label=f"{name} {label}".strip())
        axis.set(title=title, xlabel="passages", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
