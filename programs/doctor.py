"""`adaptive-rag doctor`: looks at each language model, store and model, and says what to do.

A language model is asked for something its schema forbids: an endpoint that enforces schemas cannot
comply, one that ignores them does. Nothing is taken from what an endpoint says of itself.

The judges are given planted cases (`programs.canaries`). By default two plain ones of each, six calls in all,
like the two that each endpoint costs anyway: enough to find a judge that says yes to everything, and seconds
on the slowest model. `--canaries` asks all of them, which also finds a weak judge, and costs minutes there.
"""

import time
from dataclasses import replace

import dspy
import numpy as np
from pydantic import Field

from programs import background, budget
from programs.build import ProgressCallback, build_resources, compiled_program, ensure_models
from programs.canaries import run_canaries
from programs.errors import AdaptiveRAGError, LanguageModelError
from programs.labels import label_probabilities
from programs.lm import RoleLMs, ask
from programs.lm_line import EndpointSettings
from programs.retrieval.base import Embedder
from programs.retrieval.embedding import load_embedder
from programs.retrieval.plan import Index
from programs.retrieval.tokens import tokenize
from programs.settings import ROLES, Role, Settings, load_settings
from programs.stores import INDEXES, Stores
from programs.tracing import start_tracing
from programs.trust import JudgeTrust
from signatures.judging import JudgeUtility
from signatures.probing import ContradictSchema
from signatures.records import Record


class Check(Record):
    """One finding.

    Attributes:
        name: What was looked at.
        ok: Whether questions can be answered as it is.
        found: What was seen.
        advice: What to do, "" where there is nothing to do.
        facts: Findings for programs, such as `schema_enforced`.
    """

    name: str
    ok: bool
    found: str
    advice: str = ""
    facts: dict[str, bool | float | str] = Field(default_factory=dict)


def examine(
    settings: Settings | None = None, *, canaries: bool = False, on_progress: ProgressCallback | None = None
) -> list[Check]:
    """All checks, in the order in which a question meets the parts.

    Args:
        settings: From the environment when None.
        canaries: Gives the judges all planted cases instead of the short set.
        on_progress: Told about long steps.

    Raises:
        SettingsError: A setting is wrong.
        ModelFileError: The embedded model cannot be had.
    """
    settings = settings or load_settings()
    ensure_models(settings, on_progress)
    checks = _language_models(settings)
    embedder = load_embedder(settings.embedder)
    checks.append(_embedder(embedder))
    stores = Stores(settings, embedder)
    try:
        checks += [check for index in INDEXES for check in _index(stores, index)]
    finally:
        stores.close()
    checks += _judges(settings, full=canaries)
    checks.append(_tracing(settings))
    return checks


def _language_models(settings: Settings) -> list[Check]:
    """Each endpoint once, with the roles that use it."""
    users: dict[EndpointSettings, list[Role]] = {}
    for role in ROLES:
        for endpoint in settings.endpoints(role):
            users.setdefault(endpoint, []).append(role)
    return [_endpoint(settings, endpoint, roles) for endpoint, roles in users.items()]


def _endpoint(settings: Settings, endpoint: EndpointSettings, roles: list[Role]) -> Check:
    name = f"语言模型 {endpoint.label}（{'、'.join(roles)}）"
    lm = RoleLMs(settings, only=endpoint)["judge"]
    account = budget.Budget(seconds=2 * endpoint.timeout)
    started = time.monotonic()

    async def probe() -> tuple[bool, bool]:
        with budget.spending(account):
            judged = await ask(
                dspy.Predict(JudgeUtility),
                lm,
                role="judge",
                question="一天有几个小时？",
                answer="二十四小时。",
                config={"logprobs": True, "top_logprobs": 5},
            )
            return await _schema_enforced(lm), bool(label_probabilities(judged))

    try:
        enforced, probabilities = background.run(probe())
    except LanguageModelError as error:
        return Check(name=name, ok=False, found=error.message, advice=error.hint, facts={"error": error.kind})
    seconds = time.monotonic() - started
    advice = [*account.degraded]
    if not enforced:
        advice.append("端点不执行 JSON Schema：回复照样会校验，但更容易作废；换支持结构化输出的服务会更稳。")
    if not probabilities:
        advice.append("端点不返回 logprobs：判断只有是或否，没有概率，阈值会比较粗。")
    found = (
        f"可用，两次调用共 {seconds:.1f} 秒；"
        f"结构化输出{'已生效' if enforced else '未生效'}；{'有' if probabilities else '没有'} logprobs"
    )
    facts: dict[str, bool | float | str] = {"schema_enforced": enforced, "logprobs": probabilities, "seconds": seconds}
    return Check(name=name, ok=True, found=found, advice=" ".join(advice), facts=facts)


async def _schema_enforced(lm: dspy.LM) -> bool:
    """Whether a reply keeps to a schema that contradicts the prompt."""
    try:
        await ask(dspy.Predict(ContradictSchema), lm, role="judge", request="请写 green")
    except LanguageModelError as error:
        if error.kind == "parse":
            return False  # it wrote what the prompt said
        raise
    return True


