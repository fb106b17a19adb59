"""Parses Canal's properties files, looks up keys in them, and defines the report of an import."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from sluice.cdc_engine.errors import ConfigurationError

PLACEHOLDER = re.compile(r"\$\{([^}:]*)(?::([^}]*))?\}")
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
PAIR = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:\s]?\s*(.*)", re.DOTALL)
NESTED_MAX = 10
# If this key is true, Canal reads the source by GTIDs. The modules `rules` and `brokers` look up this key.
GTID_ON = "canal.instance.gtidon"
# Canal's key → Sluice's setting for the same kind of entries. If Canal's key is true, Canal leaves these entries out. If Sluice's setting
# is true, Sluice sends these entries.
SHOWN_KINDS = {
    "canal.instance.filter.query.ddl": "ddl",
    "canal.instance.filter.query.dcl": "other_statements",
    "canal.instance.filter.rows": "row_entries",
}
RANGE = re.compile(r"(.*)\{(\d+)-(\d+)\}(.*)")


def parsed(text: str) -> dict[str, str]:
    """Parses the text of a properties file by Java's rules, and returns key → value. Removes blanks around a value."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        pair = PAIR.fullmatch(line)
        if pair is not None:
            found[_unescaped(pair[1])] = _unescaped(pair[2]).strip()
    return found


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    begun = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not begun and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun += line[:-1]
            continue
        lines.append(begun + line)
        begun = ""
    return [*lines, begun] if begun else lines


def _unescaped(text: str) -> str:
    def said(found: re.Match[str]) -> str:
        mail = found[1]
        return chr(int(mail[1:], 16)) if len(mail) == 5 else ESCAPES.get(mail, mail)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", said, text, flags=re.DOTALL)


@dataclasses.dataclass
class ImportReport:
    """The report of an import. The first three fields have lines about keys of Canal.
    - `taken`: keys that were converted.
    - `left`: keys that were not converted, and what to do instead.
    - `no_meaning`: keys that Sluice does not need, and why.
    - `secrets`: environment variable → a description of the secret that an operator must put into it.
    """

    taken: list[str] = dataclasses.field(default_factory=list)
    left: list[str] = dataclasses.field(default_factory=list)
    no_meaning: list[str] = dataclasses.field(default_factory=list)
    secrets: dict[str, str] = dataclasses.field(default_factory=dict)

    def names(self, key: str) -> bool:
        """Returns whether the report mentions the key."""
        named = re.compile(rf"(?<![\w.]){re.escape(key)}(?![\w]|\.\w)")
        return any(map(named.search, (*self.taken, *self.left, *self.no_meaning, *self.secrets.values())))

    def secret(self, name: str, what: str, key: str) -> str:
        """Adds a secret to the report, and returns the name of the environment variable that must contain the secret. This name has the
        form NAME_WHAT: the destination's name `name` in upper case, with "_" instead of each character that is not a letter or digit, and
        `what`. `key` is Canal's key that has the secret.
        """
        variable = f"{re.sub(r'[^A-Z0-9]', '_', name.upper())}_{what}"
        self.secrets[variable] = f"{key} of {name}"
        return variable


@dataclasses.dataclass
class Settings:
    """Looks up Canal's settings, of one instance or of the server. `environment` takes precedence over `files`, and an earlier file in
    `files` takes precedence over a later file. A blank value counts as missing.
    """

    files: tuple[Mapping[str, str], ...]
    environment: Mapping[str, str]

    def get(self, key: str, default: str = "") -> str:
        """Returns the value of a key, or `default` if the key has no value. Raises ConfigurationError if the value has a placeholder
        without a value, because the import would otherwise write another address or other tables than Canal has.
        """
        found = self.unchecked(key)
        if missing := PLACEHOLDER.search(found):
            raise ConfigurationError(
                f"{key} refers to {missing[0]}, which has a value neither in Canal's properties nor in the environment: set the "
                f"environment variable {missing[1]} to the value that Canal has, and import again"
            )
        return found or default

    def unchecked(self, key: str) -> str:
        """Returns the value of a key, or "" if the key has no value. As in Canal, a placeholder without a value stays in the text."""
        return self._resolved(self._raw(key), 0)

    def flag(self, key: str, *, default: bool = False) -> bool:
        return self.get(key, str(default)).lower() == "true"

    def number(self, key: str, default: int = 0) -> int:
        """Returns the value of a key as an integer, or `default` if the key has no value. Raises ConfigurationError if the value is not an
        integer.
        """
        text = self.get(key, str(default))
        try:
            return int(text)
        except ValueError:
            raise ConfigurationError(f"{key} is {text!r}, not a number: correct the properties file") from None

    def given(self, *keys: str) -> str:
        """Returns those of `keys` that have a value, separated by commas, or "" if no key has a value."""
        return ", ".join(key for key in keys if self._raw(key))

    def _raw(self, key: str) -> str:
        found = (source[key] for source in (self.environment, *self.files) if source.get(key, "").strip())
        return next(found, "")

    def _resolved(self, text: str, depth: int) -> str:
        if depth > NESTED_MAX:
            raise ConfigurationError(
                f"the value {text} in Canal's properties refers to itself, or to a chain of more than "
                f"{NESTED_MAX} keys: correct the properties file"
            )

        def said(found: re.Match[str]) -> str:
            if value := self._resolved(self._raw(found[1]), depth + 1):
                return value
            is_known = found[2] is not None or any(found[1] in source for source in (self.environment, *self.files))
            return (found[2] or "") if is_known else found[0]

        return PLACEHOLDER.sub(said, text).strip()


def left_out(settings: Settings, report: ImportReport, kinds: Mapping[str, str]) -> dict[str, bool]:
    """Returns setting → False for each kind of entries that Canal leaves out, so that Sluice leaves out the same kinds. `kinds` maps a key
    of Canal to Sluice's setting for the same kind, as SHOWN_KINDS does. Adds Canal's keys to the report.
    """
    found = {own: False for key, own in kinds.items() if settings.flag(key)}
    if keys := settings.given(*kinds):
        report.taken.append(
            f"{keys}: converted to {', '.join(f'`{own}`' for own in kinds.values())}, which switch the kinds of entries on or off"
        )
    return found


def read_properties(file: Path) -> dict[str, str]:
    """Reads a properties file, and returns key → value. Raises ConfigurationError if the file cannot be read."""
    try:
        return parsed(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}; correct the file or its permissions") from error


def instances(folder: Path, server: Settings) -> list[str]:
    """Returns the names of the instances in canal.destinations.expr or, if this key is empty, in canal.destinations. If canal.auto.scan is
    true, as it is by default, also returns the name of each folder in `folder`, except `spring`, that contains an instance.properties.
    """
    listed = server.get("canal.destinations")
    expression = server.get("canal.destinations.expr")
    names = _expanded(expression) if expression else [name.strip() for name in listed.split(",") if name.strip()]
    if server.flag("canal.auto.scan", default=True):
        names += sorted(
            path.parent.name for path in folder.glob("*/instance.properties") if path.parent.name != "spring"
        )
    return list(dict.fromkeys(names))


def _expanded(expression: str) -> list[str]:
    """Returns the names for which an expression stands: name1, name2 and name3 for name{1-3}. Raises ConfigurationError if the expression
    has another form.
    """
    found = RANGE.fullmatch(expression)
    if found is None or int(found[2]) > int(found[3]):
        raise ConfigurationError(
            f"canal.destinations.expr {expression!r} is not of the form name{{1-5}}: correct canal.properties"
        )
    return [f"{found[1]}{number}{found[4]}" for number in range(int(found[2]), int(found[3]) + 1)]
