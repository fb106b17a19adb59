"""Tests that text from a source is escaped for Markdown, so that a real Markdown parser shows the text unchanged."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from sluice.orchestration.base.markdown import code, plain

TEXTS = (
    "who buys",
    "price * qty * 2 and **not** bold",
    "<id> of <b>it</b> <script>x()</script>",
    "_so_ snake_case __x__",
    "`far` and \\*",
    "![x](http://127.0.0.1/x.png) [y](z) [1]: http://127.0.0.1",
    "# no title",
    "1. no list",
    "2) no list",
    "- no list",
    "+ no list",
    "---",
    "&amp; AT&T &#42; 5 €",
    "~~gone~~",
    'it\'s "quoted"',
    "x" * 1024,
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_shown_as_it_is(text: str) -> None:
    paragraph, inline, end = MarkdownIt("commonmark").enable("strikethrough").parse(plain(text))
    assert (paragraph.type, end.type) == ("paragraph_open", "paragraph_close")
    children = inline.children or []
    assert {each.type for each in children} <= {"text", "text_special"}
    assert "".join(each.content for each in children) == text


def test_lines_begin_nothing_else() -> None:
    shown = MarkdownIt("commonmark").render(plain("a\n===\n# b\n1. c\n- d\n+ e"))
    assert shown == "<p>a\n===\n# b\n1. c\n- d\n+ e</p>\n"


def test_code_ends_at_its_end() -> None:
    assert code("a`![x](y)`b") == "`a![x](y)b`"
    assert MarkdownIt("commonmark").render(code("<b> *x*")) == "<p><code>&lt;b&gt; *x*</code></p>\n"


@pytest.mark.parametrize("text", ["snake_case_name", "AT&T", "9.99 - 1 + 2", "who buys (all)"])
def test_an_ordinary_text_stays_as_it_is(text: str) -> None:
    assert plain(text) == text
