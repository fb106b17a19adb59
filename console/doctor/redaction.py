"""Hides secrets in the report of `sluice doctor`: the values of known secrets wherever they occur, and all text that has the form of a
secret.

Known secrets are the secrets that are written in conf/, the contents of variables and files that conf/ names, the values of environment
variables with names such as TOKEN, and the engines' tokens. `report` passes its whole output through this module.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HIDDEN = "<hidden>"
# A secret with fewer characters than this is hidden only where it is a whole word. Hiding it within words would make the report unreadable.
SHORT = 4
FILE_BYTES_MAX = 64 << 10  # Of a file with a secret, only the first bytes are read, up to this number.
NAMES_SECRET = re.compile(
    r"pass(word|wd|phrase)?|pwd|secret|token|credential|salt|(^|[_.-])(key|sas|signature|auth)($|[_.-])|access_?key|"
    r"account_?key|authorization|headers?$|private",
    re.IGNORECASE,
)
NAMES_LOCATION = re.compile(r"(_env|_file|^file|^env|^key)$")
LOCATIONS = frozenset({"env", "file", "command"})  # The keys of a mapping that says where a secret is.
REFERENCE = re.compile(r"\$[A-Za-z_][\w.-]*")
FORMS = (
    # The password in a URL. It may contain a slash, because SQLAlchemy accepts that in the URL of a ledger's database.
    (re.compile(r"(://[^\s/:@?#'\"]*):[^\s@'\"]+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]+"), rf"\1{HIDDEN}"),
    (
        re.compile(r"(?i)(\bidentified\s+(?:with\s+\S+\s+)?(?:by|as)\s+)('(?:[^'\\]|\\.|'')*'|\"[^\"]*\"|\S+)"),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)\b([\w.-]*(?:password|passwd|pwd|secret|token|signature|credential|access_?key|account_?key|sig)[\w.-]*"
            r"['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;&}\])]+)"
        ),
        rf"\1{HIDDEN}",
    ),
)
URL_PASSWORD = re.compile(r"://[^/:@?#]*:([^@]+)@")  # As above, in a setting of conf/.
QUERY = re.compile(r"(\w+://[^\s?#'\"]+)\?[^\s'\"]+")


class Redactor:
    """Hides known secrets, and all text that has the form of a secret. Replaces longer secrets first. If one secret contains another one,
    replacing the shorter one first would leave the rest of the longer one visible.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if secret.strip() for form in _forms(secret.strip())}
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(_pattern, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """Returns a text with each secret replaced by HIDDEN."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for form, replacement in FORMS:
            text = form.sub(replacement, text)
        return text

    def value(self, value: Any) -> Any:
        """Returns a JSON value in which HIDDEN replaces each secret, even in keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.value(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(part) for part in value]
        return value


def shown_setting(value: Any, name: str = "") -> Any:
    """Returns a setting of conf/ without secrets. `name` is the setting's key, by which secrets are recognized. For a secret, the result
    shows the secret's location, but not the secret itself, and not the arguments of a command that prints the secret.
    """
    if isinstance(value, Mapping):
        if NAMES_SECRET.search(name) and not set(value) <= LOCATIONS:
            return {str(key): HIDDEN for key in value}
        return {str(key): shown_setting(part, str(key)) for key, part in value.items()}
    if isinstance(value, list):
        if name.endswith("command"):
            return [shown_setting(part) for part in value[:1]] + [HIDDEN] * (len(value) > 1)
        return [shown_setting(part, name) for part in value]
    if not isinstance(value, str):
        return value if not _stands_for_secret(name) or isinstance(value, bool) or value is None else HIDDEN
    if _stands_for_secret(name) and not REFERENCE.fullmatch(value):
        return HIDDEN
    return QUERY.sub(rf"\1?{HIDDEN}", value)


def secrets_in(value: Any, name: str, root: Path, environment: Mapping[str, str]) -> set[str]:
    """Returns the secrets in a setting of conf/: secrets that the setting contains, and the values of the variables and files that it
    names. `name` is the setting's key, by which secrets are recognized. Relative paths of files start in `root`, and `environment` has the
    values of variables.
    """
    found: set[str] = set()
    if isinstance(value, Mapping):
        for key, part in value.items():
            found |= secrets_in(part, f"{name}_{key}" if str(key) in LOCATIONS else str(key), root, environment)
            if str(key).endswith("file") and isinstance(part, str):
                found |= _of_file(root / part)
        return found
    if isinstance(value, list):
        if name.endswith("command") and NAMES_SECRET.search(name):
            return {str(part) for part in value[1:]}
        return found.union(*(secrets_in(part, name, root, environment) for part in value))
    if not isinstance(value, str):
        return {str(value)} if _stands_for_secret(name) and not isinstance(value, bool) and value is not None else found
    if name.endswith("_env"):
        found.add(environment.get(value, ""))
    found |= {environment.get(reference[1:], "") for reference in REFERENCE.findall(value)}
    if _stands_for_secret(name) and not REFERENCE.fullmatch(value):
        found.add(value)
    passwords = URL_PASSWORD.findall(value)
    if "://" in value and "[" not in value:
        passwords.append(urllib.parse.urlsplit(value).password or "")
    for password in passwords:
        if password and not REFERENCE.fullmatch(password):
            found |= {password, urllib.parse.unquote(password)}
    return found


def secrets_of_environment(environment: Mapping[str, str]) -> set[str]:
    """Returns the values of environment variables whose names indicate a secret, except values with fewer than SHORT characters."""
    return {value for name, value in environment.items() if NAMES_SECRET.search(name) and len(value) >= SHORT}


def _stands_for_secret(name: str) -> bool:
    return bool(NAMES_SECRET.search(name)) and not NAMES_LOCATION.search(name)


def _of_file(path: Path) -> set[str]:
    """Returns the content of a file with a secret, and each of its lines. Returns an empty set if the file cannot be read."""
    try:
        with path.open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX).decode(errors="replace")
    except OSError:
        return set()
    return {text.strip(), *(line.strip() for line in text.splitlines())}


def _forms(secret: str) -> set[str]:
    """Returns the forms in which a secret can occur in texts: unchanged, URL-encoded and in base64."""
    encoded = base64.b64encode(secret.encode(errors="surrogateescape")).decode()
    return {secret, urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret), encoded}


def _pattern(form: str) -> str:
    return re.escape(form) if len(form) >= SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
