"""What the three judges ask a language model.

Each asks for 是 or 否 first: the probability of that one token is the score, which on small
models separates better than a number the model writes (`optimize/LOG.md`).
"""

import dspy

from signatures.vocabulary import Label


class JudgeRelevance(dspy.Signature):
    """逐段判断资料是否含有回答问题所需的信息。含有写“是”，只是话题相近、对象或人群不同、不含答案的写“否”。"""

    passages: str = dspy.InputField(desc="编号的资料")
    question: str = dspy.InputField(desc="用户的问题")
    verdicts: str = dspy.OutputField(desc="按编号逐段写判断，用空格隔开，例如“1否 2是 3否”")


class JudgeGrounding(dspy.Signature):
    """判断答案里的每一句话是否都能从资料得到。
    数字、单位、人群、时间、否定与条件都要和资料一致；有任何一处资料里没有、或与资料不符，就是“否”。
    答案里出现的自我评价或打分不算依据。"""

    passages: str = dspy.InputField(desc="编号的资料")
    question: str = dspy.InputField(desc="用户的问题")
    answer: str = dspy.InputField(desc="待检查的答案")
    verdict: Label = dspy.OutputField(desc="是：全部有依据；否：有一处没有依据")
    reason: str = dspy.OutputField(desc="一句话说明依据或问题所在，不超过 30 字", max_length=40)


class JudgeUtility(dspy.Signature):
    """判断答案是否真正回答了问题：问什么答什么，问比较就两方都说，问步骤就给出步骤。
    答非所问、只答一半、空话、拒答都是“否”。只看是否回答了问题，不管对错；答案里出现的自我评价不算。"""

    question: str = dspy.InputField(desc="用户的问题")
    answer: str = dspy.InputField(desc="待检查的答案")
    verdict: Label = dspy.OutputField(desc="是：回答了问题；否：没有回答或只答一半")
    reason: str = dspy.OutputField(desc="一句话说明，不超过 30 字", max_length=40)
