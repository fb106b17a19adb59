"""Defines the location of a secret, and its form as a text. Settings, records and URLs contain this text, never the secret itself."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

FILE, COMMAND = "$file:", "$command:"
# Matches the name of an environment variable. Kubernetes permits names with dots and hyphens.
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class SecretUnavailable(Exception):  # noqa: N818  a state of the location, which callers translate to their own error
    """Raised if a secret cannot be read. The message has the setting and the location, but neither the secret nor the
    output of a command.
    """


@dataclasses.dataclass(frozen=True)
class SecretLocation:
    """Where a secret is: in an environment variable, in a file, or in the output of a command (a program with its arguments). At most
    one of the three is set. If none is set, there is no secret.
    """

    env: str = ""
    file: Path | None = None
    command: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.env or self.file or self.command)

    def __post_init__(self) -> None:
        if [bool(self.env), self.file is not None, bool(self.command)].count(True) > 1:
            raise ValueError("set only one of variable, file and command")
        if self.env and not VARIABLE.fullmatch(self.env):
            raise ValueError(
                "the name of an environment variable may have only letters, digits, _, . and -, and must not "
                "begin with a digit"
            )
        if not all(isinstance(part, str) and part for part in self.command):
            raise ValueError("a command is a list of strings: a program and its arguments, none of them empty")

    @property
    def reference(self) -> str:
        """The location as a text: `$NAME`, `$file:/path` or `$command:["program", "argument"]`. Empty if there is no secret."""
        if self.file is not None:
            return f"{FILE}{self.file}"
        if self.command:
            return f"{COMMAND}{json.dumps(self.command)}"
        return f"${self.env}" if self.env else ""

    @property
    def description(self) -> str:
        """The location for a message, without the arguments of a command, because they may have a secret. Empty if there is no secret."""
        if self.file is not None:
            return f"the file {self.file}"
        if self.command:
            return f"the command {self.command[0]}"
        return f"the environment variable {self.env}" if self.env else ""

    @classmethod
    def of(cls, reference: str) -> SecretLocation:
        """Parses a `reference`. Raises ValueError for any other text. The error does not repeat the text, because somebody may have written
        the secret itself by mistake.
        """
        if reference.startswith(FILE):
            path = reference.removeprefix(FILE)
            found = cls(file=Path(path)) if path else cls()
        elif reference.startswith(COMMAND):
            found = cls(command=_parts(reference.removeprefix(COMMAND)))
        else:
            found = cls(env=reference[1:] if is_reference(reference) else "")
        if not found:
            raise ValueError(
                "the value is not the location of a secret: write $NAME, {file: PATH} or {command: [PROGRAM]}"
            )
        return found


def described(text: str) -> str:
    """Describes the location of a secret for a message. A text that is no reference may be the secret itself, so the result does not
    contain this text.
    """
    return SecretLocation.of(text).description if is_reference(text) else "the value"


def _parts(text: str) -> tuple[str, ...]:
    """Parses a program and its arguments from a JSON list. Raises ValueError if the text is not a JSON list."""
    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    if not isinstance(parts, list):
        raise ValueError('the text after $command: is not a list in JSON, such as ["program", "argument"]')
    return tuple(parts)


def is_reference(text: str) -> bool:
    """Returns whether a value in conf/ is the location of a secret: whether it begins with `$`."""
    return text.startswith("$")
