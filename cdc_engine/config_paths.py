"""Which file or folder a word of conf/ means; pure, asked by `config` while it checks the values, defaults as well.

A relative path is relative to the folder that holds conf/, whatever process reads it and wherever that was started: engine, run, Spark and
console must mean one folder, or each finds a lake of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
FILE_URI = re.compile(r"file:(?://(?:localhost)?)?(?=/(?!/))")
RELATIVE_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)(?=[^?])")


def local_path(word: str, root: Path | None) -> Path:
    """The absolute path of a local file or folder. `root`: what relative ones start from; None where there is none, then they are refused.

    Raises ValueError with what to write instead.
    """
    if not word or word.startswith("~"):
        raise ValueError(f"{word!r} names no folder that is the same for every process; write the whole path")
    if root is None and not Path(word).is_absolute():
        raise ValueError(f"{word} is relative, and no conf/ says to what; write the whole path")
    return ((root or Path("/")) / word).resolve()


def table_location(word: str, root: Path | None) -> str:
    """A folder as its absolute path, a prefix of an object store as it is; neither ends with a slash. file: is a folder."""
    word = FILE_URI.sub("", word)
    if word.startswith("file:"):
        raise ValueError(f"{word} is on another host or relative; write file:///folder or /folder")
    return word.rstrip("/") if URI.match(word) else str(local_path(word, root))


def database_url(url: str, root: Path | None) -> str:
    """The URL of a database; the file of a relative SQLite one is made absolute."""
    found = RELATIVE_SQLITE.match(url)
    return f"{found[1]}{local_path(url[found.end() :], root)}" if found else url
