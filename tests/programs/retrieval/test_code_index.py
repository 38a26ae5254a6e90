"""Source files are cut by definition, with exact lines, and no line is lost."""

from pathlib import Path
from typing import Any

import pytest

from programs.retrieval.code_index import CODE_SUFFIXES, split_code
from signatures.records import Passage

SAMPLES = Path(__file__).resolve().parents[3] / "data" / "code"


def split(path: Path, limit: int = 2000) -> list[Passage]:
    return split_code(path, path.name, None, len, limit)


def named(passages: list[Passage], name: str) -> Passage:
    return next(p for p in passages if p.section == name)


@pytest.mark.parametrize("limit", [400, 2000])
@pytest.mark.parametrize(
    "path", [p for p in sorted(SAMPLES.rglob("*")) if p.suffix in CODE_SUFFIXES], ids=lambda p: p.name
)
def test_every_line_of_the_sample_code_is_in_a_passage_with_its_number(path: Path, limit: int) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    seen: set[int] = set()
    passages = split(path, limit)
    for passage in passages:
        own = range(passage.start_line, passage.end_line + 1)
        assert passage.text == "\n".join(lines[n - 1] for n in own)
        assert not seen & set(own)
        seen |= set(own)
    assert all(n in seen for n, line in enumerate(lines, start=1) if line.strip())
    assert len({p.id for p in passages}) == len(passages)


@pytest.mark.parametrize(
    ("file", "name", "inside"),
    [
        ("python/lanbox_sdk/tokens.py", "refresh_access_token", "grant_type"),
        ("java/example/qinglan/lanbox/WebhookVerifier.java", "WebhookVerifier > verify", "MessageDigest.isEqual"),
        ("ts/telemetryChart.ts", "downsampleLttb", "bucket"),
        ("ts/csvExport.js", "buildCsv", "DB-102"),
        ("go/heartbeat.go", "HeartbeatMonitor > IsOffline", "lastSeen[device]"),
        ("shell/backup_lantai.sh", "prune_old_backups", "tail -n"),
    ],
)
def test_a_definition_is_found_under_its_name(file: str, name: str, inside: str) -> None:
    assert inside in named(split(SAMPLES / file, 640), name).text


def test_comments_and_decorators_belong_to_the_function_below(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("import os\n\n# 清理缓存\n@lru_cache\ndef clear():\n    pass\n\nX = 1\n", encoding="utf-8")
    assert named(split(path), "clear").text.startswith("# 清理缓存\n@lru_cache\ndef clear")


def test_a_file_with_errors_is_cut_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def broken(:\n    x = = 1\n\ndef whole():\n    return 1\n" * 30, encoding="utf-8")
    text = "\n".join(p.text for p in split(path, 300))
    assert text.count("return 1") == 30


def test_a_long_function_is_cut_into_parts_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def long():\n" + "".join(f"    step_{n}()\n" for n in range(200)), encoding="utf-8")
    passages = split(path, 400)
    assert len(passages) > 3
    assert all(len(p.text) <= 400 for p in passages)
    assert {p.section for p in passages if "step" in p.text} == {"long"}


def test_a_minified_file_of_one_line_is_cut_into_passages_that_stores_and_embedders_take(
    tmp_path: Path, embedder: Any
) -> None:
    path = tmp_path / "app.min.js"
    path.write_text("var x={" + ",".join(f'"key{n}":"value {n}\\n"' for n in range(2_000)) + "};", encoding="utf-8")
    passages = split_code(path, "web/app.min.js", None, embedder.count_tokens, 512)
    assert all(embedder.count_tokens(passage.text) <= 512 for passage in passages)
    assert "".join("".join(passage.text.split()) for passage in passages) == "".join(path.read_text().split())
    assert len({passage.id for passage in passages}) == len(passages)
