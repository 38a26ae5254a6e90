"""A local Ray with two workers writes the same index as one process, and goes on where it was stopped."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_bench import HashEmbedder, Index, write

import programs.retrieval.indexing as indexing
from programs.cli import main
from programs.errors import MissingPackageError, StoreUnavailable
from programs.retrieval.base import Vector
from programs.retrieval.enrichment import Enrichment, EnrichmentCache, enrichment_key
from programs.retrieval.indexing import DOCUMENTS
from programs.retrieval.ray_pipeline import RayWorkers, ray_workers

FILES: dict[str, str | bytes] = {
    f"{number:02}.md": f"# 文{number}\n\n## 一\n\n第 {number} 篇。\n\n## 二\n\n第 {number} 篇的第二段。\n"
    for number in range(40)
}


@pytest.fixture(scope="module")
def workers() -> Iterator[RayWorkers]:
    pytest.importorskip("ray", reason="no Ray: pip install 'adaptive-rag[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        # The processes of Ray find the tests' own embedder as this one does.
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        before = folders()
        with ray_workers("", DOCUMENTS, HashEmbedder, processes=2) as running:
            yield running
            [folder] = folders() - before
            assert processes_of(folder)
        assert folders() == before
        deadline = time.monotonic() + 15
        while processes_of(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert processes_of(folder) == []


def folders() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("ray-")}


def processes_of(folder: str) -> list[str]:
    """Processes of the Ray with this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in line:
            found.append(line)
    return found


def opened(folder: Path, **options: Any) -> Index:
    return Index(folder, HashEmbedder(), **options)


def everything(index: Index) -> dict[str, tuple[Any, bytes]]:
    rows, vectors = index.dense.read(sorted(index.rows()))
    return {row.id: (row, vector.tobytes()) for row, vector in zip(rows, vectors, strict=True)}


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write(tmp_path / "docs", {**FILES, "empty.txt": b"", "broken.pdf": b"%PDF-1.7 \x00"})


def test_interrupted_and_continued_it_is_the_index_of_a_single_process(
    tmp_path: Path, docs: Path, workers: RayWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "BATCH_PASSAGES", 16)
    cache = EnrichmentCache(tmp_path / "enrichment.sqlite")
    alone = opened(tmp_path / "alone", enrichments=cache)
    passages = alone.indexer.passages([docs])[:7]
    cache.add(Enrichment(key=enrichment_key(p), model="m", questions=(f"{p.id}？",), summary="概") for p in passages)
    expected = alone.indexer.index_paths([docs])
    together = opened(tmp_path / "together", enrichments=cache, workers=workers)

    def stop(name: str, done: int, total: int) -> None:
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together.indexer.index_paths([docs], on_progress=stop)
    together.indexer.recover()
    before = set(together.catalog.entries("documents"))
    assert 0 < len(before) < 40
    report = together.indexer.index_paths([docs])
    assert set(report.unchanged) == before
    assert len(report.added) == 40 - len(before)
    assert everything(together) == everything(alone)
    assert together.dense.count("question") == 7
    assert together.catalog.entries("documents") == alone.catalog.entries("documents")
    assert report.failed == expected.failed
    assert len(report.failed) == 2
    assert report.embedding_seconds > 0
    assert together.embedder.batches == [], "nothing was embedded in this process"
    # Only what has changed is written, and what merely has another revision is not embedded.
    write(docs, {"03.md": "# 文3\n\n改过了。\n"})
    cache.add([Enrichment(key="0" * 64, model="m", summary="别的")])
    again = together.indexer.index_paths([docs])
    assert (again.changed, len(again.unchanged), again.passages) == (["docs/03.md"], 39, 1)
    alone.indexer.index_paths([docs])
    assert everything(together) == everything(alone)
    alone.close()
    together.close()


class Broken(HashEmbedder):
    """Fails as a library would."""

    def encode_document(self, texts: Any) -> Vector:
        raise np.linalg.LinAlgError("this embedder is broken")


def test_a_worker_that_fails_is_named_and_what_was_written_stays(
    tmp_path: Path, docs: Path, workers: RayWorkers
) -> None:
    index = opened(tmp_path / "index")
    index.indexer.index_paths([docs / "00.md"])
    index.close()
    broken = opened(tmp_path / "index", workers=RayWorkers(workers._ray, DOCUMENTS, Broken))
    with pytest.raises(StoreUnavailable) as raised:
        broken.indexer.index_paths([docs])
    assert "this embedder is broken" in raised.value.message
    assert len(broken.rows()) == 2
    broken.close()


def test_the_command_indexes_with_a_ray_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    docs = write(tmp_path / "src", {f"{n}.py": f"def f{n}():\n    return {n}\n" for n in range(3)})
    program = "import sys; from programs.cli import main; sys.exit(main(sys.argv[1:]))"
    before = folders()
    done = subprocess.run(
        [sys.executable, "-c", program, "index", "--code", "--ray", str(docs)],
        env={**os.environ, "PYTHONPATH": str(Path(indexing.__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "新增 3" in done.stdout
    assert folders() == before


def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = write(tmp_path / "docs", {"a.txt": "内容。"})
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError) as raised, ray_workers("", DOCUMENTS, HashEmbedder):
        pass
    assert raised.value.hint == "pip install 'adaptive-rag[ray]'"
    assert main(["index", str(docs), "--ray"]) == 1


def test_a_cluster_that_is_not_there_is_named() -> None:
    pytest.importorskip("ray")
    with pytest.raises(StoreUnavailable, match="cannot be used"), ray_workers("127.0.0.1:1", DOCUMENTS, HashEmbedder):
        pass
