"""How results look on a terminal: colour and live progress there, plain lines in a pipe."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from programs.prices import shown_money
from programs.progress import Event, listening
from signatures.records import Answer, HopTrace, Usage, Verdict

if TYPE_CHECKING:
    from programs.doctor import Check
    from programs.retrieval.copying import CopyReport
    from programs.retrieval.enriching import EnrichmentCost
    from programs.retrieval.index_report import IndexReport

_JUDGE_NAMES = {"relevance": "相关", "grounding": "有据", "utility": "有用"}
_STATUS = {
    "answered": ("已核对", "green"),
    "best_effort": ("未通过核对", "yellow"),
    "clarify": ("需要补充", "cyan"),
    "no_evidence": ("知识库没有答案", "yellow"),
    "refused": ("不在范围内", "yellow"),
    "unavailable": ("暂时不可用", "red"),
    "invalid_question": ("无法处理", "red"),
}


def _out() -> Console:
    return Console(highlight=False, soft_wrap=True)


class Progress:
    """Progress on standard error: bars for long steps, a line for each event of a request.

    Args:
        enabled: False shows nothing.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._enabled = enabled
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def long_step(self, name: str, done: int, total: int) -> None:
        """Show how far a step of seconds or minutes has come."""
        if not self._enabled:
            return
        if not self._console.is_terminal:
            # In a log: ten lines, not a thousand.
            tenth = 10 * done // max(total, 1)
            if self._last.get(name) != tenth:
                self._last[name] = tenth
                self._console.print(f"{name} {10 * tenth} %", markup=False)
            return
        if self._bars is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            self._bars = Bars(*columns, TimeRemainingColumn(), console=self._console)
            self._bars.start()
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        self._bars.update(self._tasks[name], completed=done, total=total)
        if done >= total:
            self._bars.update(self._tasks[name], visible=False)

    @contextmanager
    def events(self) -> Iterator[None]:
        """Print the events of the requests in the block."""
        with listening(self._show if self._enabled else None):
            yield

    def _show(self, event: Event) -> None:
        self._console.print(Text(_event_line(event), style="dim"))


def _event_line(event: Event) -> str:
    data: dict[str, Any] = event.data
    match event.stage:
        case "routed":
            decision = data["decision"]
            return f"· 路由：{decision.intent} → {decision.strategy}（置信度 {decision.confidence:.2f}）"
        case "searching":
            return f"· 第 {event.hop} 轮检索：{' ｜ '.join(data['queries'])}"
        case "found":
            titles = dict.fromkeys(hit.passage.heading for hit in data["hits"])
            return f"· 找到 {len(data['hits'])} 段：{'；'.join(titles) or '无'}"
        case "judged":
            return f"· {_verdict_text(data['verdict'])} {data['verdict'].reason}"
        case "rewriting":
            return f"· 改写检索语句：{data['query']}"


def _verdict_text(verdict: Verdict | None) -> str:
    if verdict is None:
        return "—"
    name = _JUDGE_NAMES[verdict.judge]
    if verdict.score is None:
        return f"{name} ？"
    return f"{name} {'✓' if verdict.passed else '✗'} {verdict.score:.2f}"


def print_answer(record: Answer, *, trace: bool = False, currency: str = "") -> None:
    """The answer, its sources, and one line on how it came about.

    Args:
        record: The result.
        trace: Also a table of the hops.
        currency: What money is shown in; "" shows none, where nothing has a price.
    """
    out = _out()
    out.print(Text(record.answer))
    for citation in record.citations:
        out.print(Text(f"  [{citation.number}] {citation.heading}（{citation.location}）", style="cyan"))
    label, colour = _STATUS[record.status]
    usage = record.usage
    facts = [f"{record.decision.intent} → {record.strategy}", f"{len(record.trace)} 轮", record.stop_reason]
    facts += [f"{usage.lm_calls} 次模型调用", *_tokens_and_money(usage, currency), f"{usage.seconds:.1f} 秒"]
    out.print(Text(f"{label} · ", style=colour).append(" · ".join(facts), style="dim"))
    for text in record.degraded:
        out.print(Text(f"! {text}", style="yellow"))
    if trace:
        _print_trace(record, out, currency)


def _tokens_and_money(usage: Usage, currency: str) -> list[str]:
    tokens = f"{usage.prompt_tokens}+{usage.completion_tokens} token"
    return [tokens, shown_money(usage.cost, currency)] if currency else [tokens]