def _embedder(embedder: Embedder) -> Check:
    name = f"向量模型 {embedder.name}"
    try:
        started = time.monotonic()
        query = embedder.encode_query(["年假有几天"])[0]
        near, far = embedder.encode_document(["员工每年享受七天年假。", "The server listens on port 8443."])
        seconds = time.monotonic() - started
    except AdaptiveRAGError as error:
        return Check(name=name, ok=False, found=error.message, advice=error.hint)
    gap = float(query @ near - query @ far)
    norm = float(np.linalg.norm(query))
    ok = gap > 0 and abs(norm - 1) < 1e-3
    found = (
        f"{embedder.dimension} 维，最长 {embedder.max_tokens} token，{seconds:.2f} 秒；相关与无关的相似度差 {gap:.3f}"
    )
    return Check(
        name=name,
        ok=ok,
        found=found,
        advice="" if ok else "相关的段落没有更近：检查模型是否支持中文、是否需要查询前缀。",
        facts={"gap": gap, "norm": norm},
    )


def _index(stores: Stores, index: Index) -> list[Check]:
    checks = []
    counts: dict[str, int] = {}
    for kind, label in (("dense", "向量库"), ("text", "全文库")):
        try:
            store = stores.dense(index) if kind == "dense" else stores.text(index)
            counts[kind] = store.count("passage")
        except AdaptiveRAGError as error:
            found, advice = error.message, error.hint
            checks.append(Check(name=f"{label}（{index}）", ok=False, found=found, advice=advice))
            continue
        advice = "" if counts[kind] else "运行 adaptive-rag index 读入文档。"
        found = f"{store.name}：{counts[kind]} 段"
        checks.append(Check(name=f"{label}（{index}）", ok=True, found=found, advice=advice))
    try:
        pending = len(stores.catalog().entries(index, unsettled=True))
    except AdaptiveRAGError as error:
        return [*checks, Check(name=f"目录（{index}）", ok=False, found=error.message, advice=error.hint)]
    if pending:
        advice = "下一次索引或提问会自动恢复。"
        checks.append(Check(name=f"目录（{index}）", ok=True, found=f"{pending} 篇文档写到一半", advice=advice))
    elif len(set(counts.values())) > 1:
        advice = f"两个库不一致，请运行 adaptive-rag index --rebuild 重建（{index}）。"
        checks.append(Check(name=f"目录（{index}）", ok=False, found="两个库的段落数不同", advice=advice))
    if index == "documents" and counts.get("text"):
        checks.append(_finds_chinese(stores))
    return checks


def _finds_chinese(stores: Stores) -> Check:
    """Whether the text store finds a stored passage by three of its own words."""
    name = "中文全文检索"
    store, words = stores.text("documents"), tokenize("公司 员工 设备")
    found = store.search(" ".join(words), top_k=1)
    if not found:
        return Check(name=name, ok=True, found="没有段落含有自检用的常见词，跳过自检")
    own = [word for word in tokenize(found[0].passage.text) if len(word) > 1][:3]
    again = store.search(" ".join(own), top_k=50)
    ok = found[0].passage.id in {match.passage.id for match in again}
    return Check(
        name=name,
        ok=ok,
        found="自检通过" if ok else f"用段落自己的词查不到它：{' '.join(own)}",
        advice="" if ok else "分词不一致，请运行 adaptive-rag index --rebuild 重建。",
    )


def _judges(settings: Settings, *, full: bool) -> list[Check]:
    """Whether the judges tell right from wrong, with the prompts and weights that run."""
    try:
        # The first endpoint alone: what another one says in its place is no finding about it.
        lms = RoleLMs(settings, only=settings.endpoints("judge")[0])
        resources = build_resources(settings)
        program = compiled_program(replace(resources, lms=lms))
    except AdaptiveRAGError as error:
        return [Check(name="评审", ok=False, found=error.message, advice=error.hint)]
    try:
        found = run_canaries(program.judges, full=full)
    finally:
        resources.close()
    return [_judge(trust) for trust in found]


def _judge(trust: JudgeTrust) -> Check:
    name = f"评审 {trust.judge}"
    if trust.trusted is None:
        return Check(name=name, ok=True, found="评审的模型没有回应，没有检查", facts={"full": trust.full})
    figures = f"{trust.cases} 个预设样例，结论准确 {trust.verdicts or 0:.2f}，模型自己区分 {trust.separation or 0:.2f}"
    facts: dict[str, bool | float | str] = {
        "trusted": trust.trusted,
        "full": trust.full,
        "verdicts": trust.verdicts or 0.0,
        "separation": trust.separation or 0.0,
    }
    missed = f"；不对的：{'；'.join(trust.failed[:5])}" if trust.failed else ""
    if trust.trusted:
        return Check(name=name, ok=True, found=f"可信：{figures}{missed}", facts=facts)
    advice = "每个回答都会注明评审不可信。换一个评审模型（ADAPTIVE_RAG_JUDGE_LM）"
    advice += "。" if trust.full else "，或用 adaptive-rag doctor --canaries 复查。"
    # Two cases are a reason for a mark; that this installation cannot be used takes all of them.
    return Check(name=name, ok=not trust.full, found=f"不可信：{figures}{missed}", advice=advice, facts=facts)


def _tracing(settings: Settings) -> Check:
    if not settings.tracking_uri:
        return Check(name="MLflow", ok=True, found="没有设置地址，不记录轨迹")
    started = start_tracing(settings)
    return Check(
        name="MLflow",
        ok=started,
        found="轨迹已开启" if started else "地址不可用，轨迹关闭（不影响回答）",
        advice="" if started else "检查 ADAPTIVE_RAG_TRACKING_URI。",
    )
