"""Writes text of a source into Markdown, so that Dagster's pages show it as it is: comments, statements and names."""

from __future__ import annotations

import re

# What has a meaning anywhere, at the edge of a word, before an entity's name, and at the beginning of a line.
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
