"""Escapes text from a source for Markdown, so that Dagster's pages show comments, statements and names unchanged."""

from __future__ import annotations

import re

# Characters with a meaning in Markdown: anywhere; at the edge of a word; before the name of an entity; at the beginning of a line.
_MEANING = re.compile(
    r"[\\`*\[\]<>~]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|^[ \t]*(?:[#+=-]|\d+(?=[.)](?:\s|$)))", re.MULTILINE
)


def plain(text: str) -> str:
    """Returns text in which no character has a meaning in Markdown."""
    return _MEANING.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    at = found[0].lstrip()
    return f"{at}\\" if at.isdigit() else f"\\{at}"


def code(text: str) -> str:
    """Returns text as code, in which nothing else has a meaning."""
    return f"`{text.replace('`', '')}`"
