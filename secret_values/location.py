"""Describes where a secret is, as a value and as a text that settings, records and URLs may contain instead of the secret."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

FILE, COMMAND = "$file:", "$command:"


class SecretUnavailable(Exception):  # noqa: N818  a state of the location, which callers translate to their own error
    """A secret could not be read. The message has the setting and the location, and never the secret or what a command wrote."""


@dataclasses.dataclass(frozen=True)
class SecretLocation:
    """Where a secret is: `env`, the name of a variable; `file`; or `command`, a program with its arguments. One of them is set, or none
    where there is no secret.
    """

    env: str = ""
    file: Path | None = None
    command: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.env or self.file or self.command)

    def __post_init__(self) -> None:
        if [bool(self.env), self.file is not None, bool(self.command)].count(True) > 1:
            raise ValueError("set one of variable, file and command")

    @property
    def reference(self) -> str:
        """The text for this location: `$NAME`, `$file:/path` or `$command:["program", "argument"]`; empty without a secret."""
        if self.file is not None:
            return f"{FILE}{self.file}"
        if self.command:
            return f"{COMMAND}{json.dumps(self.command)}"
        return f"${self.env}" if self.env else ""

    @classmethod
    def of(cls, reference: str) -> SecretLocation:
        """Returns the location that a reference names. Raises ValueError for a text that is none."""
        if reference.startswith(FILE):
            return cls(file=Path(reference.removeprefix(FILE)))
        if reference.startswith(COMMAND):
            return cls(command=tuple(map(str, json.loads(reference.removeprefix(COMMAND)))))
        if not is_reference(reference):
            raise ValueError("the text names no variable, file or command")
        return cls(env=reference[1:])


def is_reference(text: str) -> bool:
    """Returns whether a text of conf/ names the location of a secret."""
    return text.startswith("$")
