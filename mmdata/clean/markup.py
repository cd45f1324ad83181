"""Takes out HTML that a page left behind: character references, tags, whole pages.

Text that merely contains `<` or `&` stays: `Vec<T>`, `a < b && c`, inline HTML in Markdown, references in code. A text
is treated as a page when it begins with a document skeleton (`<!doctype html`, `<html`, `<body`) or is dense with known tags; then
selectolax extracts its text. Linear in the text.
"""

# ruff: noqa: E501 - tables read best on one line

from __future__ import annotations

import html
import re
from html.entities import html5

from selectolax.lexbor import LexborHTMLParser

from mmdata.clean.characters import normalize_line_ends

_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_CODE = re.compile(r"```.*?(?:```|\Z)|``[^`\n]*``|`[^`\n]*`", re.DOTALL)
_SKELETON = re.compile(r"\s*(?:<\?xml[^<>]{0,200}>\s*)?<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_TAGS = [
    "a",
    "abbr",
    "address",
    "article",
    "aside",
    "b",
    "blockquote",
    "br",
    "button",
    "center",
    "cite",
    "code",
    "col",
    "dd",
    "del",
    "div",
    "dl",
    "dt",
    "em",
    "font",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hr",
    "i",
    "iframe",
    "img",
    "input",
    "ins",
    "label",
    "li",
    "link",
    "main",
    "meta",
    "nav",
    "noscript",
    "ol",
    "option",
    "p",
    "pre",
    "q",
    "s",
    "script",
    "section",
    "select",
    "small",
    "source",
    "span",
    "strong",
    "style",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "textarea",
    "tfoot",
    "th",
    "thead",
    "title",
    "tr",
    "u",
    "ul",
    "video",
]
_TAG = re.compile(rf"</?(?:{'|'.join(_TAGS)})(?:\s[^<>]{{0,1000}})?/?>", re.IGNORECASE)
_BLOCK = [
    "p",
    "div",
    "br",
    "li",
    "tr",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "table",
    "ul",
    "ol",
    "dl",
    "dt",
    "dd",
    "section",
    "article",
    "header",
    "footer",
    "blockquote",
    "pre",
    "hr",
]
_COMMENT = re.compile(r"<!--.{0,10000}?-->", re.DOTALL)
# What Microsoft Office leaves when pasted: tags and references without text between them, around an o:p tag.
_GLUED = (
    r"(?:&(?:amp;)*lt;/?[A-Za-z]{1,10}\s?/?&(?:amp;)*gt;|&(?:amp;)*(?:#?[0-9A-Za-z]{1,32});|</?[A-Za-z][^<>]{0,200}>)"
)
_OFFICE = re.compile(rf"{_GLUED}{{0,40}}?<o:p>\s*</o:p>{_GLUED}{{0,40}}")
DENSE = 8  # known tags in 1,000 characters


def unescape_references(text: str) -> str:
    """Character references decoded, also doubly escaped ones; references that stand only in code stay.

    A line end that was written as `&#13;` or `&#13;&#10;` becomes \\n.
    """
    if not _has_reference(text) or not _has_reference(_CODE.sub("", text)):
        return text
    decoded, before = text, ""
    for _ in range(3):
        before, decoded = decoded, _REFERENCE.sub(_decode, decoded)
        if decoded == before:
            break
    return decoded if "\r" in text else normalize_line_ends(decoded)


def _has_reference(text: str) -> bool:
    return any(_known(match.group()) for match in _REFERENCE.finditer(text))


def _known(reference: str) -> bool:
    return reference[1] == "#" or reference[1:] in html5


def _decode(match: re.Match[str]) -> str:
    return html.unescape(match.group()) if _known(match.group()) else match.group()


def remove_office_debris(text: str) -> str:
    """Without empty `<o:p>` tags and the tags and references glued to them; runs before references are decoded."""
    return _OFFICE.sub("", text) if "<o:p>" in text else text


def strip_markup(text: str) -> str:
    """Pages reduced to their text; anything else as it is."""
    if "<" not in text:
        return text
    if _SKELETON.match(text):
        return page_text(text)
    brackets = text.count("<")
    if brackets < 3 or brackets * 1000 <= DENSE * len(text):
        return text
    tags = sum(1 for _ in _TAG.finditer(text))
    return page_text(text) if tags >= 3 and tags * 1000 > DENSE * len(text) else text


def page_text(page: str) -> str:
    """The visible text of an HTML page: scripts, styles and comments out, one line a block, cells parted by a tab."""
    tree = LexborHTMLParser(_COMMENT.sub("", page))
    tree.strip_tags(["script", "style", "noscript", "template", "svg", "head"])
    body = tree.body
    if body is None:
        return ""
    for node in body.css(",".join(_BLOCK)):
        node.insert_before("\n")
        node.insert_after("\n")
    for node in body.css("td,th"):
        node.insert_after("\t")
    text = body.text(deep=True, separator="")
    lines = [line.strip(" \t\r\xa0") for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
