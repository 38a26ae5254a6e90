"""Runs are compared on the same cases, the losses are named, and the report is safe to open."""

import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from optimize_runs import scored_runs, table

from optimize.compare import chosen_runs, compare
from optimize.optimize import main
from optimize.tracking import connect
from programs.settings import load_settings

BEFORE = [0.0] * 20 + [1.0] * 20
AFTER = [1.0] * 14 + [0.0] * 6 + [1.0] * 18 + [0.0] * 2
HOSTILE = '<script>alert("x")</script>&$\\frac{1}$'


def test_gain_wins_and_losses_are_on_the_same_cases(capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings()
    scored_runs(settings, baseline=table(BEFORE), compiled=table(AFTER + [1.0] * 5, seconds=0.5))
    [found] = compare(chosen_runs([], None, settings))
    baseline, compiled = found.sides
    assert (baseline.run.name, compiled.run.name) == ("baseline", "compiled")
    assert compiled.gain is not None
    assert compiled.gain[0] == pytest.approx(0.3)
    assert 0 < compiled.gain[1] < 0.3 < compiled.gain[2]
    assert (len(compiled.rows), len(compiled.pairs), len(compiled.better)) == (45, 40, 14)
    assert [after.id for _, after in compiled.worse] == ["test-38", "test-39"]
    assert main(["compare"]) == 0
    out = capsys.readouterr().out
    assert "which cases got worse (2)" in out
    assert "test-38 half_answer zh 1.00 → 0.00: 0.2 instead of true" in out
    assert "+0.300" in out


def test_the_latest_parent_of_each_experiment_is_taken() -> None:
    settings = load_settings()
    scored_runs(settings, baseline=table([1.0]), compiled=table([0.0]))
    newer = scored_runs(settings, baseline=table([1.0]), compiled=table([0.0]))
    other = scored_runs(settings, component="router", baseline=table([1.0]), compiled=table([0.0]))
    wanted = {newer["baseline"].id, newer["compiled"].id, other["baseline"].id, other["compiled"].id}
    assert {run.id for run in chosen_runs([], None, settings)} == wanted
    assert {run.id for run in chosen_runs([], "router", settings)} == {other["baseline"].id, other["compiled"].id}
    named = chosen_runs([newer["compiled"].id, other["parent"].id[:10]], None, settings)
    assert [run.id for run in named] == [newer["compiled"].id, other["baseline"].id, other["compiled"].id]


def test_the_report_loads_nothing_runs_nothing_and_shows_everything(tmp_path: Path) -> None:
    settings = load_settings()
    hostile = {"kind": HOSTILE, "feedback": HOSTILE, "outcome": HOSTILE}
    scored_runs(
        settings,
        baseline=table(BEFORE, **hostile) + table(BEFORE, split="dev"),
        trial_1=table(AFTER, split="dev"),
        trial_2=table(BEFORE, split="dev"),
        compiled=table(AFTER, **hostile) + table(AFTER, split="dev"),
        params={"note": HOSTILE},
    )
    path = tmp_path / "below" / "report.html"
    assert main(["compare", "--html", str(path)]) == 0

    class Reader(HTMLParser):
        tags: list[str] = []
        text = ""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            linked = {value for name, value in attrs if name in ("href", "src", "xlink:href") and value}
            assert all(value.startswith("#") for value in linked)

        def handle_data(self, data: str) -> None:
            self.text += data

    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert reader.tags.count("svg") >= 9
    for wanted in (HOSTILE, "test-38", "Score by lang", "Score by trial", "Gain over the baseline", "+0.300"):
        assert wanted in reader.text, wanted


def test_runs_whose_folders_are_gone_come_from_mlflow() -> None:
    settings = load_settings()
    made = scored_runs(settings, copy=True, baseline=table(BEFORE), compiled=table(AFTER))
    client = connect(settings).MlflowClient()
    experiment = client.get_experiment_by_name("utility").experiment_id
    ids = {run.data.tags["mlflow.runName"]: run.info.run_id for run in client.search_runs([experiment])}
    shutil.rmtree(made["parent"].folder.parent)
    [found] = compare(chosen_runs([ids["compile utility"]], None, settings))
    assert [side.run.id for side in found.sides] == [made["baseline"].id, made["compiled"].id]
    assert len(found.sides[1].worse) == 2


def test_nothing_to_compare_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare"]) == 1
    assert "no scored runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "why"), [({"score": float("nan")}, "finite"), ({"id": "same"}, "twice"), ({"score": None}, "row 1")]
)
def test_a_table_that_cannot_be_used_is_named(
    row: dict[str, object], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = scored_runs(load_settings(), baseline=[{**one, **row} for one in table([1.0, 1.0])])
    assert main(["compare"]) == 1
    error = capsys.readouterr().err
    assert why in error
    assert made["baseline"].id in error
