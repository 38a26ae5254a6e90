"""Composition root: settings become a ready program, or a ready indexer.

Nothing heavy happens here: stores open at their first search, the embedded language model loads in
the background, so that it is ready when the first prompt is.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from programs.adaptive_rag import AdaptiveRAG
from programs.classifier import load_classifier
from programs.errors import CompiledStateError, SettingsError
from programs.lm import RoleLMs
from programs.model_files import ensure_model, known_model
from programs.module import Resources
from programs.retrieval.base import Embedder
from programs.retrieval.combination import CombinationReranker, load_combination
from programs.retrieval.copying import CopyReport, copy_index
from programs.retrieval.embedding import load_embedder
from programs.retrieval.enriching import Enricher
from programs.retrieval.enrichment import EnrichmentCache
from programs.retrieval.indexing import Indexer
from programs.retrieval.pipeline import Searcher
from programs.retrieval.plan import Index
from programs.retrieval.preparing import Workers
from programs.retrieval.rerank import CrossEncoderReranker, Reranker
from programs.settings import ROLES, Settings, load_settings, settings_from
from programs.similarity import Similarity
from programs.state import CompiledState, apply_state, find_state, read_state
from programs.stores import INDEXES, SPLITTERS, Stores
from programs.tracing import start_tracing
from programs.weighing import JudgeState
from signatures.vocabulary import JUDGES, JudgeName

ProgressCallback = Callable[[str, int, int], None]
"""Name of a long step, units done, units in all."""
_log = logging.getLogger(__name__)


def build_program(settings: Settings | None = None, *, on_progress: ProgressCallback | None = None) -> AdaptiveRAG:
    """The ready program.

    Args:
        settings: From the environment when None.
        on_progress: Told about long steps, such as a first download.

    Raises:
        SettingsError: A setting is wrong.
        ModelFileError: The embedded model cannot be had.
    """
    settings = settings or load_settings()
    start_tracing(settings)
    resources = build_resources(settings, on_progress=on_progress)
    # The embedded model takes seconds to load: meanwhile the stores open and the user types.
    resources.lms.warm_up()
    return compiled_program(resources)


def compiled_program(resources: Resources) -> AdaptiveRAG:
    """A program with the compiled state of its resources.

    A state that was found by itself and was made for other signatures is left out with a warning; one
    that the user named is an error.

    Raises:
        CompiledStateError: The named state does not fit.
    """
    program = AdaptiveRAG(resources)
    if resources.state is None:
        return program
    try:
        apply_state(resources.state, program)
    except CompiledStateError as error:
        if resources.settings.compiled is not None:
            raise
        _log.warning("the compiled state is left out: %s", error.message)
        return AdaptiveRAG(uncompiled(resources))
    return program


def uncompiled(resources: Resources) -> Resources:
    """The same resources without a compiled state."""
    thresholds = {judge: _threshold(judge, resources.settings, {}) for judge in JUDGES}
    return replace(resources, thresholds=thresholds, judges={}, similarity=None, state=None)


def build_resources(settings: Settings, *, on_progress: ProgressCallback | None = None) -> Resources:
    """Language models, searcher, and how verdicts are reached, of a program."""
    ensure_models(settings, on_progress)
    embedder = load_embedder(settings.embedder)
    stores = Stores(settings, embedder)
    similarity = Similarity(embedder)
    lms = RoleLMs(settings)
    state = _compiled(settings, lms, embedder)
    judges = state.judges if state is not None else {}
    return Resources(
        lms=lms,
        searcher=Searcher(
            {index: stores.index(index) for index in INDEXES}, embedder, default_reranker(settings, similarity)
        ),
        settings=settings,
        thresholds={judge: _threshold(judge, settings, judges) for judge in JUDGES},
        judges=judges,
        similarity=similarity if judges else None,
        state=state,
        classifier=load_classifier(embedder.name),
        close=stores.close,
    )


def default_reranker(settings: Settings, similarity: Similarity) -> Reranker | None:
    """The cross-encoder of the settings, else the fitted combination for this embedder, if there is one."""
    if settings.reranker:
        return CrossEncoderReranker(settings.reranker)
    model = load_combination(similarity.embedder)
    return CombinationReranker(model, similarity) if model is not None else None


def _compiled(settings: Settings, lms: RoleLMs, embedder: Embedder) -> CompiledState | None:
    """The state that the settings name, or the promoted one of these language models."""
    if not settings.use_compiled:
        return None
    identity = {role: lms.identity(role) for role in ROLES}
    if settings.compiled is None:
        return find_state(identity, embedder.name)
    state = read_state(settings.compiled)
    if not state.fits(identity, embedder.name):
        made = ", ".join(f"{role} {name}" for role, name in state.lm.items())
        raise CompiledStateError(
            f"{settings.compiled} was made with {made} and {state.embedder}.",
            hint="Unset ADAPTIVE_RAG_COMPILED, or compile and calibrate with the language model that runs now.",
        )
    return state


def live_thresholds(settings: Settings) -> dict[JudgeName, float]:
    """The score from which each judge's verdict passes, with these settings and what is promoted."""
    state = _compiled(settings, RoleLMs(settings), load_embedder(settings.embedder))
    judges = state.judges if state is not None else {}
    return {judge: _threshold(judge, settings, judges) for judge in JUDGES}


