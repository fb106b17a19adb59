"""The zone that a server means by time_zone=SYSTEM, as one with rules: found by what the server's clocks show. For `schema_snapshot`.

A server tells no more of it than a short name (CST is three zones), and DDL with DEFAULT CURRENT_TIMESTAMP needs its rules.
"""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from collections.abc import Callable

FIRST_YEAR, LAST_YEAR, STEP_DAYS = 2012, 2035, 5  # two zones that agree at each of these moments are taken for one
_FORM = "%Y-%m-%d %H:%M:%S"
Ask = Callable[[str], tuple[object, ...]]  # one row of a SELECT


def system_zone(ask: Ask) -> str:
    """A name of the zone database; empty where no zone in it shows what the server shows."""
    there = _moments()
    texts = ", ".join(f"CONVERT_TZ('{moment.strftime(_FORM)}', '+00:00', 'SYSTEM')" for moment in there)
    shown = tuple(str(each)[:19] for each in ask(f"SELECT {texts}"))
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
