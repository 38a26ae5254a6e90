"""The embedded language model on the sample knowledge base: plumbing with the small one, answers with the default."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.model
REPOSITORY = Path(__file__).resolve().parents[1]
HOME = Path(os.environ.get("ADAPTIVE_RAG_HOME", "~/.cache/adaptive-rag")).expanduser()


@pytest.fixture(scope="module")
def sample_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of its own with the index of the sample documents, copied from the one that `make` built."""
    home = tmp_path_factory.mktemp("sample")
    if (HOME / "index").is_dir():
        shutil.copytree(HOME / "index", home / "index", ignore=shutil.ignore_patterns("LOCK", "*.lock", "*holder*"))
    # Brings a copy up to date, or builds the index where there was none.
    environment = {**os.environ, "ADAPTIVE_RAG_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    for arguments in (["data/corpus"], ["--code", "data/code"]):
        command = [sys.executable, "-m", "programs.cli", "index", *arguments]
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, timeout=300)
    return home


@pytest.fixture
def build(sample_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Builds a program with an embedded model on the sample index."""
    shutil.copytree(sample_home / "index", tmp_path / "own" / "index")
    (tmp_path / "own" / "models").symlink_to(HOME / "models")
    monkeypatch.setenv("ADAPTIVE_RAG_HOME", str(tmp_path / "own"))
    built = []

    def make(line: str) -> Any:
        from programs.build import build_program
        from programs.settings import load_settings

        built.append(build_program(load_settings(lm=line, deadline=300)))
        return built[-1]

    yield make
    for rag in built:
        rag.resources.close()


def test_every_strategy_ends_in_a_typed_record_with_the_small_model(build: Callable[[str], Any]) -> None:
    from signatures.records import Answer

    rag = build("local:qwen2.5-coder-0.5b")
    for strategy in ("direct_reply", "fast_retrieval", "code_search", "clarify_needed", "fallback"):
        record = rag(question="刷新访问令牌的函数在哪里？", strategy=strategy, plan={"max_hops": 1}).record
        assert Answer.model_validate_json(record.model_dump_json()) == record
        assert record.answer
        if strategy == "code_search":
            assert any(hit.passage.section == "refresh_access_token" for hit in record.trace[0].hits)
            assert all(hit.passage.language for hit in record.trace[0].hits)


def test_the_default_model_answers_the_default_question_with_its_source(build: Callable[[str], Any]) -> None:
    rag = build("local")
    record = rag(question="公司每月提供的话费补贴金额是多少元？", strategy="fast_retrieval").record
    assert record.status == "answered"
    assert "50" in record.answer
    assert record.citations[0].location == "corpus/handbook/communication-allowance.md"
    refused = rag(question="火星上有没有生命？", category="没有这个类别", strategy="fast_retrieval").record
    assert refused.status == "no_evidence"
    chat = rag(question="你吃饭了不？", strategy="direct_reply").record
    assert chat.status == "answered"
    assert not chat.trace
