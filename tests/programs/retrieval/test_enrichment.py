"""Questions and summaries at index time: written once, kept, shown in price, and found."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from index_bench import HashEmbedder, Index, write
from scripted_lm import Call, Reply, ScriptedLM, scripted_lm

from programs.cli import main
from programs.errors import LanguageModelError
from programs.lm import RoleLMs
from programs.retrieval.enriching import Enricher
from programs.retrieval.enrichment import Enrichment, EnrichmentCache, enrichment_key
from programs.settings import Settings, load_settings

LEAVE = "# 年假\n\n## 天数\n\n入职满一年有七天。\n\n## 结转\n\n最多五天。\n"


@pytest.fixture
def cache(tmp_path: Path) -> EnrichmentCache:
    return EnrichmentCache(tmp_path / "enrichment.sqlite")


@pytest.fixture
def index(tmp_path: Path, cache: EnrichmentCache) -> Iterator[Index]:
    made = Index(tmp_path / "index", HashEmbedder(), enrichments=cache)
    yield made
    made.close()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write(tmp_path / "docs", {"leave.md": LEAVE})


def enrich(index: Index, cache: EnrichmentCache, docs: Path, model: str, *questions: str) -> None:
    passage = next(p for p in index.indexer.passages([docs]) if p.section == "天数")
    cache.add([Enrichment(key=enrichment_key(passage), model=model, questions=questions, summary=f"{model} 的摘要")])


def asked(index: Index, question: str) -> str:
    return index.text.search(question, top_k=1, kind="question")[0].passage.section


def script(call: Call) -> dict[str, object] | Reply:
    if call.signature == "passage_questions":
        return {"questions": ["歇几天", "能休多久", "假期多长", "How many days off?"]}
    return {"summary": "满一年七天"}


@pytest.fixture
def lm() -> Iterator[ScriptedLM]:
    with scripted_lm(script) as running:
        yield running


def settings_of(lm: ScriptedLM, home: Path) -> Settings:
    return load_settings(lm=lm.line, home=home)


def test_questions_and_summaries_lead_to_their_passage(index: Index, cache: EnrichmentCache, docs: Path) -> None:
    enrich(index, cache, docs, "a", "一年能歇多久", "老员工休几天")
    report = index.indexer.index_paths([docs])
    assert (report.passages, report.enriched) == (2, 1)
    assert asked(index, "能歇多久") == "天数"
    vector = index.embedder.encode_query(["a 的摘要"])[0]
    assert index.dense.search(vector, top_k=1, kind="summary")[0].passage.section == "天数"
    assert len(index.rows()) == 2 + 2 + 1
    # What was written about a passage must not stand beside it as if it were its text.
    assert index.text.search("老员工", top_k=5) == []


def test_new_questions_replace_the_old_ones_without_a_change_of_the_file(
    index: Index, cache: EnrichmentCache, docs: Path
) -> None:
    index.indexer.index_paths([docs])
    enrich(index, cache, docs, "a", "甲问题")
    assert index.indexer.index_paths([docs]).changed == ["docs/leave.md"]
    enrich(index, cache, docs, "b", "乙问题")
    assert index.indexer.index_paths([docs]).changed == ["docs/leave.md"]
    texts = {m.row_id for m in index.text.search("问题", top_k=9, kind="question")}
    assert len(texts) == 1
    assert index.indexer.index_paths([docs]).unchanged == ["docs/leave.md"]


def test_an_enrichment_of_something_else_embeds_nothing_again(index: Index, cache: EnrichmentCache, docs: Path) -> None:
    index.indexer.index_paths([docs])
    calls = len(index.embedder.batches)
    cache.add([Enrichment(key="0" * 64, model="a", questions=("无关",), summary="")])
    assert index.indexer.index_paths([docs]).unchanged == ["docs/leave.md"]
    assert len(index.embedder.batches) == calls


def test_a_folder_brings_what_was_written_for_it(index: Index, docs: Path) -> None:
    passage = index.indexer.passages([docs])[0]
    record = {"key": enrichment_key(passage), "model": "written", "questions": ["歇几天"], "summary": ""}
    (docs / "enrichment.jsonl").write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
    assert index.indexer.index_paths([docs]).enriched == 1
    assert asked(index, "歇几天") == "天数"
    index.indexer.rebuild([docs])
    assert asked(index, "歇几天") == "天数"


def test_a_broken_line_is_named_and_the_documents_are_read_all_the_same(index: Index, docs: Path) -> None:
    (docs / "enrichment.jsonl").write_text('\n{"key": "x", "model": "written"}\n', encoding="utf-8")
    report = index.indexer.index_paths([docs])
    assert report.added == ["docs/leave.md"]
    [(path, reason)] = report.failed.items()
    assert path.endswith("enrichment.jsonl")
    assert "line 2" in reason
    assert "key" in reason


def test_every_passage_is_asked_about_once_ever(
    index: Index, cache: EnrichmentCache, docs: Path, lm: ScriptedLM, tmp_path: Path
) -> None:
    enricher = Enricher(RoleLMs(settings_of(lm, tmp_path)), cache)
    passages = index.indexer.passages([docs])
    assert enricher.cost(passages).calls == 2
    assert enricher.run(passages) == {}
    assert len(lm.calls) == 2
    # The same text in another document was read before, too.
    write(docs, {"copy/leave.md": LEAVE})
    again = index.indexer.passages([docs])
    assert len(again) == 4
    assert enricher.cost(again).calls == 0
    assert enricher.run(again) == {}
    assert len(lm.calls) == 2
    assert index.indexer.index_paths([docs]).enriched == 4


def test_an_interrupted_run_goes_on_where_it_stopped(
    index: Index, cache: EnrichmentCache, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("programs.retrieval.enriching.BATCH", 1)
    works = 1

    def failing(call: Call) -> dict[str, object] | Reply:
        nonlocal works
        if call.signature == "passage_questions":
            works -= 1
        return script(call) if works >= 0 else Reply(status=401)

    passages = index.indexer.passages([docs])
    with scripted_lm(failing) as lm:
        enricher = Enricher(RoleLMs(settings_of(lm, tmp_path)), cache)
        with pytest.raises(LanguageModelError):
            enricher.run(passages)
        assert enricher.cost(passages).passages == 1
        works = 9
        before = len(lm.calls)
        enricher.run(passages)
        assert len(lm.calls) == before + 1


def test_an_unusable_reply_costs_one_passage_not_the_run(
    index: Index, cache: EnrichmentCache, docs: Path, tmp_path: Path
) -> None:
    with scripted_lm(lambda call: "？？？" if "结转" in call.text else script(call)) as lm:
        enricher = Enricher(RoleLMs(settings_of(lm, tmp_path)), cache)
        failed = enricher.run(index.indexer.passages([docs]))
    assert len(failed) == 1
    assert len(cache.all()) == 1


def test_the_command_shows_the_price_and_asks_before_it_spends(
    docs: Path, lm: ScriptedLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ADAPTIVE_RAG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ADAPTIVE_RAG_LM", lm.line)
    monkeypatch.setenv("ADAPTIVE_RAG_PROMPT_PRICE", "1000000")
    monkeypatch.setenv("ADAPTIVE_RAG_CURRENCY", "CNY")
    monkeypatch.setenv("ADAPTIVE_RAG_COMPLETION_PRICE", "0")
    with pytest.raises(SystemExit) as stop:
        main(["index", str(docs), "--enrich"])
    assert stop.value.code == 2
    assert lm.calls == []
    shown = capsys.readouterr()
    assert "2 次" in shown.out
    assert "CNY（按设置的单价）" in shown.out
    assert "--yes" in shown.err
    assert main(["index", str(docs), "--enrich", "--yes"]) == 0
    assert len(lm.calls) == 2
    assert "2 段带问题或摘要" in capsys.readouterr().out


def test_summaries_are_written_only_where_they_are_asked_for(
    index: Index, cache: EnrichmentCache, docs: Path, lm: ScriptedLM, tmp_path: Path
) -> None:
    passages = index.indexer.passages([docs])
    enricher = Enricher(RoleLMs(settings_of(lm, tmp_path)), cache, summaries=True)
    assert enricher.cost(passages).calls == 4
    enricher.run(passages)
    assert {one.summary for one in cache.all()} == {"满一年七天"}


def test_what_a_folder_brings_is_not_paid_for(
    index: Index, cache: EnrichmentCache, docs: Path, lm: ScriptedLM, tmp_path: Path
) -> None:
    passages = index.indexer.passages([docs])
    lines = [
        json.dumps({"key": enrichment_key(p), "model": "written", "questions": ["歇\u2028几天"]}, ensure_ascii=False)
        for p in passages
    ]
    (docs / "enrichment.jsonl").write_text("\n".join(lines), encoding="utf-8")
    enricher = Enricher(RoleLMs(settings_of(lm, tmp_path)), cache)
    assert enricher.cost(index.indexer.passages([docs])).calls == 0
    assert enricher.run(index.indexer.passages([docs])) == {}
    assert lm.calls == []
    assert index.indexer.index_paths([docs]).enriched == 2
