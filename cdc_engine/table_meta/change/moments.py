"""Dates and times that a DEFAULT names, as the server prints them in a column; and the session's clock. Pure; used by `literal_value`.

The servers' reading of a date is wide (`'20200102'`, `20-1-2`, `'2020.01.02 3:4'`); what is not surely one of those forms is not a moment
here, and its table stops. https://dev.mysql.com/doc/refman/8.0/en/date-and-time-literals.html
"""

from __future__ import annotations

import calendar
import dataclasses
import datetime as dt
import functools
import re
import zoneinfo

_PUNCTUATION = r"[!-/:-@\[-`{-~]"
_CLOCK = r"(?:(?:T|\s+)(\d{1,2})(?:[:.](\d{1,2})(?:[:.](\d{1,2})(?:\.(\d*))?)?)?)?"
_APART = re.compile(rf"(\d{{4}}|\d{{1,2}}){_PUNCTUATION}(\d{{1,2}}){_PUNCTUATION}(\d{{1,2}}){_CLOCK}")
_TOGETHER = re.compile(r"(\d{4}|\d\d)(\d\d)(\d\d)(?:T?(\d\d)(\d\d)(\d\d)(?:\.(\d*))?)?")
_HOURS = re.compile(r"(-?)(?:(\d+)\s+)?(\d+):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?")
_NUMBER_OF_TIME = re.compile(r"(-?)(\d{1,7})(?:\.(\d*))?")
_DATE_DIGITS = {6, 8, 12, 14}
_OFFSET = re.compile(r"([+-])(\d\d):([0-5]\d)")
_WITH_OFFSET = re.compile(r"(.*\d[T ]\d+:\d+:\d+(?:\.\d*)?)([+-]\d\d:[0-5]\d)")
_OFFSET_MIN, _OFFSET_MAX = -1400, 1400  # as numbers of hours and minutes
_UTC = {"UTC", "GMT", "ETC/UTC", "ETC/GMT"}
_TWO_DIGITS_FROM = 70  # a year of two digits is of the last century from here on
_SECONDS_MAX = 838 * 3600 + 59 * 60 + 59
SECOND_US = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  times here are in the zone that the reader of the code is told


class NoMomentError(Exception):
    """The message says why a text is no moment that is known for certain."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """A date that need not be in any calendar (month and day may be 0), and a time of it. `micros` below a second."""

    date: tuple[int, int, int]
    seconds: int = 0
    micros: int = 0

    @property
    def is_day(self) -> bool:
        return 0 not in self.date

    def moved(self, micros: int) -> Moment:
        """This much later. Raises NoMomentError for a date that is none, and out of the calendar."""
        try:
            there = dt.datetime(*self.date) + dt.timedelta(seconds=self.seconds, microseconds=self.micros + micros)  # noqa: DTZ001
        except (ValueError, OverflowError) as error:
            raise NoMomentError("it is a time that no calendar has") from error
        return Moment.of(there)

    def months_later(self, months: int) -> Moment:
        """On the same day of another month, or on its last one."""
        year, month = divmod(self.date[0] * 12 + self.date[1] - 1 + months, 12)
        if not 1 <= year <= 9999:
            raise NoMomentError("it is a time that no calendar has")
        day = min(self.date[2], calendar.monthrange(year, month + 1)[1])
        return dataclasses.replace(self, date=(year, month + 1, day))

    @staticmethod
    def of(there: dt.datetime) -> Moment:
        seconds = there.hour * 3600 + there.minute * 60 + there.second
        return Moment((there.year, there.month, there.day), seconds, there.microsecond)

    def with_digits(self, digits: int, *, rounds: bool | None) -> Moment:
        """With as many digits of a second. `rounds`: whether the others round it up, None where not known."""
        unit = 10 ** (6 - digits)
        rest = self.micros % unit
        if rest and rounds is None:
            raise NoMomentError("what the server makes of the rest of a second is not known")
        up = bool(rounds) and rest * 2 >= unit
        return self.moved(unit - rest) if up else dataclasses.replace(self, micros=self.micros - rest)

    def day(self) -> str:
        year, month, day = self.date
        return f"{year:04d}-{month:02d}-{day:02d}"

    def clock(self, digits: int) -> str:
        minutes, seconds = divmod(self.seconds, 60)
        text = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
        return f"{text}.{self.micros:06d}"[: len(text) + 1 + digits] if digits else text


def moment(text: str) -> Moment:
    """A date, with or without a time, from a literal's text. Raises NoMomentError."""
    text = text.strip(" ")
    if text == "0":
        return Moment((0, 0, 0))
    found = _APART.fullmatch(text) or (_TOGETHER.fullmatch(text) if _digits_before(text) in _DATE_DIGITS else None)
    if found is None:
        raise NoMomentError(f"{text!r} is no date in a form that is known")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    if len(found[1]) <= 2 and (year or month or day):
        year += 1900 if year >= _TWO_DIGITS_FROM else 2000
    days = calendar.monthrange(max(year, 4), month)[1] if 1 <= month <= 12 else 31
    if month > 12 or day > (29 if year == 0 and month == 2 else days) or hour > 23 or minute > 59 or second > 59:
        raise NoMomentError(f"{text!r} is a date that no calendar has")
    micros, rest = _micros(found[7])
    there = Moment((year, month, day), hour * 3600 + minute * 60 + second, micros)
    if rest:
        raise NoMomentError(f"{text!r} has more digits of a second than are followed")
    return there


