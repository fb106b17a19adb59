"""Parses dates and times in column defaults, and converts them between UTC and the time zone of a session. Pure functions.

Servers accept many forms of a date (`'20200102'`, `20-1-2`, `'2020.01.02 3:4'`). This module accepts only the forms that people and `SHOW
CREATE TABLE` write. Any other form raises NoMomentError, and the table needs a re-snapshot.
https://dev.mysql.com/doc/refman/8.0/en/date-and-time-literals.html
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import re
import zoneinfo

_DATE_AND_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):([0-5]\d):([0-5]\d)(?:\.(\d{0,6})0*)?)?")
_TIME = re.compile(r"(-?)(\d{1,3}):([0-5]\d):([0-5]\d)(?:\.(\d{0,6})0*)?")
_OFFSET = re.compile(r"([+-])(\d\d):([0-5]\d)")
_UTC = {"UTC", "GMT", "ETC/UTC", "ETC/GMT"}
_SECONDS_MAX = 838 * 3600 + 59 * 60 + 59
SECOND_US = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  a DateTimeValue has no zone; its caller knows the zone


class NoMomentError(Exception):
    """Raised if a text is not a date or time, or if the value that a server stores for it is not certain. The message tells why."""


@dataclasses.dataclass(frozen=True)
class DateTimeValue:
    """A date and a time of day without a time zone. Year, month and day may be 0. `seconds` is the time of day, and `micros` the
    microseconds within the second.
    """

    date: tuple[int, int, int]
    seconds: int = 0
    micros: int = 0

    @property
    def is_zero(self) -> bool:
        return self.date == (0, 0, 0)

    def moved(self, micros: int) -> DateTimeValue:
        """Returns the value `micros` microseconds later. Raises NoMomentError for a date that does not exist, and for a result outside the
        years 1 to 9999.
        """
        return DateTimeValue.of(_datetime(self, micros))

    @staticmethod
    def of(there: dt.datetime) -> DateTimeValue:
        seconds = there.hour * 3600 + there.minute * 60 + there.second
        return DateTimeValue((there.year, there.month, there.day), seconds, there.microsecond)

    def truncated_to(self, digits: int) -> DateTimeValue:
        """Truncates the fraction of the second to `digits` digits."""
        return dataclasses.replace(self, micros=self.micros - self.micros % 10 ** (6 - digits))

    def with_digits(self, digits: int) -> DateTimeValue:
        """Returns the value if its fraction of a second has at most `digits` digits. Otherwise raises NoMomentError, because a server
        setting decides whether the server rounds or truncates.
        """
        if self.truncated_to(digits) != self:
            raise NoMomentError("the value has more digits of a fraction of a second than the column")
        return self

    def day(self) -> str:
        year, month, day = self.date
        return f"{year:04d}-{month:02d}-{day:02d}"

    def clock(self, digits: int) -> str:
        return _clock_text(self.seconds, self.micros, digits)


def moment(text: str) -> DateTimeValue:
    """Parses `YYYY-MM-DD`, `YYYY-MM-DD hh:mm:ss[.ffffff]`, or "0" for the zero date. Raises NoMomentError for any other text."""
    text = text.strip(" ")
    if text == "0":
        return DateTimeValue((0, 0, 0))
    found = _DATE_AND_TIME.fullmatch(text)
    if found is None:
        raise NoMomentError(f"{text!r} is not a date of the form YYYY-MM-DD hh:mm:ss")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    there = DateTimeValue((year, month, day), hour * 3600 + minute * 60 + second, _micros(found[7]))
    if hour > 23:
        raise NoMomentError(f"{text!r} has an hour above 23")
    if not there.is_zero:
        _datetime(there)
    return there


def time_text(text: str, digits: int) -> str:
    """Parses `[-]hh:mm:ss[.ffffff]` or "0", and returns the value as a TIME column with `digits` fraction digits prints it. Raises
    NoMomentError for any other text.
    """
    text = text.strip(" ")
    found = _TIME.fullmatch("00:00:00" if text == "0" else text)
    if found is None:
        raise NoMomentError(f"{text!r} is not a time of the form hh:mm:ss")
    sign, hours, minutes, seconds, fraction = found.groups()
    total, micros = (int(hours) * 60 + int(minutes)) * 60 + int(seconds), _micros(fraction)
    if total > _SECONDS_MAX:
        raise NoMomentError(f"{text!r} is more than a TIME can store")
    if micros % 10 ** (6 - digits):
        raise NoMomentError("the value has more digits of a fraction of a second than the column")
    return ("-" if sign and (total or micros) else "") + _clock_text(total, micros, digits)


def _micros(fraction: str | None) -> int:
    return int((fraction or "").ljust(6, "0"))


def _clock_text(seconds: int, micros: int, digits: int) -> str:
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"
    return f"{text}.{micros:06d}"[: len(text) + 1 + digits] if digits else text


# ── zones ──


def at_epoch(micros: int) -> DateTimeValue:
    """Converts microseconds since 1970 to a date and time in UTC."""
    return DateTimeValue.of(_EPOCH + dt.timedelta(microseconds=micros))


def in_zone(there: DateTimeValue, time_zone: str) -> DateTimeValue:
    """Converts a date and time from UTC to a time zone. Raises NoMomentError if the zone's rules are unknown."""
    zone = _zone(time_zone)
    if isinstance(zone, int):
        return there.moved(zone)
    shown = _datetime(there).replace(tzinfo=dt.UTC).astimezone(zone)
    return DateTimeValue.of(shown.replace(tzinfo=None))


