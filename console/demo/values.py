"""Draws random values for every column type of the shop. The same seed gives the same values."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from random import Random
from typing import TypeVar

T = TypeVar("T")

WORDS = (
    "amber",
    "bröt",
    "çay",
    "δέλτα",
    "ёж",
    "fjord",
    "güell",
    "水",
    "🚲",
    "it's",
    'a "b"',
    "back\\slash",
    "tab\there",
)
EPOCH = dt.datetime(2024, 5, 1)  # noqa: DTZ001  DATETIME has no zone
SECONDS_OF_YEARS = 2 * 365 * 86400


def text(draw: Random, words: int) -> str:
    """Returns `words` random words with blanks between them. Some words have quotes or characters that must be escaped, and letters have
    one to four bytes.
    """
    return " ".join(draw.choice(WORDS) for _ in range(words))


def money(draw: Random, units_max: int) -> Decimal:
    return Decimal(draw.randint(-units_max * 10, units_max * 100)) / 100


def moment(draw: Random) -> dt.datetime:
    """Returns a date and time with microseconds, which MySQL rounds to the column's precision."""
    return EPOCH + dt.timedelta(seconds=draw.randrange(SECONDS_OF_YEARS), microseconds=draw.randrange(1_000_000))


def day(draw: Random) -> dt.date:
    return dt.date(1940, 1, 1) + dt.timedelta(days=draw.randrange(30_000))


def duration(draw: Random) -> str:
    """Returns a value of the type TIME, which may be negative or longer than a day."""
    sign = "-" if draw.random() < 0.2 else ""
    return f"{sign}{draw.randrange(839)}:{draw.randrange(60):02}:{draw.randrange(60):02}.{draw.randrange(1000):03}"


def document(draw: Random) -> str:
    """Returns a JSON document with nesting, numbers of all kinds, null, and text that needs escapes."""
    return json.dumps(
        {
            "colour": draw.choice(WORDS),
            "sizes": [draw.randrange(-5, 60) for _ in range(draw.randrange(4))],
            "nested": {"on": draw.random() < 0.5, "ratio": draw.randrange(1000) / 8, "none": None},
            "big": draw.randrange(1 << 53),
        },
        ensure_ascii=False,
    )


def maybe(draw: Random, value: T, null_share: float = 0.2) -> T | None:
    """Returns the value, or None with the probability `null_share`."""
    return None if draw.random() < null_share else value
