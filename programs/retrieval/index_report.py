"""What a run of the indexer did."""

from dataclasses import dataclass, field


@dataclass
class IndexReport:
    """What a run did; all by document id, `failed` by path with the reason and what to do.

    Attributes:
        added, changed, unchanged, removed: Documents.
        failed: Files that could not be read; the others are indexed.
        truncated: Ids of passages of which the embedder sees the beginning only.
        passages: Passages written.
        enriched: Of these, with questions or a summary.
        seconds: Wall time.
        embedding_seconds: Of these, in the embedder.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    truncated: list[str] = field(default_factory=list)
    passages: int = 0
    enriched: int = 0
    seconds: float = 0.0
    embedding_seconds: float = 0.0
