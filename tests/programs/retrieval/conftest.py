"""Makes `conformance` importable for the test files of the stores; `tests` has no packages."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("conformance", "conformance_base")
