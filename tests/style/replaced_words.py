"""Counts uses of the words that docs/glossary.md replaces, in identifiers and in prose, for `tests.style.figures`.

A count ignores the context: "place" is counted even in a sentence about a place on a disk. It shows where to look, not what is wrong.
"""

from __future__ import annotations

import ast
import functools
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.style.sources import Source

GLOSSARY = "docs/glossary.md"
HEADING = "## Words that are replaced"
PROSE_PAGES = ("*.md", "docs/**/*.md")
PARTS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def replaced_words(root: Path) -> list[str]:
    """Returns the words in the first column of the glossary's last table. Remarks in parentheses are left out."""
    _, _, table = (root / GLOSSARY).read_text().partition(HEADING)
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")][2:]
    return [word.strip() for cell in cells for word in re.sub(r"\(.*?\)", "", cell).split(",")]


@functools.cache
def _pattern(word: str) -> re.Pattern[str]:
    """Returns a pattern for the word with its regular endings."""
    return re.compile(rf"\b{word}(s|es|d|ed|ing)?\b", re.IGNORECASE)


def count_words(words: Iterable[str], text: str) -> Counter[str]:
    """Returns word → number of uses in a text."""
    flat = " ".join(text.split())
    return Counter({word: found for word in words if (found := len(_pattern(word).findall(flat)))})


def as_prose(identifier: str) -> str:
    """Returns an identifier as separate words. "at_hand" and "AtHand" become "at hand"."""
    return " ".join(PARTS_OF_NAME.findall(identifier)).lower()


def count_in_names(words: Sequence[str], source: Source) -> Counter[str]:
    """Returns how often each word occurs in the names that a file's code uses. Each use of a name is counted."""
    names = Counter(token.string for token in source.tokens if token.type == tokenize.NAME)
    found: Counter[str] = Counter()
    for name, uses in names.items():
        found += Counter({word: uses * count for word, count in _words_of_name(tuple(words), name).items()})
    return found


@functools.cache  # Most of the code uses few names.
def _words_of_name(words: tuple[str, ...], name: str) -> Counter[str]:
    return count_words(words, as_prose(name))


def prose(source: Source) -> list[str]:
    """Docstrings and comments of a file."""
    documented = source.nodes(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) for node in documented]  # type: ignore[arg-type]
    comments = [token.string for token in source.tokens if token.type == tokenize.COMMENT]
    return [*(text for text in docstrings if text), *comments]


def count_in_code(files: Sequence[Source], words: Sequence[str]) -> dict[str, dict[str, Counter[str]]]:
    """Returns package → "identifiers" and "prose" → word → number of uses."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for source in files:
        package = found.setdefault(source.folder.split("/")[0], {"identifiers": Counter(), "prose": Counter()})
        package["identifiers"] += count_in_names(words, source)
        package["prose"] += count_words(words, "\n".join(prose(source)))
    return found


def count_in_pages(root: Path, words: Sequence[str]) -> Counter[str]:
    """Returns how often each word occurs in the README, the changelog and docs/, except in the glossary."""
    pages = {path for pattern in PROSE_PAGES for path in root.glob(pattern)} - {root / GLOSSARY}
    return sum((count_words(words, path.read_text()) for path in sorted(pages)), Counter())
