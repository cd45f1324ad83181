"""Languages and scripts told apart, measured on text whose language is known.

`UDHR` is Article 1 of the Universal Declaration of Human Rights, the one text every language has.
"""

# ruff: noqa: E501 - a language a line

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mmdata.clean.language import LANGUAGES, detect, script
from mmdata.clean.measure import measure

UDHR = {
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience "
    "and should act towards one another in a spirit of brotherhood.",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。"
    "人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. "
    "인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
}
OTHERS = {
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt "
    "und sollen einander im Geist der Brüderlichkeit begegnen.",
    "French": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y "
    "conciencia, deben comportarse fraternalmente los unos con los otros.",
    "Portuguese": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão e de "
    "consciência, devem agir uns para com os outros em espírito de fraternidade.",
    "Italian": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati di ragione e di "
    "coscienza e devono agire gli uni verso gli altri in spirito di fratellanza.",
    "Dutch": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn begiftigd met verstand en "
    "geweten, en behoren zich jegens elkander in een geest van broederschap te gedragen.",
    "Polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni rozumem i "
    "sumieniem i powinni postępować wobec innych w duchu braterstwa.",
    "Turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve "
    "birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler.",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. Mọi con người đều được "
    "tạo hóa ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình anh em.",
    "Indonesian": "Semua orang dilahirkan merdeka dan mempunyai martabat dan hak-hak yang sama. Mereka dikaruniai akal "
    "dan hati nurani dan hendaknya bergaul satu sama lain dalam semangat persaudaraan.",
    "Swedish": "Alla människor är födda fria och lika i värde och rättigheter. De är utrustade med förnuft och samvete "
    "och bör handla gentemot varandra i en anda av broderskap.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и "
    "должны поступать в отношении друг друга в духе братства.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με "
    "λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.",
    "Arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميرًا وعليهم أن يعامل بعضهم بعضًا بروح الإخاء.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม",
}
FILES = {
    "en_prose_0.jsonl": "en", "en_prose_1.jsonl.gz": "en", "zh_prose_0.jsonl": "zh", "zh_prose_1.jsonl.gz": "zh",
    "zh_medical.jsonl": "zh", "zh_legal.jsonl.gz": "zh",
}  # fmt: skip


def texts(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize("name", list(UDHR))
def test_each_named_language_is_found_in_the_declaration(name: str) -> None:
    assert LANGUAGES[detect(measure([UDHR[name]]))[0]] == name


@pytest.mark.parametrize("name", list(OTHERS))
def test_sixteen_other_languages_are_other(name: str) -> None:
    assert LANGUAGES[detect(measure([OTHERS[name]]))[0]] == "other"


@pytest.mark.parametrize("name", list(FILES))
def test_every_document_of_the_samples_is_in_its_language_and_nearly_every_line(name: str, shared: Path) -> None:
    documents = texts(shared / "data" / name)
    number = LANGUAGES.index(FILES[name])
    assert (detect(measure(documents)) == number).all()
    if FILES[name] == "zh":
        lines = [line for text in documents for line in text.split("\n") if sum("一" <= c <= "鿿" for c in line) >= 20]
        assert (detect(measure(lines)) == number).mean() >= 0.995


@pytest.mark.peer
def test_scripts_are_told_apart_on_documents_converted_by_opencc(shared: Path) -> None:
    opencc = pytest.importorskip("opencc")
    to_traditional, to_simplified = opencc.OpenCC("s2t"), opencc.OpenCC("t2s")
    documents = [text for text in texts(shared / "data/zh_legal.jsonl.gz") if len(text) > 50][:100]
    documents += [text for text in texts(shared / "data/zh_prose_0.jsonl") if len(text) > 50][:300]
    for convert, name in ((to_traditional, "traditional"), (to_simplified, "simplified")):
        found = [script(row) for row in measure([convert.convert(text) for text in documents])]
        assert found.count(name) >= 0.995 * len(documents), name
