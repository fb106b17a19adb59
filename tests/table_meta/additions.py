"""Reads definitions of columns from `corpus/additions.txt`. For each of them, ALTER TABLE … ADD adds the column to a table with a row."""

from __future__ import annotations

import dataclasses
from pathlib import Path

FILE = Path(__file__).parent / "corpus" / "additions.txt"
STOPS = "--@ stops"
BY_SETTING = "--@ by explicit_defaults_for_timestamp"
ON_MYSQL, ON_MARIADB = "--@ stops on mysql", "--@ stops on mariadb"
FOLLOWED = "--@ followed"
_SECTIONS = (FOLLOWED, STOPS, BY_SETTING, ON_MYSQL, ON_MARIADB)


@dataclasses.dataclass(frozen=True)
class Additions:
    """Definitions of columns. Those in `stops` give existing rows a value that is not certain, so the table is re-snapshotted.

    Those in `by_setting` are followed if explicit_defaults_for_timestamp is on. Those in `stops_on_mysql` and `stops_on_mariadb` are
    certain only on servers of the other flavour.
    """

    followed: tuple[str, ...]
    stops: tuple[str, ...]
    by_setting: tuple[str, ...]
    stops_on_mysql: tuple[str, ...]
    stops_on_mariadb: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.followed, *self.stops, *self.by_setting, *self.stops_on_mysql, *self.stops_on_mariadb)

    def unknowable(self, server: str, *, explicit_timestamps: bool) -> set[str]:
        of_flavour = self.stops_on_mariadb if server.startswith("mariadb") else self.stops_on_mysql
        return {*self.stops, *of_flavour, *(() if explicit_timestamps else self.by_setting)}


def additions() -> Additions:
    found: dict[str, list[str]] = {section: [] for section in _SECTIONS}
    section = found[FOLLOWED]
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line in found:
            section = found[line]
        elif line:
            section.append(line)
    return Additions(*(tuple(found[section]) for section in _SECTIONS))
