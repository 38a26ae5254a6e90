"""What the rewriter asks a language model: other words for what is searched."""

import dspy


class RewriteQuery(dspy.Signature):
    """上一次检索没有得到合格的答案。根据失败原因，写一个更容易在企业知识库里找到答案的新检索语句。
    换用制度、手册里可能出现的正式说法，补上缺少的对象、版本或人群，去掉口语和无关的词；
    保留问题里的专有名词、编号和数字；不要回答问题，不能与已经检索过的语句相同。用问题的语言。"""

    question: str = dspy.InputField(desc="用户的问题")
    tried_queries: str = dspy.InputField(desc="已经检索过的语句")
    reasons: str = dspy.InputField(desc="失败原因")
    query: str = dspy.OutputField(desc="新的检索语句，不超过 40 字", min_length=1, max_length=120)


class ResolveFollowUp(dspy.Signature):
    """把用户现在的话改写成一个不看对话也能懂的完整问题：补上代词和省略所指的对象。
    已经完整的就原样写出。不要回答问题。用问题的语言。"""

    history: str = dspy.InputField(desc="之前的对话")
    question: str = dspy.InputField(desc="用户现在的话")
    standalone_question: str = dspy.OutputField(desc="完整的问题", min_length=1, max_length=300)


class DecomposeQuestion(dspy.Signature):
    """把问题拆成可以分别检索的子问题：比较的每一方各一个，多步问题的每一步各一个。
    每个子问题自成一句、写全对象名称；本来就只有一个点的问题原样写一个。不要回答问题。用问题的语言。"""

    question: str = dspy.InputField(desc="用户的问题")
    parts: list[str] = dspy.OutputField(desc="1 到 4 个子问题", min_length=1, max_length=4)


class ParaphraseQuestion(dspy.Signature):
    """换一种书面、正式的说法写出同一个问题，用词像制度或手册原文，意思不变，专有名词和数字不变。
    不要回答问题。用问题的语言。"""

    question: str = dspy.InputField(desc="用户的问题")
    query: str = dspy.OutputField(desc="换了说法的问题，不超过 60 字", min_length=1, max_length=120)


class WriteHypotheticalPassage(dspy.Signature):
    """假设企业知识库里有一段正好能回答这个问题，写出它可能的样子：两三句，像制度或手册原文。
    不知道的数字用“若干”代替。用问题的语言。"""

    question: str = dspy.InputField(desc="用户的问题")
    passage: str = dspy.OutputField(desc="两三句的假想段落", min_length=1, max_length=240)
