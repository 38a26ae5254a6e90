"""A run is complete without MLflow, arrives in MLflow whole, and comes back from it."""

import shutil
from pathlib import Path

import pytest

from optimize.tracking import RunNotFound, children, connect, finish, load_run, new_run, read_table
from programs.settings import Settings, load_settings

ROWS = [{"id": "c1", "score": 1.0, "answer": "七天"}, {"id": "c2", "score": 0.0, "answer": ""}]


@pytest.fixture
def settings() -> Settings:
    return load_settings(api_key="sk-CANARY-1")


def made(settings: Settings) -> tuple[str, str]:
    parent = new_run("utility", "compile utility", settings=settings)
    child = new_run("utility", "baseline", parent=parent, settings=settings)
    child.params = {"lm": "qwen", "seed": 0}
    child.metrics = {"test/recall@5": 0.5}
    child.write_table("cases.jsonl", ROWS)
    finish(parent, child, settings=settings)
    return parent.id, child.id


def test_runs_are_in_mlflow_with_parent_parameters_figures_and_cases(settings: Settings) -> None:
    parent, child = made(settings)
    client = connect(settings).MlflowClient()
    experiment = client.get_experiment_by_name("utility")
    by_name = {run.data.tags["mlflow.runName"]: run for run in client.search_runs([experiment.experiment_id])}
    baseline, above = by_name["baseline"], by_name["compile utility"]
    assert baseline.data.tags["mlflow.parentRunId"] == above.info.run_id
    assert baseline.data.params["lm"] == "qwen"
    assert list(baseline.data.metrics.values()) == [0.5]
    assert "cases.jsonl" in {item.path for item in client.list_artifacts(baseline.info.run_id)}
    assert [run.id for run in children(load_run(parent, settings))] == [child]


def test_a_run_comes_back_from_mlflow_when_its_folder_is_gone(settings: Settings) -> None:
    _, child = made(settings)
    client = connect(settings).MlflowClient()
    experiment = client.get_experiment_by_name("utility")
    [found] = client.search_runs([experiment.experiment_id], filter_string="attributes.run_name = 'baseline'")
    shutil.rmtree(load_run(child, settings).folder)
    again = load_run(found.info.run_id, settings)
    assert again.params["lm"] == "qwen"
    assert read_table(again, "cases.jsonl") == ROWS


def test_a_tracking_server_that_is_down_costs_a_warning_and_no_run(caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings(tracking_uri="http://127.0.0.1:9")
    run = new_run("utility", "baseline", settings=settings)
    run.write_table("cases.jsonl", ROWS)
    with caplog.at_level("WARNING"):
        assert finish(run, settings=settings) is False
    assert "MLflow" in caplog.text
    assert read_table(load_run(run.id, settings), "cases.jsonl") == ROWS


def test_an_unknown_run_is_an_error_with_a_hint(settings: Settings) -> None:
    with pytest.raises(RunNotFound, match="nothing"):
        load_run("nothing", settings)


def test_no_secret_of_the_settings_is_in_a_run(settings: Settings, tmp_path: Path) -> None:
    made(settings)
    for path in settings.home.rglob("*"):
        if path.is_file():
            assert b"CANARY" not in path.read_bytes(), path
