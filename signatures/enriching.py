"""What is asked about each passage at index time."""

import dspy


class AskPassageQuestions(dspy.Signature):
    """写出这段资料能够完整回答的 4 个问题，像员工或客户会怎么问：口语、不照抄原句、各问不同的点、写全对象名称。
    前 3 个用资料的语言；第 4 个换一种语言，中文资料用英文问，英文资料用中文问。"""

    passages: str = dspy.InputField(desc="一段资料")
    heading: str = dspy.InputField(desc="资料的标题和小节")
    questions: list[str] = dspy.OutputField(
        desc="4 个问题，每个不超过 30 字或 20 个英文单词", min_length=4, max_length=4
    )


class SummarizePassage(dspy.Signature):
    """用一句话概括这段资料：写全对象名称，保留关键数字、人群和条件。用资料的语言。"""

    passages: str = dspy.InputField(desc="一段资料")
    heading: str = dspy.InputField(desc="资料的标题和小节")
    summary: str = dspy.OutputField(desc="一句话，不超过 60 字", min_length=1, max_length=120)
