"""A good reply of the router, and the adapter's reading of any, for tests."""

import json
from typing import Any

from programs.adapter import FieldAdapter

ROUTE = {
    "intent": "FACT_LOOKUP",
    "strategy": "fast_retrieval",
    "confidence": 95,
    "reasoning": "问一个事实",
    "clarification_questions": [],
}


def parse(signature: Any, reply: Any) -> dict[str, Any]:
    return FieldAdapter().parse(signature, reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False))
