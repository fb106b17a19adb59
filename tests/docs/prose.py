"""Finds sentences that are too long, and words that docs/glossary.md replaces, in a page of Markdown. Code is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"(`+).+?\1", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
END_OF_SENTENCE = re.compile(r"(?<=[.!?…])[\"')*_]*\s+(?=[A-Z\d\"'(*_[])")
# Terms that others coined, with a word that the glossary replaces in other uses.
FOREIGN_TERMS = re.compile(r"change data feed|JSON documents?|RPC feed", re.IGNORECASE)
WORD = re.compile(r"\w[\w'.,/-]*")
WORDS_MAX = 35


def sentences(markdown: str) -> Iterator[str]:
    """Yields each sentence in headings, paragraphs, list items and table cells. A code span is replaced by CODE."""
    for block in _blocks(_without_code(markdown)):
        yield from (sentence for part in END_OF_SENTENCE.split(block) if (sentence := part.strip()))


def long_sentences(markdown: str) -> list[str]:
    """Returns the sentences of more than WORDS_MAX words; code spans do not count."""
    return [each for each in sentences(markdown) if len(WORD.findall(each.replace("CODE", ""))) > WORDS_MAX]


def replaced_words(markdown: str, words: list[str]) -> list[str]:
    """Returns "word: sentence" for each use of one of the words, or of one of its regular forms."""
    found = []
    for sentence in sentences(markdown):
        own = FOREIGN_TERMS.sub("", sentence)
        found += [f"{word}: {sentence}" for word in words if re.search(rf"\b{word}(s|es|d|ed|ing)?\b", own, re.I)]
    return found


def _without_code(markdown: str) -> str:
    text = COMMENT.sub("", FENCE.sub("", markdown))
    return LINK.sub(r"\1", CODE.sub("CODE", text))


def _blocks(text: str) -> Iterator[str]:
    """Yields the units at whose end a sentence ends: headings, paragraphs, list items, and rows of tables."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_row, is_heading = line.lstrip().startswith("|"), line.startswith("#")
        if block and (is_row or is_heading or not line.strip() or ITEM.match(line)):
            yield " ".join(block)
            block = []
        if is_row:
            yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
        elif is_heading:
            yield line.lstrip("# ")
        elif line.strip():
            block.append(ITEM.sub("", line).strip())
