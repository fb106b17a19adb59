"""Parses times and cron schedules that people write, and formats times. Pure functions.

A cron schedule has five fields. `cron` accepts only schedules that Dagster accepts, because Dagster shows no destination at all if it
refuses one schedule. A test compares `cron` with Dagster. `cron` refuses Dagster's extensions (L, #, @daily).
"""

from __future__ import annotations

import datetime as dt
import re

from sluice.cdc_engine.errors import ConfigurationError

SECOND_US = 1_000_000
LAST_US = 253_402_300_799 * SECOND_US  # The end of the year 9999, after which Python and ISO texts have no time.
_AGO = re.compile(r"-(?P<count>\d{1,9})(?P<unit>[smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

DAYS = dict(zip(("sun", "mon", "tue", "wed", "thu", "fri", "sat"), range(7), strict=True))
MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTHS = dict(zip(MONTH_NAMES, range(1, 13), strict=True))
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, MONTHS),
    ("day of the week", 0, 6, DAYS),
)
DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(
    r"(?:\*|(?P<low>[0-9]{1,2}|[a-z]{3})(?:-(?P<high>[0-9]{1,2}|[a-z]{3}))?)(?:/(?P<step>[0-9]{1,2}))?", re.ASCII
)


def time_us(word: str, now_us: int) -> int:
    """Returns µs since 1970 for an ISO time with a time zone, or for a time before `now_us` such as -10m (s, m, h, d). Returns 0 for a time
    before 1970, because no binlog has changes of such a time.

    Raises ConfigurationError for any other text, and for a time without a time zone, because it is ambiguous.
    """
    if ago := _AGO.fullmatch(word.strip()):
        return max(0, now_us - int(ago["count"]) * _SECONDS[ago["unit"]] * SECOND_US)
    try:
        moment = dt.datetime.fromisoformat(word.strip())
    except ValueError:
        raise ConfigurationError(
            f"{word!r} is not a time; write a time in ISO form with its zone, such as 2026-03-01T12:00:00Z, "
            "or how long ago, such as -10m"
        ) from None
    if moment.tzinfo is None:
        day = len(word.strip()) <= len("2026-03-01")
        said = f"{word.strip()}T00:00:00" if day else word.strip()
        raise ConfigurationError(
            f"{word!r} has no zone; write {said}Z for UTC, or add the offset of the zone, such as {said}+01:00"
        )
    # A float of the whole time is too imprecise for microseconds, so they are added as an integer.
    return min(max(0, int(moment.replace(microsecond=0).timestamp()) * SECOND_US + moment.microsecond), LAST_US)


def time_text(time_us: int) -> str:
    """Returns a time as ISO text in UTC, with microseconds if there are any. The function `time_us` can parse the text."""
    moment = dt.datetime.fromtimestamp(time_us // SECOND_US, dt.UTC).replace(microsecond=time_us % SECOND_US)
    return moment.isoformat().replace("+00:00", "Z")


def cron(text: str) -> str:
    """Checks a cron schedule, and returns it unchanged. An empty text is valid. Raises ValueError, whose message says what is wrong, if the
    text is not a schedule or describes times that never occur.
    """
    if not text:
        return text
    fields = text.split(" ")
    if len(fields) != len(FIELDS):
        raise ValueError(
            f"{text!r} is not a cron schedule: write five fields with one space between them: minute hour day month weekday"
        )
    found = [_numbers(text, field, *kind) for field, kind in zip(fields, FIELDS, strict=True)]
    days, months = found[2], found[3]
    if min(days) > max(DAYS_OF_MONTH[month - 1] for month in months):
        raise ValueError(f"{text!r} is not a cron schedule: none of its months has a day {min(days)}")
    return text


def _numbers(text: str, field: str, name: str, least: int, most: int, words: dict[str, int]) -> set[int]:  # noqa: PLR0917
    """Returns the numbers that one field of a cron schedule means. Raises ValueError, whose message says what is wrong, if the field is
    invalid.
    """
    found: set[int] = set()
    for part in field.lower().split(","):
        read = _PART.fullmatch(part)
        if read is None:
            raise ValueError(
                f"{text!r} is not a cron schedule: {part!r} is not a {name}; use numbers, *, -, / and commas"
            )
        low = _number(read["low"], words) if read["low"] else least
        high = _number(read["high"], words) if read["high"] else most if read["low"] is None else low
        step = int(read["step"] or 1)
        if read["step"] and read["low"] and not read["high"]:
            raise ValueError(
                f"{text!r} is not a cron schedule: write {part!r} of the {name} as a range, such as */{step}"
            )
        if not (least <= low <= high <= most and 1 <= step <= most):
            raise ValueError(
                f"{text!r} is not a cron schedule: {part!r} is out of range; the {name} goes from {least} to {most}, "
                f"and a step from 1 to {most}"
            )
        found |= set(range(low, high + 1, step))
    return found


def _number(word: str, words: dict[str, int]) -> int:
    """Returns the number for a word in a cron field, such as `7` or `sun`, or -1 for any other word."""
    return int(word) if word.isdigit() else words.get(word, -1)
