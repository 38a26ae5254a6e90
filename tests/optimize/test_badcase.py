"""A trace and the right answer become a case that the schema, the loader and the data card's tests take."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import helpful

from data import loading
from data.loading import load_cases, load_question_cases
from data.schema import QuestionCase
from optimize.tracking import connect
from programs.cli import main
from programs.settings import load_settings
from programs.tracing import start_tracing

GOLD = "corpus/handbook/walking-travel.md:骑行出差每公里补贴 1.5 元"
RIGHT = ["--answer", "每公里 1.5 元。", "--facts", "1.5 元|1.5元", "--gold", GOLD]
NEW = "踩单车出差的话一里路给我多少"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's metadata with the entry points that pyproject.toml declares, as an installation writes it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path / "site" / "adaptive_rag-0.0.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: adaptive-rag\nVersion: 0.0.0\n", encoding="utf-8")
    lines = [f"{name} = {target}" for name, target in project["entry-points"]["adaptive_rag.commands"].items()]
    (folder / "entry_points.txt").write_text("\n".join(["[adaptive_rag.commands]", *lines]), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.fixture
def trace(make_rag: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    def write(question: str = NEW) -> str:
        record = make_rag(helpful()).ask(question)
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=2), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "mine" / "cases.jsonl"


def add(trace: str, output: Path, *more: str, right: list[str] = RIGHT) -> int:
    return main(["badcase", "add", "--trace", trace, *right, "--output", str(output), *more])


def test_a_trace_becomes_a_case_with_the_next_number(
    trace: Any, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(trace(), output) == 0
    [case] = load_cases(output, QuestionCase)
    known = load_question_cases()
    assert case.id not in {one.id for one in known}
    assert case.group not in {one.group for one in known}
    assert (case.question, case.intent, case.split, case.kind, case.lang) == (
        NEW, "FACT_LOOKUP", "train", "single_fact", "zh"
    )  # fmt: skip
    assert case.origin.startswith("trace ")
    assert (case.answerable, case.facts) == (True, (("1.5 元", "1.5元"),))
    assert case.gold[0].quote == "骑行出差每公里补贴 1.5 元"
    assert case.id in capsys.readouterr().out


def test_the_next_case_goes_behind_it_and_a_question_is_taken_once(
    trace: Any, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(trace(), output) == 0
    whole = output.read_text(encoding="utf-8")
    output.write_text(whole.rstrip("\n"), encoding="utf-8")
    assert add(trace("骑單車出差 1 公里可領多少錢呀"), output, "--intent", "HOW_TO", "--split", "dev") == 0
    first, second = load_cases(output, QuestionCase)
    assert int(second.id[3:]) == int(first.id[3:]) + 1
    assert (second.intent, second.split, second.kind) == ("HOW_TO", "dev", "how_to")
    assert add(trace("踩單車出差的話，一里路給我多少？"), output) == 1
    assert f"{first.id} asks the same" in capsys.readouterr().err
    assert add(trace(load_question_cases()[0].question.upper() + "？"), output) == 1
    assert len(load_cases(output, QuestionCase)) == 2


def test_a_question_without_an_answer_needs_no_gold(trace: Any, output: Path) -> None:
    assert add(trace("火星出差每公里补多少"), output, right=["--answer", "资料里没有。"]) == 0
    [case] = load_cases(output, QuestionCase)
    assert (case.answerable, case.kind, case.gold) == (False, "unanswerable", ())


def test_a_paraphrase_joins_its_group_and_its_split(
    trace: Any, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = next(case for case in load_question_cases() if case.split == "test")
    assert add(trace(), output, "--group", other.group, "--split", "train") == 1
    assert add(trace(), output, "--group", "q-nobody") == 1
    assert not output.exists()
    assert add(trace(), output, "--group", other.group) == 0
    assert load_cases(output, QuestionCase)[0].split == "test"


def test_the_projects_own_file_is_the_default(
    trace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "FOLDER", tmp_path)
    assert main(["badcase", "add", "--trace", trace(), *RIGHT]) == 0
    assert load_question_cases()[0].id == "qa-0001"
    assert "data/README.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("right", "why"),
    [
        (["--answer", "x", "--gold", GOLD], "gold and facts"),
        (["--answer", "x", "--facts", "1.5 元"], "--facts needs --gold"),
        (["--answer", "x", "--facts", "1.5 元", "--gold", "corpus/handbook/walking-travel.md"], "DOC:QUOTE"),
        (["--answer", "x", "--facts", "1.5 元", "--gold", "corpus/nowhere.md:骑行出差"], "0 passages"),
        (
            ["--answer", "x", "--facts", "1.5 元", "--gold", "corpus/handbook/walking-travel.md:不在这里的话"],
            "passages",
        ),
        (["--answer", "用 sk-abcdefgh12345678 登录"], "secret"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_nothing_is_written(
    trace: Any, output: Path, right: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(trace(), output, right=right) == 1
    assert why in capsys.readouterr().err
    assert not output.exists()


def test_no_secret_and_nothing_else_of_the_trace_is_copied(
    trace: Any, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTIVE_RAG_MILVUS_TOKEN", "root:CANARY-2")
    monkeypatch.setenv("MY_KEY", "CANARY-3")
    monkeypatch.setenv("ADAPTIVE_RAG_LM", "m@http://127.0.0.1:1/v1?key=MY_KEY")
    question = "我的密钥是 sk-CANARY0123456789，口令 root:CANARY-2，还有 CANARY-3，骑车补多少"
    assert add(trace(question), output) == 0
    text = output.read_text(encoding="utf-8")
    assert "CANARY" not in text
    assert load_cases(output, QuestionCase)[0].question == "我的密钥是 ***，口令 ***，还有 ***，骑车补多少"
    for word in ("供应商底价", "七天无理由", "degraded", "usage"):
        assert word not in text


def test_a_trace_of_mlflow_is_as_good(
    make_rag: Any, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"sqlite:///{tmp_path / 'traces.db'}"
    monkeypatch.setenv("ADAPTIVE_RAG_TRACKING_URI", address)
    bench = make_rag(helpful(), tracking_uri=address)
    assert start_tracing(bench.rag.resources.settings)
    mlflow = connect(load_settings())
    try:
        bench.ask(NEW)
        mlflow.flush_trace_async_logging()
        trace_id = mlflow.get_last_active_trace_id()
    finally:
        mlflow.dspy.autolog(disable=True)
    words = ["badcase", "add", *RIGHT, "--output", str(output), "--mlflow"]
    assert main([*words, "tr-nothing"]) == 1
    assert "tr-nothing" in capsys.readouterr().err
    assert main([*words, trace_id]) == 0
    assert load_cases(output, QuestionCase)[0].origin == f"trace {trace_id}"


def test_help_names_the_command_and_loads_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "badcase" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["badcase", "add", "--help"])
    assert "--mlflow" in capsys.readouterr().out
