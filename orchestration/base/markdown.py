"""Escapes text from a source for Markdown, so that Dagster's pages show comments, statements and names unchanged."""

from __future__ import annotations

import re

# Characters with a meaning in Markdown: some everywhere, `_` at the edge of a word, `&` before the name of an entity, and some only at the
# beginning of a line.
_MEANING = re.compile(
    r"[\\`*\[\]<>~]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|^[ \t]*(?:[#+=-]|\d+(?=[.)](?:\s|$)))", re.MULTILINE
)


def plain(text: str) -> str:
    """Returns the text with escapes, so that Markdown shows every character as it is."""
    return _MEANING.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    at = found[0].lstrip()
    return f"{at}\\" if at.isdigit() else f"\\{at}"


def code(text: str) -> str:
    """Returns the text as inline code. Backticks are removed, because they would end the code."""
    return f"`{text.replace('`', '')}`"
