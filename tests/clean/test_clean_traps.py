"""The mistakes that cleaning tools are known to make with Chinese, each with the right value."""

from __future__ import annotations

from collections import Counter

import ftfy
import pytest

from mmdata.clean.characters import fold_fullwidth, normalize_line_ends, normalize_nfc, remove_invisible
from mmdata.clean.markup import strip_markup, unescape_references
from mmdata.clean.mojibake import SAFE, fix_mojibake
from mmdata.clean.pii import NAMES, PiiOptions, mask_pii
from mmdata.clean.pipeline import Cleaner
from mmdata.document import Document, Part

PROSE = (
    "患者男性，45岁，因反复上腹部疼痛三年，加重一周入院。疼痛多于餐后半小时出现，持续一至两小时后自行缓解，伴有反酸和嗳气。"
    "既往有高血压病史，规律服用氨氯地平每日5毫克。查体：腹软，上腹部轻压痛，无反跳痛及肌紧张。胃镜检查提示胃窦部溃疡，大小约0.8厘米。\n"
    "原告诉称，双方于2019年3月签订房屋租赁合同，约定租期三年，月租金六千元，押一付三。被告自2021年6月起拒不支付租金，"
    "经原告多次书面催告仍未履行。本院认为，依法成立的合同受法律保护，当事人应当按照约定全面履行自己的义务。\n"
)


def document(text: str, role: str = "text") -> Document:
    return Document("a.jsonl", 0, 1, None, {"text": text}, (Part("text", role, text),))


def cleaned(text: str, recipe: str = "auto") -> str | None:
    kept = Cleaner(recipe).clean_documents([document(text)]).kept
    return kept[0].text if kept else None


def masked(text: str) -> tuple[str, Counter[str]]:
    found: Counter[str] = Counter()
    return mask_pii(text, PiiOptions(dict.fromkeys(NAMES, "replace")), found), found


@pytest.mark.parametrize("recipe", ["auto", "zh"])
def test_two_paragraphs_of_clean_chinese_come_out_untouched(recipe: str) -> None:
    assert cleaned(PROSE, recipe) == PROSE


@pytest.mark.parametrize("recipe", ["gopher", "c4", "fineweb"])
def test_the_published_english_recipes_drop_that_chinese_which_is_why_auto_is_the_default(recipe: str) -> None:
    assert cleaned(PROSE, recipe) is None


def test_identity_and_mobile_numbers_next_to_han_are_found() -> None:
    text, found = masked("身份证11010519491231002X的张三手机13800138000联系")
    assert text == "身份证<身份证号>的张三手机<手机号>联系"
    assert found == {"identity_number": 1, "mobile": 1}


def test_an_address_glued_to_han_goes_whole() -> None:
    assert masked("邮箱zhang.san@pku.edu.cn联系")[0] == "邮箱<邮箱>联系"
    assert masked("邮箱Zhang@PKU.EDU.CN")[0] == "邮箱<邮箱>"


def test_section_numbers_are_no_addresses() -> None:
    for text in ("第1.2.3.4节", "见1.2.3.4条", "版本 1.2.3.4", "GB/T 1.2.3.4-2019", "10.2.3.4.5"):
        assert masked(text) == (text, Counter())


def test_a_url_does_not_swallow_the_prose_behind_it() -> None:
    text = "见 https://a.com/x，请点击这里查看全部。下一句"
    assert cleaned(text) == text
    assert masked("见https://me:secret@a.com/x，下一句")[0] == "见https://<网址口令>@a.com/x，下一句"


def test_chinese_punctuation_and_curly_quotes_are_not_folded() -> None:
    text = "你好，世界！（测试）“引号”‘单’……——《书》"
    assert ftfy.fix_text(text) != text
    assert fix_mojibake(text) == fold_fullwidth(text) == cleaned(text) == text


def test_fullwidth_digits_become_digits_and_book_marks_stay() -> None:
    assert fold_fullwidth("第１２条　《民法典》「甲」") == "第12条　《民法典》「甲」"
    assert fold_fullwidth("Ｐｙｔｈｏｎ，　３．１２！") == "Python, 3.12!"
    assert fold_fullwidth("　　段首缩进，保留。") == "　　段首缩进，保留。"