def without_offset(text: str) -> tuple[str, str] | None:
    """A date and a time, and the offset from UTC that stands behind them, as a zone's name; None where none does."""
    found = _WITH_OFFSET.fullmatch(text.strip(" "))
    if found is None:
        return None
    if found[2] == "-00:00" or not _OFFSET_MIN <= int(found[2].replace(":", "")) <= _OFFSET_MAX:
        raise NoMomentError(f"{text!r} has an offset that no zone has")
    return found[1], found[2]


def _digits_before(text: str) -> int:
    """How many digits a date without punctuation has, before its fraction."""
    return len(text.partition(".")[0].replace("T", ""))


def _micros(fraction: str | None) -> tuple[int, str]:
    """Of the digits behind a point; and what is left over but for zeros."""
    digits = fraction or ""
    return int(digits[:6].ljust(6, "0")), digits[6:].strip("0")


def number_of_date(digits: str) -> str:
    """A number as the text of a date: 10203 is 010203."""
    if not digits.partition(".")[0].isdecimal():
        raise NoMomentError(f"{digits} is no date in a form that is known")
    whole, point, fraction = digits.partition(".")
    whole = whole.lstrip("0")
    width = next((size for size in sorted(_DATE_DIGITS) if len(whole) <= size), 0)
    if whole and (not width or len(whole) < 3 or len(whole) in {7, 9, 10, 13}):
        raise NoMomentError(f"{digits} is no date in a form that is known")
    return whole.rjust(width, "0") + point + fraction if whole else "0"


def time_text(text: str, digits: int, *, rounds: bool | None) -> str:
    """A TIME from a literal's text, as a column with so many digits of a second prints it. Raises NoMomentError."""
    text = text.strip(" ")
    if found := _HOURS.fullmatch(text):
        sign, days, hours, minutes, seconds, fraction = found.groups()
    elif found := _NUMBER_OF_TIME.fullmatch(text):
        sign, whole, fraction = found.groups()
        padded = whole.rjust(7, "0")
        days, hours, minutes, seconds = "0", padded[:3], padded[3:5], padded[5:]
    else:
        raise NoMomentError(f"{text!r} is no time in a form that is known")
    if int(minutes) > 59 or int(seconds or 0) > 59:
        raise NoMomentError(f"{text!r} is a time that no clock has")
    total = (int(days or 0) * 24 + int(hours)) * 3600 + int(minutes) * 60 + int(seconds or 0)
    micros, rest = _micros(fraction)
    if rest:
        raise NoMomentError(f"{text!r} has more digits of a second than are followed")
    unit = 10 ** (6 - digits)
    if micros % unit and rounds is None:
        raise NoMomentError("what the server makes of the rest of a second is not known")
    up = unit if rounds and micros % unit * 2 >= unit else 0
    total, micros = divmod(total * SECOND_US + micros - micros % unit + up, SECOND_US)
    if total > _SECONDS_MAX:
        raise NoMomentError(f"{text!r} is more than a TIME holds")
    minute, second = divmod(total, 60)
    shown = f"{minute // 60:02d}:{minute % 60:02d}:{second:02d}"
    shown = f"{shown}.{micros:06d}"[: len(shown) + 1 + digits] if digits else shown
    return f"-{shown}" if sign and (total or micros) else shown


# ── zones ──


def at_epoch(micros: int) -> Moment:
    """The moment in UTC, of microseconds since 1970."""
    return Moment.of(_EPOCH + dt.timedelta(microseconds=micros))


def in_zone(there: Moment, time_zone: str) -> Moment:
    """A moment in UTC as the clocks of a zone show it. Raises NoMomentError where the zone's rules are not known."""
    zone = _zone(time_zone)
    if isinstance(zone, int):
        return there.moved(zone)
    shown = (_datetime(there)).replace(tzinfo=dt.UTC).astimezone(zone)
    return Moment.of(shown.replace(tzinfo=None))


def in_utc(there: Moment, time_zone: str) -> Moment:
    """What the clocks of a zone show, as a moment in UTC. Raises NoMomentError also where they show it twice or never."""
    zone = _zone(time_zone)
    if isinstance(zone, int):
        return there.moved(-zone)
    first, second = (_datetime(there).replace(tzinfo=zone, fold=fold).astimezone(dt.UTC) for fold in (0, 1))
    if first != second:
        raise NoMomentError(f"the clocks of {time_zone} show {there.day()} {there.clock(0)} twice or never")
    return Moment.of(first.replace(tzinfo=None))


def _datetime(there: Moment) -> dt.datetime:
    try:
        return dt.datetime(*there.date) + dt.timedelta(seconds=there.seconds, microseconds=there.micros)  # noqa: DTZ001
    except (ValueError, OverflowError) as error:
        raise NoMomentError("it is a time that no calendar has") from error


def _zone(name: str) -> int | zoneinfo.ZoneInfo:
    """Microseconds from UTC, or a zone with rules."""
    if name.upper() in _UTC:
        return 0
    if found := _OFFSET.fullmatch(name):
        micros = (int(found[2]) * 60 + int(found[3])) * 60 * SECOND_US
        return -micros if found[1] == "-" else micros
    zone = _named_zone(name.lower()) if name and not name.startswith("SYSTEM") else None
    if zone is None:
        raise NoMomentError(f"it is a time in a zone whose offset is not known ({name or 'not told'})")
    return zone


@functools.lru_cache(maxsize=64)
def _named_zone(lower: str) -> zoneinfo.ZoneInfo | None:
    """MySQL's names of zones have no case."""
    name = next((name for name in zoneinfo.available_timezones() if name.lower() == lower), None)
    return zoneinfo.ZoneInfo(name) if name else None
