"""What the router asks a language model."""

from typing import Literal

import dspy

from signatures.vocabulary import Intent

NamedStrategy = Literal[
    "direct_reply", "fast_retrieval", "standard_retrieval", "deep_search", "code_search", "fallback", "clarify_needed"
]


class RouteQuestion(dspy.Signature):
    """判断用户问题的意图 intent，并选择处理方式 strategy。

    CHIT_CHAT：打招呼、闲聊、感谢、情绪，不需要查资料 → direct_reply
    FACT_LOOKUP：问一个事实、数字、规定、定义 → fast_retrieval
    HOW_TO：问怎么做、怎么办理、步骤、排查办法 → standard_retrieval
    COMPARISON：比较两个或更多对象、版本、人群，或问区别、哪个好 → deep_search
    CODE_SEARCH：找代码、函数、类、脚本、SQL 或它们的位置 → code_search
    UNKNOWN：看不懂，或要求执行查资料以外的操作 → fallback
    问题缺少关键对象（如“那个怎么弄”“它多少钱”）而对话里也没有时 → clarify_needed，并写出 2 到 3 个具体的反问。"""

    history: str = dspy.InputField(desc="之前的对话，可能为空")
    question: str = dspy.InputField(desc="用户现在的问题")
    intent: Intent = dspy.OutputField(
        desc="CHIT_CHAT、FACT_LOOKUP、HOW_TO、COMPARISON、CODE_SEARCH、UNKNOWN 之一"
    )
    strategy: NamedStrategy = dspy.OutputField(desc="上面箭头右边的处理方式之一")
    confidence: int = dspy.OutputField(desc="对 intent 的把握，0 到 100 的整数", ge=0, le=100)
    reasoning: str = dspy.OutputField(desc="一句话理由，不超过 30 字", max_length=40)
    clarification_questions: list[str] = dspy.OutputField(
        desc="strategy 为 clarify_needed 时 2 到 3 个具体反问，否则 []", max_length=3
    )


class AskBack(dspy.Signature):
    """用户的问题不够明确，无法直接查资料。写 2 到 3 个具体的反问，帮用户说清楚：
    每个反问点出一个缺少的信息（对象、版本、人群、时间、地点等），不要回答问题，不要重复原话。用问题的语言。"""

    history: str = dspy.InputField(desc="之前的对话，可能为空")
    question: str = dspy.InputField(desc="用户现在的问题")
    clarification_questions: list[str] = dspy.OutputField(
        desc="2 到 3 个反问，每个不超过 30 字", min_length=2, max_length=3
    )
