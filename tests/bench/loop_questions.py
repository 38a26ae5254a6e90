"""What `bench_loop` asks: questions that need one hop or two, the passages, and a model that plays along.

The second half of the questions cannot be answered from what is found first: it names a team, and only a
search for the team finds the number. Replies follow from the prompt alone (which passages it holds), so
that a program may call in any order, twice, or side by side, and still needs the same hops.
"""

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scripted_lm import Call, Reply, helpful

TOPICS = 40
"""Of either kind."""
_CODE = re.compile(r"[DS]\d{2}")


@dataclass(frozen=True)
class Question:
    """A question and the hops that it needs."""

    text: str
    hops: int


def question(number: int, *, hops: int) -> Question:
    """The `number`-th question with so many hops; no two have the same text, so that nothing is known before."""
    topic = number % TOPICS
    if hops == 1:
        return Question(f"设备 D{topic:02} 的保修期是多少个月？（问题 {number}）", 1)
    return Question(f"系统 S{topic:02} 出错时打给谁、号码多少？（问题 {number}）", 2)


def write_documents(folder: Path) -> None:
    """Write the passages, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(TOPICS):
        # The name of a file is a title, and is searched: that of a team must not hold the number of its system.
        system = f"系统 S{n:02} 由 {_team(n)} 小组维护。"
        texts = {f"D{n:02}": _warranty(n), f"S{n:02}": system, _team(n): _telephone(n)}
        for name, text in texts.items():
            (folder / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")


def _warranty(topic: int) -> str:
    return f"设备 D{topic:02} 的保修期是 {12 + topic} 个月。"


def _team(topic: int) -> str:
    """A name that has no pair of characters in common with a question: it is found by its name alone."""
    return f"{chr(ord('K') + topic // 8)}{chr(ord('P') + topic % 8)}"


def _telephone(topic: int) -> str:
    return f"{_team(topic)} 小组的值班电话是 {95 - topic}55。"


def reply_to(call: Call) -> Reply:
    """Plays every role; an answer without the number is found useless."""
    made = _SCRIPT(call)
    return made if isinstance(made, Reply) else Reply(json.dumps(made, ensure_ascii=False))


def _generate(call: Call) -> dict[str, Any]:
    code = _CODE.findall(call.input("question"))[0]
    topic = int(code[1:])
    wanted = _warranty(topic) if code[0] == "D" else _telephone(topic)
    return {"answer": f"{wanted[:-1]}[1]。" if wanted in call.text else f"系统 {code} 由一个小组维护[1]。"}


def _utility(call: Call) -> Reply:
    useful = any(word in call.input("answer") for word in ("保修期是", "值班电话是"))
    label = "是" if useful else "否"
    text = json.dumps({"verdict": label, "reason": "看号码或月数"}, ensure_ascii=False)
    return Reply(text, probability=0.9 if useful else 0.1)


def _rewrite(call: Call) -> dict[str, Any]:
    code = _CODE.findall(call.input("question"))[0]
    return {"query": f"{_team(int(code[1:]))} 小组 值班电话"}


_SCRIPT = helpful(generate=_generate, utility=_utility, rewrite=_rewrite)


class LightEmbedder:
    """Stands for the embedder: hashed pairs of characters, the same in every process, a tenth of a millisecond."""

    name = "bench/pairs"
    dimension = 384
    max_tokens = 512

    def count_tokens(self, text: str) -> int:
        return len(text)

    def encode_query(self, texts: Sequence[str]) -> Any:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for pair in zip(f" {text}", text, strict=False):
                vectors[row, zlib.crc32("".join(pair).encode()) % self.dimension] += 1.0
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    encode_document = encode_query
