"""Definitions of a column that ALTER TABLE … ADD gives to a table with a row in it, read from `corpus/additions.txt`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

FILE = Path(__file__).parent / "corpus" / "additions.txt"
STOPS = "--@ stops"
BY_SETTING = "--@ by explicit_defaults_for_timestamp"
FOLLOWED = "--@ followed"


@dataclasses.dataclass(frozen=True)
class Additions:
    """`stops`: what no one can say without reading the rows anew. `by_setting`: followed where explicit_defaults_for_timestamp is on."""

    followed: tuple[str, ...]
    stops: tuple[str, ...]
    by_setting: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.followed, *self.stops, *self.by_setting)


def additions() -> Additions:
    found: dict[str, list[str]] = {FOLLOWED: [], STOPS: [], BY_SETTING: []}
    section = found[FOLLOWED]
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line in found:
            section = found[line]
        elif line:
            section.append(line)
    return Additions(*(tuple(found[section]) for section in (FOLLOWED, STOPS, BY_SETTING)))
