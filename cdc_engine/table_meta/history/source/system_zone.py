"""Finds the named time zone of a server with time_zone=SYSTEM, by comparing times that the server converts.

The zone's rules are needed for DDL with DEFAULT CURRENT_TIMESTAMP. But the server reports only an abbreviation, which may be ambiguous:
three zones are called CST.
"""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from collections.abc import Callable

# Two zones count as the same zone if their local times agree at one moment every STEP_DAYS days, from the beginning of FIRST_YEAR to the
# beginning of LAST_YEAR.
FIRST_YEAR, LAST_YEAR, STEP_DAYS = 2012, 2035, 5
_FORM = "%Y-%m-%d %H:%M:%S"
Select = Callable[[str], tuple[object, ...]]  # Runs a SELECT and returns its only row.


def system_zone(select: Select) -> str:
    """Returns the name of a time zone that gives the same local times as the server's zone SYSTEM for all UTC times of `_moments`. Returns
    "" if there is no such zone.
    """
    there = _moments()
    texts = ", ".join(f"CONVERT_TZ('{moment.strftime(_FORM)}', '+00:00', 'SYSTEM')" for moment in there)
    shown = tuple(str(each)[:19] for each in select(f"SELECT {texts}"))
    for name in sorted(zoneinfo.available_timezones() - _NOT_NAMES):
        zone = zoneinfo.ZoneInfo(name)
        pairs = zip(there, shown, strict=True)
        if all(moment.astimezone(zone).strftime(_FORM) == text for moment, text in pairs):
            return name
    return ""


@functools.cache
def _moments() -> tuple[dt.datetime, ...]:
    first, last = (dt.datetime(year, 1, 1, 12, tzinfo=dt.UTC) for year in (FIRST_YEAR, LAST_YEAR))
    days = range(0, (last - first).days, STEP_DAYS)
    return tuple(first + dt.timedelta(days=day) for day in days)


_NOT_NAMES = {"localtime", "Factory", "posixrules"}
