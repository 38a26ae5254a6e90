"""The command, through its real entry point, in processes of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import Reply, ScriptedLM, helpful, scripted_lm

COMMAND = [str(Path(sys.executable).with_name("adaptive-rag"))]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def lm() -> Iterator[ScriptedLM]:
    with scripted_lm(helpful(generate={"answer": "年假每年七天[1]。"})) as endpoint:
        yield endpoint


@pytest.fixture
def run(lm: ScriptedLM) -> Run:
    def call(*arguments: str, lines: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        variables = {**os.environ, "ADAPTIVE_RAG_LM": lm.line, **environment}
        return subprocess.run(
            [*COMMAND, *arguments],
            env=variables,
            input=lines,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture
def indexed(run: Run, tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "leave.md").write_text("# 年假办法\n\n## 天数\n\n年假每年七天。\n", encoding="utf-8")
    (docs / "secret.md").write_text("---\ncategory: 机密\n---\n# 底价\n\n年假折现底价 83 元。\n", encoding="utf-8")
    assert run("index", str(docs)).returncode == 0
    return docs


def test_help_is_there_at_once_and_imports_neither_dspy_nor_torch() -> None:
    code = "import sys, programs.cli; print(sorted({'dspy', 'torch', 'mlflow', 'pymilvus'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
    started = time.monotonic()
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    assert time.monotonic() - started < 2.0
    assert all(name in shown for name in ("ask", "chat", "index", "doctor"))


def test_ask_prints_answer_sources_and_progress_and_ends_with_0(run: Run, indexed: Path) -> None:
    done = run("ask", "年假有几天？")
    assert done.returncode == 0
    assert "年假每年七天[1]。" in done.stdout
    assert "年假办法 > 天数（docs/leave.md）" in done.stdout
    for part in ("路由", "找到", "有据", "有用"):
        assert part in done.stderr
    assert "\x1b[" not in done.stdout + done.stderr


def test_json_is_the_whole_record(run: Run, indexed: Path) -> None:
    record = json.loads(run("ask", "年假有几天？", "--json").stdout)
    assert record["status"] == "answered"
    assert record["citations"][0]["location"] == "docs/leave.md"
    assert record["trace"][0]["grounding"]["passed"] is True
    # The classifier routes; the three judges and the generator are asked.
    assert record["usage"]["lm_calls"] == 4


def test_trace_is_a_table(run: Run, indexed: Path) -> None:
    shown = run("ask", "年假有几天？", "--trace").stdout
    assert "检索语句" in shown
    assert "finish" in shown


def test_category_filters_and_cannot_be_widened(run: Run, indexed: Path) -> None:
    for category in ("docs", 'docs" or category == "机密', "docs\\", "%"):
        shown = run("ask", "年假底价是多少元？", "--json", "--category", category).stdout
        assert "83 元" not in shown
    assert "83 元" in run("ask", "年假底价是多少元？", "--json", "--category", "机密").stdout


def test_strategy_and_plan_are_obeyed(run: Run, indexed: Path, lm: ScriptedLM) -> None:
    record = json.loads(
        run("ask", "年假", "--json", "--strategy", "standard_retrieval", "--plan", '{"top_k": 1}').stdout
    )
    assert record["strategy"] == "standard_retrieval"
    assert len(record["trace"][0]["hits"]) == 1
    assert lm.count("route") == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("ask",), "question"),
        (("ask", "年假", "--strategy", "nonsense"), "STRATEGY"),
        (("ask", "年假", "--plan", "[1]"), "JSON object"),
        (("ask", "年假", "--strategy", "fast_retrieval", "--plan", '{"topk": 1}'), "topk"),
        (("index",), "PATH"),
        (("index", "no-such-file"), "no-such-file"),
        (("nonsense",), "nonsense"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(run: Run, arguments: tuple[str, ...], named: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_no_answer_ends_with_3(run: Run, indexed: Path, lm: ScriptedLM) -> None:
    done = run("ask", "火星上有生命吗", "--category", "没有这个类别")
    assert done.returncode == 3
    assert "没有找到" in done.stdout
    assert lm.count("generate") == 0


def test_money_is_shown_and_a_limit_without_a_price_says_what_to_set(run: Run, indexed: Path, lm: ScriptedLM) -> None:
    priced = f"{lm.line}?prompt_price=1000&completion_price=1000"
    done = run("ask", "年假有几天？", "--trace", ADAPTIVE_RAG_LM=priced, ADAPTIVE_RAG_CURRENCY="CNY")
    assert done.returncode == 0
    assert done.stdout.count("CNY") == 2
    record = json.loads(run("ask", "年假有几天？", "--json", ADAPTIVE_RAG_LM=priced).stdout)
    assert record["usage"]["cost"] == record["trace"][0]["usage"]["cost"] > 0
    done = run("ask", "年假有几天？", ADAPTIVE_RAG_MAX_COST="0.5")
    assert done.returncode == 1
    assert "ADAPTIVE_RAG_LM has no price" in done.stderr
    assert "ADAPTIVE_RAG_PROMPT_PRICE" in done.stderr


def test_an_endpoint_that_refuses_ends_with_1_and_no_traceback(run: Run, indexed: Path) -> None:
    done = run("ask", "年假有几天？", ADAPTIVE_RAG_LM="m@http://127.0.0.1:9/v1?timeout=2")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert "暂时不可用" in done.stdout


def test_a_wrong_setting_is_named_and_its_value_is_not_shown(run: Run) -> None:
    done = run("ask", "年假", ADAPTIVE_RAG_DEADLINE="sk-CANARY")
    assert done.returncode == 1
    assert "ADAPTIVE_RAG_DEADLINE" in done.stderr
    assert "CANARY" not in done.stderr


@pytest.mark.parametrize("question", ["", "   ", "？！。", "👍"])
def test_nothing_to_answer_costs_no_call(run: Run, lm: ScriptedLM, question: str) -> None:
    done = run("ask", question)
    assert done.returncode == 1
    assert done.stdout
    assert not lm.calls


def test_another_encoding_of_the_terminal_does_no_harm(run: Run, indexed: Path) -> None:
    done = run("ask", "年假有几天？🙂", PYTHONUTF8="0", LC_ALL="POSIX", PYTHONIOENCODING="")
    assert done.returncode == 0
    assert "年假每年七天" in done.stdout


def test_chat_keeps_history_and_resumes_after_a_question_back(run: Run, indexed: Path, lm: ScriptedLM) -> None:
    done = run("chat", lines="那个怎么弄\n我说的是年假有几天\n可以结转吗\n/quit\n")
    assert done.returncode == 0
    assert "1. 您问的是哪个型号？" in done.stdout
    assert "年假每年七天" in done.stdout
    joined = "那个怎么弄（补充：我说的是年假有几天）"
    assert lm.asked("generate")[0].input("question") == joined
    assert f"用户：{joined}\n助手：年假每年七天" in lm.asked("resolve")[0].input("history")


def test_a_second_process_on_the_same_files_is_told_who_has_them(run: Run, indexed: Path, lm: ScriptedLM) -> None:
    environment = {**os.environ, "ADAPTIVE_RAG_LM": lm.line}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*COMMAND, "chat"], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stderr is not None
        holder.stdin.write("年假有几天？\n")
        holder.stdin.flush()
        while "有用" not in holder.stderr.readline():
            pass
        started = time.monotonic()
        done = run("index", str(indexed))
        assert time.monotonic() - started < 10
        holder.stdin.close()
        holder.wait(timeout=20)
    assert done.returncode == 1
    assert str(holder.pid) in done.stderr
    assert run("index", str(indexed)).returncode == 0


def test_doctor_says_whether_schemas_are_enforced(run: Run, indexed: Path) -> None:
    with scripted_lm(helpful(probe={"colour": "red"})) as obeying:
        good = run("doctor", "--json", ADAPTIVE_RAG_LM=obeying.line)
    with scripted_lm(helpful(probe={"colour": "green"})) as ignoring:
        bad = run("doctor", "--json", ADAPTIVE_RAG_LM=ignoring.line)
    assert json.loads(good.stdout)[0]["facts"]["schema_enforced"] is True
    assert json.loads(bad.stdout)[0]["facts"]["schema_enforced"] is False
    assert "JSON Schema" in json.loads(bad.stdout)[0]["advice"]
    assert {check["name"] for check in json.loads(good.stdout)} >= {"中文全文检索", "MLflow"}


def test_doctor_names_a_refused_key_and_does_not_show_it(run: Run, indexed: Path) -> None:
    def refuse(call: Any) -> Reply:
        return Reply(status=401, error={"message": "wrong key"})

    with scripted_lm(refuse) as lm:
        done = run("doctor", ADAPTIVE_RAG_LM=f"{lm.line}?key=OWN_KEY", OWN_KEY="sk-CANARY-1")
    assert done.returncode == 1
    assert "API key" in done.stdout
    assert "CANARY" not in done.stdout + done.stderr


def test_index_reports_bad_files_and_goes_on(run: Run, tmp_path: Path) -> None:
    docs = tmp_path / "mixed"
    docs.mkdir()
    (docs / "good.md").write_text("# 好\n\n内容。", encoding="utf-8")
    (docs / "bad.pdf").write_bytes(b"%PDF nothing")
    done = run("index", str(docs))
    assert done.returncode == 1
    assert "新增 1" in done.stdout
    assert "bad.pdf" in done.stdout
    assert run("index", "--delete", str(docs)).returncode == 0


def test_doctor_marks_judges_that_say_yes_to_everything_and_answers_carry_the_mark(run: Run, indexed: Path) -> None:
    """The judges of the scripted model always say yes."""
    with scripted_lm(helpful(probe={"colour": "red"}, generate={"answer": "年假每年七天[1]。"})) as lm:
        yes = {"ADAPTIVE_RAG_LM": lm.line}
        short, full = run("doctor", **yes), run("doctor", "--canaries", "--json", **yes)
        answered = json.loads(run("ask", "年假有几天？", "--json", **yes).stdout)
    assert short.returncode == 0
    assert short.stdout.count("不可信") >= 3
    assert "--canaries" in short.stdout
    judges = [check for check in json.loads(full.stdout) if check["name"].startswith("评审")]
    assert full.returncode == 1
    assert [check["facts"]["trusted"] for check in judges] == [False] * 3
    assert sum("评审不可信" in text for text in answered["degraded"]) == 3
