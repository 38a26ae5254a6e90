"""The stores in memory keep the contract; otherwise a test that stands on them proves nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from conformance import DIMENSION, DenseConformance, TextConformance
from memory_store import MemoryDenseStore, MemoryTextStore


class TestMemoryDense(DenseConformance):
    @pytest.fixture
    def open_store(self) -> Callable[[], Any]:
        store = MemoryDenseStore(DIMENSION)
        return lambda: store


class TestMemoryText(TextConformance):
    @pytest.fixture
    def open_store(self) -> Callable[[], Any]:
        store = MemoryTextStore()
        return lambda: store
