"""What can be checked without a model: a wrong number is seen, and a right answer is left alone."""

import pytest

from programs import evidence
from signatures.records import Passage


def passage(text: str, **fields: str) -> Passage:
    return Passage(id="p", document_id="d", text=text, **fields)


# -- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("每月 50 元", {"50"}),
        ("每月５０元", {"50"}),
        ("1,000 元", {"1000"}),
        ("１，０００.0 元", {"1000"}),
        ("一千元", {"1000"}),
        ("三十天", {"30"}),
        ("十五个工作日", {"15"}),
        ("两万五千元", {"25000"}),
        ("2 万元", {"20000"}),
        ("2.5万元", {"25000"}),
        ("1亿元", {"100000000"}),
        ("1,000万元", {"10000000"}),
        ("1,234,567.50 元", {"1234567.5"}),
        ("百分之五十", {"50"}),
        ("百分之12.5", {"12.5"}),
        ("50%", {"50"}),
        ("99.95%", {"99.95"}),
        ("4.0 版", {"4"}),
        ("0.50", {".5"}),
        ("007", {"7"}),
        ("0 元", {"0"}),
        ("2026-01-05", {"2026", "1", "5"}),
        ("192.168.1.1", {"192.168.1.1"}),
        ("端口 8080，8443", {"8080", "8443"}),
        ("7，12，15 天", {"7", "12", "15"}),
        ("LB-200", {"200"}),
        ("退货[1]，运费【2】，其他［3，4］", set()),
        ("1. 打开页面\n2、点申请\n（3）提交", set()),
        ("3.5 公里\n1.5 元", {"3.5", "1.5"}),
        ("万一有问题，一起看", set()),
        ("", set()),
        ("没有数字", set()),
    ],
)
def test_numbers_are_read_in_one_spelling(text: str, found: set[str]) -> None:
    assert evidence.numbers(text) == found


@pytest.mark.parametrize(
    ("answer", "text", "missing"),
    [
        ("每月补贴 80 元。", "每月补贴 50 元。", ("80",)),
        ("保修三年。", "保修一年。", ("3",)),
        ("试用期为两个月。", "试用期为三个月。", ("2",)),
        ("最多一个半小时", "最多半小时", ("1",)),
        ("等待十分钟", "等待五分钟", ("10",)),
        ("费率是百分之五十", "费率是 15%", ("50",)),
        ("金额是 2 万元", "金额是 2 元", ("20000",)),
        ("3.5 公里", "5 公里", ("3.5",)),
    ],
)
def test_a_number_that_no_passage_holds_is_named(answer: str, text: str, missing: tuple[str, ...]) -> None:
    assert evidence.support(answer, [passage(text)]).missing_numbers == missing


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("每月补贴五十元。", "每月补贴 50 元"),
        ("金额是 2 万元", "金额 20,000 元"),
        ("费率是百分之五十", "费率 50%"),
        ("3.5 公里以内", "以内指 3.5 公里"),
        ("80 和 443", "端口 80，443"),
        ("岚盒是一种工业边缘网关，需要一个账号和一份申请表，请进一步联系。", "岚盒：工业边缘网关，需要账号和申请表"),
        ("两个版本都支持；有三种方式。", "3.2 版支持。4.0 版支持。方式：甲、乙、丙"),
        ("第一步打开页面，第二步点申请。这十分重要。", "先打开页面，再点申请"),
        ("1. 打开页面\n2. 点申请", "先打开页面，再点申请"),
        ("型号为 LB-200。", "LB-200 有四路串口"),
        ("按规定处理[1][2]。", "按规定处理"),
    ],
)
def test_a_number_that_is_there_in_other_writing_or_is_no_statement_is_no_fault(answer: str, text: str) -> None:
    assert evidence.support(answer, [passage(text)]).missing_numbers == ()


def test_numbers_of_the_question_and_of_headings_are_known() -> None:
    found = evidence.support("2026 版适用于满 10 年的员工。", [passage("适用", title="办法 2026 版")], "满10年呢？")
    assert found.missing_numbers == ()


# -- names, negation, overlap ----------------------------------------------------------------


def test_a_name_that_no_passage_holds_is_named() -> None:
    assert evidence.support("岚盒支持 Modbus 和 BACnet。", [passage("岚盒支持 modbus。")]).missing_names == ("bacnet",)


def test_an_english_answer_to_chinese_passages_has_no_missing_names() -> None:
    assert evidence.support("The buyer pays the shipping.", [passage("运费由买家承担。")]).missing_names == ()


@pytest.mark.parametrize(
    ("answer", "flipped"),
    [("七天内不可以无理由退货。", True), ("七天内可以无理由退货。", False), ("七天内不仅可以无理由退货。", False)],
)
def test_a_denied_statement_is_seen(answer: str, flipped: bool) -> None:
    assert (evidence.support(answer, [passage("七天内可以无理由退货。")]).negation > 0) is flipped


def test_overlap_is_a_share_of_the_terms() -> None:
    texts = [passage("本店支持七天无理由退货，运费由买家承担。")]
    assert evidence.support("运费由买家承担", texts).overlap == 1.0
    assert evidence.support("我喜欢下雨天", texts).overlap < 0.3
    assert evidence.support("", texts).overlap == 0.0
    assert evidence.support("退货", []).overlap == 0.0
    assert evidence.term_overlap("", "退货") == 0.0


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        "资料中没有提到这一点。",
        "知识库没有，不过一般来说有三年保修。",
        "抱歉，知识库里未找到相关信息。",
        "文档中并未说明。",
        "资料里没有关于火星的信息。",
        "现有资料并未明确给出这个数字。",
        "上下文不包含答案。",
        "根据提供的资料，没有找到答案。",
        "没有相关规定。",
        "无法回答这个问题。",
        "无法确定。",
        "我不知道。",
        "不清楚，建议咨询客服。",
        "未提及。",
        "I don't know.",
        "This is not mentioned in the passages.",
        "The documents do not specify the fee.",
        "There is no information about Mars.",
        "I cannot answer this question.",
    ],
)
def test_an_answer_that_says_it_cannot_answer_is_a_refusal(answer: str) -> None:
    assert evidence.is_refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "系统提示“未找到设备”时，请先检查网线[1]。",
        "责任人无法确定的，由部门承担费用。",
        "如不清楚归属，请咨询人力资源部。",
        "若仍不确定，联系 8008。",
        "没有上限。",
        "没有年假的员工可以请事假。",
        "合同没有说明期限的，按一年执行。",
        "错误码 40401 表示设备不存在。",
        "Error 404 means that the page was not found.",
        "If no size is specified, the default is 20.",
        "Fees that are not specified are paid by the buyer.",
        "运费由买家承担。",
        "文档未经审批不得提供给外部。",
        "资料未提交的，补交后再审。",
        "LanBox stores no information after a reset.",
    ],
)
def test_an_answer_that_speaks_of_what_is_missing_is_no_refusal(answer: str) -> None:
    assert not evidence.is_refusal(answer)


# -- sentences (D4) --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("支持退货！运费谁付？买家", 3),
        ("“可以退。”客服说。", 1),
        ("支持七天退货", 1),
        ("The fee is 3.5 yuan. It is paid monthly.", 2),
        ("- 第一项\n- 第二项", 2),
        ("支持退货；不支持换货……请注意", 3),
        ("版本 4.0 支持。", 1),
        ("", 0),
    ],
)
def test_sentences_of_chinese_and_english(text: str, count: int) -> None:
    assert len(evidence.sentences(text)) == count
