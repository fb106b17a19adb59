"""Resolves paths, stores and URLs of conf/. Pure; called while the values are checked, defaults included.

A relative path is relative to the folder that holds conf/, in every process. Otherwise the engine, a run, Spark and the
console would find different lakes.
"""

from __future__ import annotations

import re
import string
from pathlib import Path

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
FILE_URI = re.compile(r"file:(?://(?:localhost)?)?(?=/(?!/))")
SECRET = re.compile(r"access_key|secret|password|(?<!allow_)token$|account_key|sas_key|service_account_key")
RELATIVE_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)(?=[^?])")


def local_path(word: str, root: Path | None) -> Path:
    """Returns the absolute path of a local file or folder. `root`: what relative paths start from; None refuses them.

    Raises ValueError with what to write instead.
    """
    if URI.match(word):
        raise ValueError(f"{word} is in an object store; only lake and staging may be there, this must be a folder")
    if not word or word.startswith("~"):
        raise ValueError(f"{word!r} names no folder that is the same for every process; write the whole path")
    if root is None and not Path(word).is_absolute():
        raise ValueError(f"{word} is relative, and no conf/ says to what; write the whole path")
    return ((root or Path("/")) / word).resolve()


def table_location(word: str, root: Path | None) -> str:
    """Returns a folder as an absolute path and an object-store prefix unchanged, without a final slash. file: means a folder."""
    word = FILE_URI.sub("", word)
    if word.startswith("file:"):
        raise ValueError(f"{word} is on another host or relative; write file:///folder or /folder")
    return word.rstrip("/") if URI.match(word) else str(local_path(word, root))


def archive_place(word: str, root: Path | None) -> str:
    """Returns a folder or an object-store prefix. Its credentials must be in the environment. Empty: no archive."""
    if URI.match(word) and "@" in word.partition("://")[2].partition("/")[0]:
        raise ValueError(
            "an archive's URL has no credentials in it: set them in the environment, as AWS_ACCESS_KEY_ID and the like"
        )
    return word and table_location(word, root)


def storage_options(options: dict[str, str]) -> dict[str, str]:
    """Checks the options of a store. Raises ValueError if a secret stands there instead of the name of its variable."""
    bare = [name for name, value in options.items() if SECRET.search(name.lower()) and not value.startswith("$")]
    if bare:
        raise ValueError(f"{', '.join(bare)} must be $NAME of a variable of the environment, not the secret itself")
    return options


def path_template(template: str) -> str:
    """Checks the template of table paths. Raises ValueError if two tables would get one path, or a path of Sluice's own."""
    known = {(name, "", None) for name in ("destination", "database", "table")}
    try:
        fields = [field[1:] for field in string.Formatter().parse(template) if field[1] is not None]
    except ValueError as error:
        raise ValueError(f"{template!r} is no template of a path: {error}") from error
    if not {("table", "", None)} <= set(fields) <= known:
        raise ValueError(
            f"{template!r} must have {{table}}, may have {{database}} and {{destination}}, and nothing else in braces"
        )
    if template.startswith(("/", "_sluice")) or ".." in template.split("/") or template.endswith("/"):
        raise ValueError(f"{template!r} is not a place of its own below the lake")
    return template


def database_url(url: str, root: Path | None) -> str:
    """Returns the URL of a database with a relative SQLite file made absolute."""
    found = RELATIVE_SQLITE.match(url)
    return f"{found[1]}{local_path(url[found.end() :], root)}" if found else url
