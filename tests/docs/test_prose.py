"""Tests that the pages use the terms of docs/glossary.md, that their sentences are short, and that every anchor in a link exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import prose
from tests.docs.test_snippets import PAGES, ROOT
from tests.style.replaced_words import GLOSSARY, replaced_words

WORDS = replaced_words(ROOT)
CHECKED = sorted({ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")} - {ROOT / GLOSSARY})
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def problems(page: Path) -> list[str]:
    text = page.read_text()
    return [*prose.replaced_words(text, WORDS), *(f"long: {each}" for each in prose.long_sentences(text))]


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as a code forge and the site name them."""
    headings = HEADING.findall(prose.FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", CHECKED, ids=name_of)
def test_a_page_is_plain(page: Path) -> None:
    found = problems(page)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_an_anchor_that_a_link_names_exists(page: Path) -> None:
    missing = [
        f"{file}#{anchor}"
        for file, anchor in ANCHOR.findall(page.read_text())
        if anchor not in anchors((page.parent / file) if file else page)
    ]
    assert not missing


def test_a_long_sentence_and_a_replaced_word_are_found() -> None:
    long = " ".join(["word"] * 36)
    assert prose.long_sentences(f"| a | {long} |\n") == [long]
    assert prose.long_sentences(f"```\n{long}\n```\n`{long}`\n") == []
    assert prose.long_sentences(f"{' '.join(['short'] * 20)}.\n- {' '.join(['item'] * 20)}\n") == []
    assert prose.replaced_words(
        "The table is taken\nanew. `current_state: false` is a setting.", ["anew", "current_state"]
    ) == ["anew: The table is taken anew."]
