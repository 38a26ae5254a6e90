"""What the generator and the direct reply ask a language model."""

import dspy


class AnswerFromPassages(dspy.Signature):
    """只根据资料回答问题。

    - 直接回答，写成完整的一句或几句话，数字、单位、人群、条件照资料原样写。
    - 资料分人群、版本或新旧规定时，先看清问题问的是哪一种；问比较时把每一方都写出来。
    - 在用到资料的句子末尾标出编号，如 [1] 或 [2]。
    - 资料里没有答案，就把 answer 写成空字符串，不要猜，不要用常识补充。
    - 用 answer_language 指定的语言回答。"""

    passages: str = dspy.InputField(desc="编号的资料")
    question: str = dspy.InputField(desc="用户的问题")
    answer_language: str = dspy.InputField(desc="回答所用的语言")
    answer: str = dspy.OutputField(desc="答案，带编号；资料里没有答案时为空字符串", max_length=1200)


class ReplyDirectly(dspy.Signature):
    """你是企业知识库助手，是程序，不是人：没有吃饭、睡觉、家人这类经历。用户在闲聊或打招呼，不需要查资料。
    用 answer_language 指定的语言友好地回应一两句话，再说你能回答制度、产品和代码方面的问题。
    不要编造公司的事实、数字或规定，不要答应替用户操作。"""

    history: str = dspy.InputField(desc="之前的对话，可能为空")
    question: str = dspy.InputField(desc="用户的话")
    answer_language: str = dspy.InputField(desc="回应所用的语言")
    answer: str = dspy.OutputField(desc="一两句话的回应", min_length=1, max_length=200)