def in_utc(there: DateTimeValue, time_zone: str) -> DateTimeValue:
    """Converts a date and time from a time zone to UTC. Raises NoMomentError if the zone's rules are unknown, or if the zone's clocks show
    this time twice or never, because daylight saving time begins or ends.
    """
    zone = _zone(time_zone)
    if isinstance(zone, int):
        return there.moved(-zone)
    first, second = (_datetime(there).replace(tzinfo=zone, fold=fold).astimezone(dt.UTC) for fold in (0, 1))
    if first != second:
        raise NoMomentError(f"in the time zone {time_zone}, {there.day()} {there.clock(0)} occurs twice or never")
    return DateTimeValue.of(first.replace(tzinfo=None))


def _datetime(there: DateTimeValue, later_us: int = 0) -> dt.datetime:
    try:
        return dt.datetime(*there.date) + dt.timedelta(seconds=there.seconds, microseconds=there.micros + later_us)  # noqa: DTZ001
    except (ValueError, OverflowError) as error:
        raise NoMomentError("the value is a date that does not exist") from error


def _zone(name: str) -> int | zoneinfo.ZoneInfo:
    """Returns a zone's offset from UTC in microseconds if the offset is fixed, otherwise the zone's rules. Raises NoMomentError if the
    rules are unknown, if `name` is empty, and for SYSTEM.
    """
    if name.upper() in _UTC:
        return 0
    if found := _OFFSET.fullmatch(name):
        micros = (int(found[2]) * 60 + int(found[3])) * 60 * SECOND_US
        return -micros if found[1] == "-" else micros
    zone = _named_zone(name.lower()) if name and not name.startswith("SYSTEM") else None
    if zone is None:
        raise NoMomentError(
            f"the value is a time in a zone whose offset is unknown ({name or 'the statement names no zone'})"
        )
    return zone


@functools.lru_cache(maxsize=64)
def _named_zone(lower: str) -> zoneinfo.ZoneInfo | None:
    """Returns the rules of a time zone by its name, or None if it is unknown. MySQL ignores case in zone names."""
    name = next((name for name in zoneinfo.available_timezones() if name.lower() == lower), None)
    return zoneinfo.ZoneInfo(name) if name else None
