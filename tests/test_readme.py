"""The README is executed: its commands, its Python, its settings table."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_lm import helpful, scripted_lm

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
SHELL = [
    line.split("  #")[0].rstrip()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.strip() and not line.startswith("#")
]
COMMANDS = [line for line in SHELL if line.startswith("adaptive-rag")]
EXPORTS = [line for line in SHELL if line.startswith("export ")]
MAKES = [line for line in SHELL if line.startswith("make")]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "leave.md").write_text("# 年假\n\n## 结转\n\n最多结转 5 天。\n", encoding="utf-8")
    (tmp_path / "there.env").write_text(f"ADAPTIVE_RAG_HOME={tmp_path / 'there'}\n", encoding="utf-8")
    enrichment = {"key": "0" * 64, "model": "written", "questions": ["结转几天"]}
    (folder / "enrichment.jsonl").write_text(json.dumps(enrichment), encoding="utf-8")
    (folder / "a.py").write_text("def refresh():\n    return 1\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command: str, docs: Path) -> None:
    words = shlex.split(command)
    words = [str(docs) if word in ("文件或目录", "源码目录") else word for word in words]
    words = [str(docs.with_name("there.env")) if word == "目标.env" else word for word in words]
    program = str(Path(sys.executable).with_name("adaptive-rag"))
    with scripted_lm(helpful(probe={"colour": "red"}, generate={"answer": "最多结转 5 天[1]。"})) as lm:
        environment = {**os.environ, "ADAPTIVE_RAG_LM": lm.line}
        run = [program, *words[1:]]
        subprocess.run([program, "index", str(docs)], env=environment, check=True, capture_output=True, timeout=60)
        done = subprocess.run(
            run, env=environment, input="/quit\n", capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode in (0, 3), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("line", MAKES)
def test_a_target_of_the_readme_is_there(line: str) -> None:
    done = subprocess.run(
        ["make", "-n", *shlex.split(line)[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", EXPORTS)
def test_an_exported_setting_of_the_readme_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from programs.settings import ROLES, load_settings

    name, value = shlex.split(line)[1].split("=", 1)
    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.setenv(name, value)
    settings = load_settings()
    assert all(settings.endpoints(role) for role in ROLES)


def test_the_settings_table_holds_every_setting_with_its_default() -> None:
    from programs.settings import PREFIX, Settings

    rows = dict(re.findall(r"^\| `(ADAPTIVE_RAG_\w+)` \| (.*?) \|", README, re.MULTILINE))
    expected = {}
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        expected[PREFIX + name.upper()] = default
    assert rows == expected


def test_the_example_file_names_only_real_settings() -> None:
    from programs.settings import PREFIX, Settings

    names = re.findall(
        r"^#? ?(ADAPTIVE_RAG_\w+)=", (REPOSITORY / ".env.example").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert names
    assert set(names) <= {PREFIX + name.upper() for name in Settings.model_fields}


def test_the_python_of_the_readme_runs(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from programs.build import build_indexer

    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    with build_indexer("documents") as indexer:
        indexer.index_paths([docs])
    with scripted_lm(helpful(generate={"answer": "每月 5 天[1]。"})) as lm:
        monkeypatch.setenv("ADAPTIVE_RAG_LM", lm.line)
        names: dict[str, object] = {}
        exec(compile(code, "README.md", "exec"), names)
        names["rag"].resources.close()  # type: ignore[attr-defined]
    assert names["result"].status == "answered"  # type: ignore[attr-defined]
