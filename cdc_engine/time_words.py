"""Times as people write them, and as they are shown to people. Pure; used by `config` and the console, and in messages."""

from __future__ import annotations

import datetime as dt
import re

from cdc_engine.errors import ConfigurationError

SECOND_US = 1_000_000
_AGO = re.compile(r"-(?P<count>\d{1,9})(?P<unit>[smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def time_us(word: str, now_us: int) -> int:
    """Microseconds since 1970 UTC of a time in ISO form that names its zone, or of one that is so long ago, as -10m (s, m, h, d).

    Raises ConfigurationError for another word, and for a time without a zone: nobody knows which was meant.
    """
    if ago := _AGO.fullmatch(word.strip()):
        return now_us - int(ago["count"]) * _SECONDS[ago["unit"]] * SECOND_US
    try:
        moment = dt.datetime.fromisoformat(word.strip())
    except ValueError:
        raise ConfigurationError(
            f"{word!r} is no time; write it in ISO form with its zone, as 2026-03-01T12:00:00Z, or how long ago it is, as -10m"
        ) from None
    if moment.tzinfo is None:
        day = len(word.strip()) <= len("2026-03-01")
        said = f"{word.strip()}T00:00:00" if day else word.strip()
        raise ConfigurationError(
            f"{word!r} does not say its zone; write {said}Z for UTC, or the zone's offset, as {said}+01:00"
        )
    # Not as one float: that has no room for the microseconds of today.
    return int(moment.replace(microsecond=0).timestamp()) * SECOND_US + moment.microsecond


def time_text(time_us: int) -> str:
    """ISO form in UTC, with microseconds where there are some; `time_us` reads it again."""
    moment = dt.datetime.fromtimestamp(time_us // SECOND_US, dt.UTC).replace(microsecond=time_us % SECOND_US)
    return moment.isoformat().replace("+00:00", "Z")
