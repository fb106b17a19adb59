"""Resolves the paths, stores and URLs of conf/, and names folders after databases and tables. Pure.

In every process, a relative path starts in the folder that contains conf/. Otherwise the engine, a run, Spark and the console, which have
different working folders, would find different lakes.
"""

from __future__ import annotations

import functools
import hashlib
import posixpath
import re
import string
import unicodedata
from pathlib import Path

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# These expressions match the beginning of a URL of Azure. AZURE_URI matches URLs that deltalake and pyarrow accept. SPARK_AZURE_URI matches
# those of them that Spark also accepts.
AZURE_URI = re.compile(r"(?:abfss?|az|azure|adl)://", re.IGNORECASE)
SPARK_AZURE_URI = re.compile(r"abfss?://[^/@]+@[^/@.]+\.[^/]+")
FILE_URI = re.compile(r"file:(?://(?:localhost)?)?(?=/(?!/))")
SECRET = re.compile(r"access_key|secret|password|(?<!allow_)token$|account_key|sas_key|service_account_key")
# Options of Google Cloud Storage and Azure whose value is the path of a file with credentials.
CREDENTIALS_FILE = re.compile(
    r"(google_)?(service_account|service_account_path|application_credentials)|(azure_(storage_)?)?federated_token_file"
)
# An option of Google Cloud Storage that other clients accept but deltalake does not, so conf/ must not set it.
UNKNOWN_TO_DELTALAKE = "google_bearer_token"
# The maximum number of bytes of a folder name that `path_segment` returns. A longer name is shortened. File systems allow 255 bytes, and
# Sluice appends suffixes such as `__history`.
SEGMENT_BYTES_MAX = 200
ESCAPE = re.compile(r"@(?=[0-9a-f]{4})")
OWN_NAMES = ("_sluice", "_delta_", "_change_data")  # Prefixes of the folders that Sluice and Delta create.
RELATIVE_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)(?=[^?])")


def local_path(word: str, root: Path | None) -> Path:
    """Returns the absolute path of a local folder, with links resolved. A relative path starts in `root`. Raises ValueError for an empty
    text, a URL, a path that begins with `~`, and a relative path if `root` is None. The message says what to write instead of `word`.
    """
    return local_file(word, root).resolve()


def local_file(word: str, root: Path | None) -> Path:
    """Returns the absolute path of a local file or folder. A relative path starts in `root`. Does not resolve links: Kubernetes replaces a
    secret by changing the target of a link, and then removes the earlier target, so a resolved path would name a removed file. Raises
    ValueError for an empty text, a URL, a path that begins with `~`, and a relative path if `root` is None.
    """
    if URI.match(word):
        raise ValueError(
            f"{word} is in an object store; only lake, staging and archive may be in an object store: set a local path"
        )
    if not word or word.startswith("~"):
        raise ValueError(f"{word!r} would be a different folder in each process; write an absolute path")
    if root is None and not Path(word).is_absolute():
        raise ValueError(
            f"{word} is relative, and no conf/ exists to which the path could be relative; write an absolute path"
        )
    return ((root or Path("/")) / word).absolute()


def table_location(word: str, root: Path | None) -> str:
    """Returns the location of tables: the absolute path of a folder, or the URL of a prefix in an object store, without a slash at the end.
    A URL that begins with `file:` means a folder. Raises ValueError if the location is invalid, for example a URL that Spark cannot read.
    """
    if AZURE_URI.match(word) and not SPARK_AZURE_URI.match(word):
        raise ValueError(f"Spark cannot read {word}; write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH")
    return _location(word, root)


def _location(word: str, root: Path | None) -> str:
    word = FILE_URI.sub("", word)
    if word.startswith("file:"):
        raise ValueError(f"{word} is on another host or relative; write file:///folder or /folder")
    return word.rstrip("/") if URI.match(word) else str(local_path(word, root))


def archive_location(word: str, root: Path | None) -> str:
    """Returns the location of a binlog archive: a folder, or a prefix in an object store. Returns "" if `word` is empty. Raises ValueError
    if the location is invalid. A URL with credentials is invalid too, because the credentials of an archive must be in the environment.
    """
    if URI.match(word) and "@" in word.partition("://")[2].partition("/")[0]:
        raise ValueError(
            "the URL of an archive must not contain credentials: set them in the environment, for example AWS_ACCESS_KEY_ID"
        )
    return word and _location(word, root)