def _print_trace(record: Answer, out: Console, currency: str) -> None:
    decision = record.decision
    out.print(Text(f"理由：{decision.reasoning}（{decision.source}，置信度 {decision.confidence:.2f}）"))
    if not record.trace:
        out.print(Text("没有检索"))
        return
    table = Table(show_lines=True)
    for name in ("轮", "检索语句", "段落（分数，路线，相关）", "答案", "判断", "决定", "花费"):
        table.add_column(name, overflow="fold")
    for hop in record.trace:
        table.add_row(*(Text(cell) for cell in _trace_cells(hop, currency, best=record.best_hop == hop.hop)))
    # A pipe has no width of its own, and a folded table of 80 columns cannot be read.
    wide = out if out.is_terminal else Console(width=160, highlight=False)
    wide.print(table)


def _trace_cells(hop: HopTrace, currency: str, *, best: bool) -> tuple[str, ...]:
    scores = hop.relevance.passage_scores if hop.relevance is not None else {}
    passages = []
    for hit in hop.hits:
        score = scores.get(hit.passage.id)
        mark = "✓" if hit.passage.id in hop.kept else "✗"
        relevance = "？" if score is None else f"{score:.2f}"
        passages.append(f"{mark} {hit.passage.heading} ({hit.score:.2f}, {'+'.join(hit.routes)}, {relevance})")
    verdicts = (hop.relevance, hop.grounding, hop.utility)
    lines = [_verdict_text(v) + (f"：{v.reason}" if v is not None and not v.passed else "") for v in verdicts]
    usage = hop.usage
    return (
        f"{hop.hop}{' ★' if best else ''}",
        "\n".join([hop.query, *(f"- {part}" for part in hop.parts)]),
        "\n".join(passages) or "无",
        hop.answer or "（无）",
        "\n".join(lines),
        hop.decision + (f"\n→ {hop.rewritten_query}" if hop.rewritten_query else ""),
        "\n".join([f"{usage.lm_calls} 次", *_tokens_and_money(usage, currency), f"{usage.seconds:.1f} 秒"]),
    )


def print_index_report(report: "IndexReport") -> None:
    """What an index run changed."""
    out = _out()
    out.print(
        Text(
            f"新增 {len(report.added)}，更新 {len(report.changed)}，未变 {len(report.unchanged)}，"
            f"删除 {len(report.removed)}，失败 {len(report.failed)} 篇；"
            f"写入 {report.passages} 段{_enriched(report)}，{report.seconds:.1f} 秒"
        )
    )
    print_failures(report.failed)


def print_copy_report(index: str, report: "CopyReport") -> None:
    """What a copy did with one index."""
    others = f"，目标里另有 {len(report.others)} 篇" if report.others else ""
    _out().print(
        Text(
            f"{index}：复制 {len(report.copied)} 篇 {report.rows} 行，已有 {len(report.unchanged)} 篇{others}，"
            f"失败 {len(report.failed)} 篇，{report.seconds:.1f} 秒"
        )
    )
    print_failures(report.failed)


def print_export(file: Path, count: int, without: int) -> None:
    """How much was exported, and what of it is missing."""
    rest = f"；另有 {without} 段没有写过" if without else ""
    _out().print(Text(f"{file}：{count} 段的问题和摘要{rest}"))


def _enriched(report: "IndexReport") -> str:
    return f"（{report.enriched} 段带问题或摘要）" if report.enriched else ""


def print_cost(cost: "EnrichmentCost", currency: str) -> None:
    """What enriching will cost."""
    calls = f"要为 {cost.passages} 段写问题（已有 {cost.cached} 段）：{cost.model} 调用 {cost.calls} 次"
    tokens = f"约 {cost.prompt_tokens:,} 个输入 token、{cost.completion_tokens:,} 个输出 token"
    priced = f"，约 {shown_money(cost.money, currency)}（按设置的单价）" if cost.money else ""
    _out().print(Text(f"{calls}，{tokens}{priced}"))


def print_failures(failed: dict[str, str]) -> None:
    """What could not be done, by name."""
    for name, reason in failed.items():
        _out().print(Text(f"! {name}: {reason}", style="red"))


def print_checks(checks: "Sequence[Check]") -> None:
    """What doctor found, with what to do about it."""
    out = _out()
    for check in checks:
        mark = Text("✓ ", style="green") if check.ok else Text("✗ ", style="red")
        if check.ok and check.facts.get("trusted") is False:
            mark = Text("! ", style="yellow")
        out.print(mark + Text(f"{check.name}：{check.found}"))
        if check.advice:
            out.print(Text(f"    → {check.advice}", style="yellow"))


def prompt_line() -> str | None:
    """One line from the user; None at the end of input."""
    try:
        return Console(stderr=True).input("[bold cyan]> [/]")
    except EOFError:
        return None