def test_numbers_of_statutes_survive_so_different_articles_stay_different() -> None:
    a, b = "第１２条 罚款500元，２０２４年3月", "第１３条 罚款800元，２０２３年5月"
    assert cleaned(a) == "第12条 罚款500元，2024年3月"
    assert cleaned(b) == "第13条 罚款800元，2023年5月"


def test_units_circled_numbers_and_exponents_keep_their_form() -> None:
    for text in ("每㎡ 5㎎", "①患者 ② 2⁴ ℃", "㈠ Ⅳ ½"):
        assert normalize_nfc(text) == text == cleaned(text)


def test_lines_end_at_line_feeds_only() -> None:
    assert normalize_line_ends("甲\u2028乙\r\n丙\r丁") == "甲\n乙\n丙\n丁"
    assert cleaned("甲乙丙丁\u000b戊己庚辛\x1c壬癸子丑") == "甲乙丙丁戊己庚辛壬癸子丑"


def test_zero_width_characters_go_and_joiners_stay_where_they_show() -> None:
    assert remove_invisible("民\u200b用\u2060机\ufeff场\u200d安\u00ad全\ue123") == "民用机场安全"
    assert remove_invisible("👩\u200d⚕️ نمی\u200cخواهم क्\u200dष") == "👩\u200d⚕️ نمی\u200cخواهم क्\u200dष"


def test_text_that_merely_holds_angle_brackets_or_ampersands_stays() -> None:
    for text in (
        "a < b && c > d", "Vec<T> 与 HashMap<String, i32>", "R&D; AT&T", "WBC<4.0×10^9/L，P<0.05",
        '<span class="filename">文件名: src/main.rs</span>\n\n一段正文。', "写作 `&amp;` 与 `&lt;`",
    ):  # fmt: skip
        assert unescape_references(text) == text
        assert strip_markup(text) == text


@pytest.mark.parametrize("text", ["¡Xochimilco existe!", "¡Karamba! ¿Qué?", "5 § 3 ¨", "¡Xa! «¡Kilo!» ¡§ é"])
def test_spanish_is_not_taken_for_big5(text: str) -> None:
    assert fix_mojibake(text) == text


@pytest.mark.parametrize(
    ("broken", "right"),
    [
        ("æˆ‘çˆ±åŒ—äº¬", "我爱北京"),
        ("ÎÒ°®±±¾©ÌìÃÅ¹ã³¡ÉÏÌ«ÑôÉý", "我爱北京天门广场上太阳升".replace("天门", "天门")),
        ("itâ€™s", "it’s"),
        ("America¡¦s ¡§war¡¨ ¡X and peace", "America’s “war” — and peace"),
        ("“executable modeâ€\ufffd", "“executable mode”"),
        ("pi√π presto", "più presto"),
        ("mГ©dicament Г bien", "médicament à bien"),
    ],
)
def test_wrong_decodings_are_undone(broken: str, right: str) -> None:
    assert fix_mojibake(broken) == right


def test_gbk_ruins_are_dropped_and_named() -> None:
    lost = "，机场管理机构应当按照国家有关规定办理报批手续。".encode().decode("gb18030", "replace")
    drops = Cleaner("auto").clean_documents([document(lost), document("锟斤拷锟斤拷烫烫烫" + PROSE[:50])]).drops
    assert [drop.reason for drop in drops] == ["ruined", "ruined"]
    assert drops[0].value == 1 and drops[0].limit == 0.01


def test_utf8_read_as_gbk_without_loss_is_turned_back() -> None:
    text = "民用机场安全和运营管理条例"
    wrong = text.encode().decode("gb18030", "ignore")
    if wrong.encode("gb18030") == text.encode():
        assert cleaned(wrong) == text


def test_ftfy_is_reached_with_chinese_safe_settings() -> None:
    assert (SAFE.fix_character_width, SAFE.uncurl_quotes, SAFE.normalization) == (False, False, "NFC")
