"""The statements of corpus/*.sql: a file is a group, run in a database of its own, in its order.

A statement ends with a semicolon at the end of a line. A line `--@ mysql80 mariadb114` names the servers that what follows is for,
`--@ all` every one. A group may hold statements that a server refuses: those are in no binlog and change nothing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Group:
    """`statements`: with the servers each is for, none for every one."""

    name: str
    statements: tuple[tuple[str, frozenset[str]], ...]

    @property
    def database(self) -> str:
        return f"ddl_{self.name}"

    def of(self, server: str) -> list[str]:
        return [statement for statement, servers in self.statements if not servers or server in servers]


def groups() -> list[Group]:
    return [Group(path.stem, tuple(_statements(path))) for path in sorted(FOLDER.glob("*.sql"))]


def _statements(path: Path) -> list[tuple[str, frozenset[str]]]:
    found: list[tuple[str, frozenset[str]]] = []
    servers: frozenset[str] = frozenset()
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("--@"):
            names = line[3:].split()
            servers = frozenset() if names == [ALL] else frozenset(names)
            continue
        lines.append(line)
        if line.endswith(";"):
            found.append(("\n".join(lines)[:-1], servers))
            lines = []
    return found
