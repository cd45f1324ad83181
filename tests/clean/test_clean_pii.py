"""Personal data is found next to Han characters, and numbers of law and medicine are left alone."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mmdata.clean.columns import PII
from mmdata.clean.measure import measure
from mmdata.clean.pii import (
    DEFAULT_ACTIONS,
    NAMES,
    PiiOptions,
    mask_pii,
    valid_card,
    valid_credit_code,
    valid_identity,
)
from mmdata.clean.pipeline import Cleaner
from mmdata.document import Document, Part
from mmdata.errors import StepParameterError

ALL = PiiOptions(dict.fromkeys(NAMES, "replace"))
CODE = "0123456789ABCDEFGHJKLMNPQRTUWXY"


def identity(rng: random.Random) -> str:
    body = f"{rng.choice(['110105', '310104', '440305', '510107'])}{rng.randint(1940, 2020)}{rng.randint(1, 12):02}"
    body += f"{rng.randint(1, 28):02}{rng.randint(0, 999):03}"
    return body + "10X98765432"[sum(int(d) * pow(2, 17 - i, 11) for i, d in enumerate(body)) % 11]


def card(rng: random.Random) -> str:
    body = "62" + "".join(rng.choice("0123456789") for _ in range(rng.choice([13, 16])))
    return next(body + d for d in "0123456789" if valid_card(body + d))


def credit_code(rng: random.Random) -> str:
    body = "91" + rng.choice(["110105", "310104"]) + "MA" + "".join(rng.choice(CODE) for _ in range(7))
    return body + CODE[(31 - sum(CODE.index(x) * pow(3, i, 31) for i, x in enumerate(body)) % 31) % 31]


MAKERS = {
    "identity_number": identity,
    "mobile": lambda r: r.choice(["", "+86", "+86 ", "86-"]) + r.choice(
        ["138{:08}", "159 {0:04} 1234", "188-{0:04}-5678"]).format(r.randint(0, 9999)),
    "landline": lambda r: r.choice(["010-{:08}", "0755-{:08}", "(021){:08}", "0512-{:08}-8001"]).format(
        r.randint(20_000_000, 89_999_999)),
    "bank_card": card,
    "email": lambda r: r.choice(["zhang.san{}@qq.com", "li_4{}@pku.edu.cn", "w-5+x{}@qq.com"]).format(r.randint(0, 99)),
    "ipv4": lambda r: f"192.168.{r.randint(0, 255)}.{r.randint(0, 255)}",
    "ipv6": lambda r: f"2001:db8::{r.randint(1, 9999)}:{r.randint(1, 9999)}",
    "social_credit_code": credit_code,
    "passport": lambda r: r.choice(["E{:08}", "G{:08}"]).format(r.randint(10_000_000, 99_999_999)),
    "licence_plate": lambda r: r.choice(["京A{:05}", "粤B·{:05}", "沪AD{:05}"]).format(r.randint(10_000, 99_999)),
    "medical_record": lambda r: r.choice(["住院号：{}", "病历号:{}", "门诊号{}", "MRN: {}"]).format(
        r.randint(10_000, 9_999_999)),
    "url_credentials": lambda r: f"https://root:p{r.randint(0, 999)}@db.example.cn/x",
}  # fmt: skip
LEFT, RIGHT = ("联系", "号码为", "：", "（", "是", "患者"), ("的张三", "，", "。", "）", "联系人", "已核实")


@pytest.mark.parametrize("kind", NAMES)
def test_recall_next_to_han_is_at_least_99_percent(kind: str) -> None:
    rng = random.Random(kind)
    hits = seen = 0
    for _ in range(300):
        value = MAKERS[kind](rng)
        text = rng.choice(LEFT) + value + rng.choice(RIGHT)
        found: Counter[str] = Counter()
        mask_pii(text, ALL, found)
        hits += found[kind] == 1 and sum(found.values()) == 1
        seen += measure([text])[0, PII] > 0
    assert hits >= 297
    assert seen == 300, "the measuring pass must send every one of them to the search"


def harmless(rng: random.Random) -> str:
    y, m, d, n = rng.randint(1949, 2026), rng.randint(1, 12), rng.randint(1, 28), rng.randint(1, 99999)
    return rng.choice(
        [
            f"《民法典》第{n % 1260}条第{m}款", f"（{y}）京{n % 99:02}民终{n}号", f"({y})最高法知民终{n}号",
            f"口服{n % 500}mg，每日{m}次", f"{n % 100}.{m}×10^9/L", f"{y}-{m:02}-{d:02}", f"{y}年{m}月{d}日",
            f"{y}{m:02}{d:02}", f"{y}.{m}.{d}", f"GB/T {n}-{y}", f"v{m}.{d}.{n % 10}", f"{n}.{n:05}",
            f"国务院令第{n}号", f"ISBN 978-7-{n:05}-{m:03}-{d % 10}", f"DOI 10.{y}/s{n}", f"CVE-{y}-{n}",
            f"{m}:{d:02}:{m + 10}", f"血压{100 + m}/{60 + d}mmHg", f"{n},{n % 1000:03},{m:03}元", f"法释〔{y}〕{m}号",
            f"NCT{n:08}", f"WBC {m}.{d}，Hb {n % 200}g/L", f"第{m}.{d}.{m}.{d}节", f"银保监发[{y}]{m}号",
        ]
    )  # fmt: skip


def test_a_thousand_numbers_of_law_and_medicine_are_no_personal_data() -> None:
    rng = random.Random(7)
    found: Counter[str] = Counter()
    for _ in range(1000):
        text = f"依据{harmless(rng)}，经查{harmless(rng)}。"
        assert mask_pii(text, ALL, found) == text
    assert not found


def test_checks_refuse_wrong_numbers() -> None:
    assert valid_identity("11010519491231002X") and not valid_identity("110105194912310021")
    assert not valid_identity("110105194913310028"), "month 13"
    assert valid_identity("110105491231002"), "the old form"
    assert valid_card("4111 1111 1111 1111") and not valid_card("4111 1111 1111 1112")
    assert valid_credit_code("91350100M000100Y43") and not valid_credit_code("91350100M000100Y44")


def test_a_mistyped_identity_number_goes_where_the_text_names_it() -> None:
    text, found = "身份证：110105194912310021。以下为物流公司登记的货物编号110105194912310021", Counter[str]()
    assert mask_pii(text, ALL, found) == "身份证：<身份证号>。以下为物流公司登记的货物编号110105194912310021"


def test_defaults_replace_five_kinds_and_count_the_rest() -> None:
    replaced = {kind for kind, action in DEFAULT_ACTIONS.items() if action == "replace"}
    assert replaced == {"identity_number", "mobile", "bank_card", "email", "url_credentials"}
    document = Document("a", 0, 1, None, {}, (Part("text", "text", "车牌京A12345，手机13800138000"),))
    result = Cleaner("auto").clean_documents([document])
    assert result.kept[0].text == "车牌京A12345，手机<手机号>"
    assert result.pii == {"licence_plate": 1, "mobile": 1}


def test_a_keyed_hash_keeps_equal_values_equal_and_needs_its_key() -> None:
    options = PiiOptions({"mobile": "hash"}, key=b"secret")
    first = mask_pii("手机13800138000和13800138000", options, Counter())
    assert first.count("<手机号:") == 2 and len(set(first.split("和")[0][2:])) > 1
    assert first.split("和")[0].removeprefix("手机") == first.split("和")[1]
    assert mask_pii("手机13800138000", PiiOptions({"mobile": "hash"}, key=b"other"), Counter()) not in first
    with pytest.raises(StepParameterError, match=r"pii\.key"):
        Cleaner("auto", pii="hash").clean_documents([Document("a", 0, 1, None, {}, (Part("text", "text", "x"),))])


def test_every_part_of_a_chat_is_treated_whatever_its_role() -> None:
    parts = tuple(Part(f"messages[{i}].content", role, "打13800138000") for i, role in
                  enumerate(("system", "user", "assistant", "tool")))  # fmt: skip
    result = Cleaner("auto").clean_documents([Document("a", 0, 1, None, {}, parts)])
    assert [part.text for part in result.kept[0].parts] == ["打<手机号>"] * 4

