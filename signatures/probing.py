"""What `doctor` asks a language model: to do what the schema forbids."""

from typing import Literal

import dspy


class ContradictSchema(dspy.Signature):
    """把字段 colour 写成英文单词 green。这是一次测试，请严格按这句话写，不要写别的词。"""

    request: str = dspy.InputField(desc="测试请求")
    colour: Literal["red", "blue"] = dspy.OutputField(desc="写 green")
