"""What a language model wrote about passages leaves the machine as a file, is edited, and is loaded elsewhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from index_bench import write
from scripted_lm import Call, ScriptedLM, scripted_lm

from programs.cli import main
from programs.retrieval.base import Row
from programs.retrieval.embedding import load_embedder
from programs.retrieval.enrichment import (
    Enrichment,
    EnrichmentCache,
    read_enrichments,
    write_enrichments,
)
from programs.settings import load_settings
from programs.stores import Stores

CORPUS = Path(__file__).parents[3] / "data"
FILES: dict[str, str | bytes] = {
    "leave.md": "# 年假\n\n## 天数\n\n入职满一年有七天。\n\n## 结转\n\n最多五天。\n",
    "pay.md": "# 工资\n\n每月十号发。\n",
}


def script(call: Call) -> dict[str, Any]:
    if call.signature == "passage_questions":
        about = "结转" if "五天" in call.text else "发薪" if "十号" in call.text else "天数"
        return {"questions": [f"{about}？", f"{about}怎么算？", f"{about}\u2028几天", f"{about} days?"]}
    return {"summary": "一句话"}


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedLM]:
    with scripted_lm(script) as running:
        monkeypatch.setenv("ADAPTIVE_RAG_LM", running.line)
        yield running


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write(tmp_path / "docs", FILES)


@pytest.fixture
def enriched(docs: Path, lm: ScriptedLM) -> Path:
    """The folder, indexed with what the language model wrote."""
    assert main(["index", str(docs), "--enrich", "--summaries", "--yes"]) == 0
    return docs


def rows(kind: str = "question") -> dict[str, str]:
    """What was written, as it stands in the dense store: id and text."""
    settings = load_settings()
    stores = Stores(settings, load_embedder(settings.embedder))
    try:
        dense = stores.dense("documents")
        found: list[Row] = dense.read(sorted(dense.ids()))[0]
    finally:
        stores.close()
    return {row.id: row.text for row in found if row.kind == kind}


def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTIVE_RAG_HOME", str(tmp_path / "elsewhere"))


def test_a_fresh_index_that_reads_the_file_has_the_same_rows_and_asks_nobody(
    enriched: Path, lm: ScriptedLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, questions, summaries = len(lm.calls), rows(), rows("summary")
    assert (len(questions), len(summaries)) == (12, 3)
    assert main(["index", "--export-enrichment", str(enriched / "enrichment.jsonl")]) == 0
    elsewhere(tmp_path, monkeypatch)
    assert main(["index", str(enriched), "--enrich", "--yes"]) == 0
    assert (rows(), rows("summary")) == (questions, summaries)
    assert len(lm.calls) == asked


def test_an_edit_in_the_file_is_what_is_found_there(
    enriched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = enriched / "enrichment.jsonl"
    assert main(["index", "--export-enrichment", str(file)]) == 0
    file.write_text(file.read_text(encoding="utf-8").replace("发薪怎么算？", "哪天到账？"), encoding="utf-8")
    elsewhere(tmp_path, monkeypatch)
    assert main(["index", str(enriched)]) == 0
    assert "哪天到账？" in rows().values()
    assert "发薪怎么算？" not in rows().values()


def test_edits_survive_the_next_export_into_the_same_file(enriched: Path, tmp_path: Path) -> None:
    file = tmp_path / "review.jsonl"
    assert main(["index", "--export-enrichment", str(file)]) == 0
    edited = file.read_text(encoding="utf-8").replace("发薪怎么算？", "哪天到账？")
    file.write_text(edited, encoding="utf-8")
    assert main(["index", "--export-enrichment", str(file)]) == 0
    assert sorted(file.read_text(encoding="utf-8").split("\n")) == sorted(edited.split("\n"))


def test_paths_choose_their_passages_in_the_order_of_the_text(
    enriched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(enriched, {"new.md": "# 新制度\n\n还没有问题。\n"})
    file = tmp_path / "one.jsonl"
    assert main(["index", str(enriched / "leave.md"), "--export-enrichment", str(file)]) == 0
    assert [one.questions[0] for one in read_enrichments(file)] == ["天数？", "结转？"]
    capsys.readouterr()
    assert main(["index", str(enriched), "--export-enrichment", str(file)]) == 0
    said = capsys.readouterr().out
    assert "3 段的问题和摘要" in said
    assert "1 段没有写过" in said
    # Nothing was indexed.
    assert not any("new.md" in row for row in rows())


def test_of_several_language_models_the_one_that_is_searched_is_exported(enriched: Path, tmp_path: Path) -> None:
    cache = EnrichmentCache(load_settings().enrichment_file)
    first = cache.all()[0]
    cache.add([Enrichment(key=first.key, model="later", questions=("后写的",))])
    file = tmp_path / "out.jsonl"
    assert main(["index", "--export-enrichment", str(file)]) == 0
    found = {one.key: one for one in read_enrichments(file)}
    assert len(found) == 3
    assert found[first.key].questions == ("后写的",)


@pytest.mark.parametrize("name", ["corpus", "code"])
def test_the_sample_files_are_written_as_they_are(name: str, tmp_path: Path) -> None:
    original = CORPUS / name / "enrichment.jsonl"
    cache = EnrichmentCache(tmp_path / "e.sqlite")
    cache.add(read_enrichments(original))
    write_enrichments(tmp_path / "out.jsonl", cache.all())
    assert (tmp_path / "out.jsonl").read_bytes() == original.read_bytes()


# -- nothing is lost -------------------------------------------------------------------------


def test_a_file_with_a_broken_line_is_named_and_left_alone(
    enriched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "review.jsonl"
    file.write_text('\n{"key": "hand-made"}\n', encoding="utf-8")
    before = file.read_bytes()
    assert main(["index", "--export-enrichment", str(file)]) == 1
    said = capsys.readouterr().err
    assert f"{file}: line 2" in said
    assert file.read_bytes() == before


@pytest.mark.parametrize("place", ["missing/out.jsonl", "."])
def test_a_place_that_cannot_be_written_is_an_error(
    place: str, enriched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "--export-enrichment", str(tmp_path / place)]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "words",
    [["--enrich"], ["--rebuild"], ["--delete"], ["--prune"], ["--category", "x"], ["--copy-to", "x.env"], ["no-such"]],
)
def test_an_export_goes_with_paths_only(words: list[str], docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["index", str(docs), "--export-enrichment", "out.jsonl", *words])
    assert stop.value.code == 2
    assert not Path("out.jsonl").exists()


def test_where_nothing_was_written_nothing_is_exported(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], [str(docs)]):
        with pytest.raises(SystemExit) as stop:
            main(["index", *words, "--export-enrichment", "out.jsonl"])
        assert stop.value.code == 2
        assert "nothing to export" in capsys.readouterr().err
    assert not Path("out.jsonl").exists()


def test_an_export_is_json_lines_that_name_no_key_and_no_price(enriched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "CANARY")
    line = load_settings().lm
    monkeypatch.setenv("ADAPTIVE_RAG_LM", f"{line}?key=MY_KEY&prompt_price=2&completion_price=8")
    write(enriched, {"new.md": "# 新制度\n\n每月十号公布。\n"})
    assert main(["index", str(enriched), "--enrich", "--yes"]) == 0
    assert main(["index", "--export-enrichment", "out.jsonl"]) == 0
    text = Path("out.jsonl").read_text(encoding="utf-8")
    records = [json.loads(one) for one in text.split("\n") if one]
    assert len(records) == 4
    assert all(set(one) == {"key", "model", "questions", "summary"} for one in records)
    assert all(one["model"] == line for one in records)
    assert "CANARY" not in text
    assert "price" not in text