def storage_options(options: dict[str, str]) -> dict[str, str]:
    """Checks the options of an object store, and returns them unchanged. Raises ValueError if an option contains a secret instead of a
    reference to the secret, if the path of a file with credentials is relative, or if `google_bearer_token` is set, which deltalake does
    not know.
    """
    bare = [name for name, value in options.items() if SECRET.search(name.lower()) and not value.startswith("$")]
    if bare:
        raise ValueError(
            f"{', '.join(bare)} must be $NAME of an environment variable, {{file: …}} or {{command: […]}}, not the secret itself"
        )
    relative = [
        name
        for name, value in options.items()
        if CREDENTIALS_FILE.fullmatch(name.lower()) and not value.startswith(("$", "/"))
    ]
    if relative:
        raise ValueError(
            f"{', '.join(relative)} must be an absolute path, because each process would look for a relative one in its own folder"
        )
    if UNKNOWN_TO_DELTALAKE in map(str.lower, options):
        raise ValueError(
            f"{UNKNOWN_TO_DELTALAKE}: deltalake accepts no tokens of Google Cloud Storage; set google_service_account or "
            "google_service_account_key"
        )
    return options


def path_template(template: str) -> str:
    """Checks the template of table paths, and returns it unchanged. Raises ValueError if the template has no {table} or an unknown
    placeholder, or if a path could be outside the lake or in a folder that Sluice uses for its own data.
    """
    known = {(name, "", None) for name in ("destination", "database", "table")}
    try:
        fields = [field[1:] for field in string.Formatter().parse(template) if field[1] is not None]
    except ValueError as error:
        raise ValueError(f"{template!r} is not a valid template of a path: {error}") from error
    if not {("table", "", None)} <= set(fields) <= known:
        raise ValueError(
            f"{template!r} must have {{table}}, may have {{database}} and {{destination}}, and nothing else in braces"
        )
    if template.startswith(("/", "_sluice")) or ".." in template.split("/") or template.endswith("/"):
        raise ValueError(
            f"{template!r} is not a path below the lake that differs for each table: write a relative path "
            "without .., such as {database}/{table}"
        )
    return template


def database_url(url: str, root: Path | None) -> str:
    """Returns the URL of a database. The path of a relative SQLite file becomes absolute."""
    found = RELATIVE_SQLITE.match(url)
    return f"{found[1]}{local_path(url[found.end() :], root)}" if found else url


@functools.lru_cache(maxsize=8192)
def path_segment(name: str) -> str:
    """Returns a folder name for the name of a database or table. Different names get different folders.

    ASCII letters and digits, `_ - . $ @` and spaces stay as they are, and so do non-ASCII characters except spaces and control characters.
    Any other character becomes `@` and four hexadecimal digits, as in MySQL's own file names. An `@` before four hexadecimal digits becomes
    `@0040`. The form `%2F` cannot be used, because deltalake decodes it in paths. The first character becomes `@` and four digits too if it
    is a dot or a space, or if the name begins with one of OWN_NAMES, such as `_sluice`. A folder name of more than SEGMENT_BYTES_MAX bytes
    is cut, and gets a digest at its end.
    """
    text = "".join(char if _is_plain(char) else _escaped(char) for char in ESCAPE.sub("@0040", name))
    if text.startswith((".", " ")) or text.lower().startswith(OWN_NAMES):
        text = _escaped(text[0]) + text[1:]
    if len(text.encode()) <= SEGMENT_BYTES_MAX:
        return text
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return text.encode()[: SEGMENT_BYTES_MAX // 2].decode(errors="ignore") + f"@{digest}"


def _is_plain(char: str) -> bool:
    if char.isascii():
        return char.isalnum() or char in "_-.$@ "
    return unicodedata.category(char)[0] not in "CZ"


def _escaped(char: str) -> str:
    return f"@{ord(char):04x}"


def comparable_path(path: str, *, folds_case: bool = False) -> str:
    """Returns one text for all spellings of a path, so that two paths can be compared. Replaces `s3a://` by `s3://`, and resolves doubled
    slashes and the segments `.` and `..`. With `folds_case`, the text is the same for upper and lower case.
    """
    scheme, mark, rest = path.rpartition("://")
    normal = posixpath.normpath(rest if mark else path)
    whole = f"{'s3' if scheme == 's3a' else scheme}{mark}{normal}"
    return unicodedata.normalize("NFC", whole).casefold() if folds_case else whole