def _threshold(judge: JudgeName, settings: Settings, judges: Mapping[JudgeName, JudgeState]) -> float:
    """The user's threshold, else the calibrated one, else the default."""
    name = f"{judge}_threshold"
    if judge in judges and name not in settings.model_fields_set:
        return judges[judge].threshold
    return float(getattr(settings, name))


def build_enricher(
    settings: Settings | None = None, *, summaries: bool = False, on_progress: ProgressCallback | None = None
) -> Enricher:
    """Writes questions, and summaries where asked, of passages; the next run of an indexer uses them.

    Raises:
        ModelFileError: The embedded model cannot be had.
    """
    settings = settings or load_settings()
    ensure_models(settings, on_progress)
    return Enricher(RoleLMs(settings), EnrichmentCache(settings.enrichment_file), summaries=summaries)


@contextmanager
def build_indexer(index: Index, settings: Settings | None = None, *, ray: str | None = None) -> Iterator[Indexer]:
    """An indexer that holds the right to write, healed first.

    Args:
        index: Name of the index.
        settings: From the environment when None.
        ray: Address of the Ray cluster whose processes read and embed; "" for one on this machine, None for none.

    Raises:
        MissingPackageError: Ray is not installed.
        StoreLocked: Another process is writing, or reading a Milvus Lite file.
        StoreMismatch: The index was made with another embedder.
    """
    settings = settings or load_settings()
    stores = Stores(settings, load_embedder(settings.embedder))
    try:
        with stores.writing(), _workers(index, settings, ray) as workers:
            indexer = stores.indexer(index, workers)
            indexer.recover()
            yield indexer
    finally:
        stores.close()


def _workers(index: Index, settings: Settings, ray: str | None) -> AbstractContextManager[Workers | None]:
    if ray is None:
        return nullcontext()
    from programs.retrieval.ray_pipeline import ray_workers

    return ray_workers(ray, SPLITTERS[index], partial(load_embedder, settings.embedder))


def copy_stores(
    file: Path,
    indexes: Sequence[Index] = INDEXES,
    settings: Settings | None = None,
    *,
    on_progress: ProgressCallback | None = None,
) -> dict[Index, CopyReport]:
    """Copy indexes, and what was written about their passages, to the stores that a file names.

    Args:
        file: Settings of the target, in the form of `.env`.
        indexes: What is copied.
        settings: Of the source; from the environment when None.
        on_progress: Told about each index.

    Raises:
        SettingsError: The file has a wrong value, or names the home of the source.
        StoreLocked: Another process is writing to one of both places.
        StoreMismatch: The target holds something else; see `copying.copy_index`.
    """
    settings = settings or load_settings()
    aim = settings_from(file, settings)
    if aim.index_dir.resolve() == settings.index_dir.resolve():
        raise SettingsError(
            "The target has the same ADAPTIVE_RAG_HOME as the source.", hint="Its catalogue needs a home of its own."
        )
    if aim.embedder != settings.embedder:
        raise SettingsError(
            f"The target has the embedder {aim.embedder!r}, the source {settings.embedder!r}.",
            hint="Vectors of two embedders do not fit together: index the documents there instead.",
        )
    embedder = load_embedder(settings.embedder)
    with closing(Stores(settings, embedder)) as source, closing(Stores(aim, embedder)) as target:
        with source.writing(), target.writing():
            target.enrichments.add(source.enrichments.all())
            return {
                index: copy_index(index, source.place(index), target.place(index), on_progress=on_progress)
                for index in indexes
                if source.catalog().facts(index)
            }


def ensure_models(settings: Settings, on_progress: ProgressCallback | None) -> None:
    """Fetch and verify the embedded models that the settings use.

    Raises:
        ModelFileError: One cannot be had.
    """
    names = {e.model for role in ROLES for e in settings.endpoints(role) if e.embedded}
    for name in sorted(names):
        ensure_model(
            known_model(name),
            directory=settings.models_dir,
            path=settings.model_path,
            hub=settings.model_hub,
            on_progress=on_progress,
        )
