"""A JSON text as MySQL prints the document that it makes of it: keys by length and bytes, numbers by value. Pure; used for DEFAULTs.

None where it is none, or where servers differ on it: a key that stands twice, half a surrogate pair, a number that a server does not
read to the last bit (it takes more than 15 digits).
"""

from __future__ import annotations

import json
import re
from typing import Any

from cdc_engine.binlog.documents.jsonb import DEPTH_MAX, JsonFormatError, printed, printed_double, quoted

_INTEGERS = range(-(1 << 63), 1 << 64)
_FRACTION = re.compile(r"-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,4}))?")
_DIGITS_EXACT, _EXPONENT_EXACT = 15, 22  # of which digits and power of ten are doubles themselves


class _NotPlainError(Exception):
    """Not a document that every server reads alike."""


def printed_text(text: str) -> str | None:
    """The document's text as MySQL prints it; None where the text is no document that is read alike everywhere."""
    try:
        return _printed(
            json.loads(
                text, object_pairs_hook=_Members, parse_constant=_refused, parse_int=_Whole, parse_float=_double
            ),
            1,
        )
    except (ValueError, RecursionError, JsonFormatError, _NotPlainError):
        return None


def printed_string(text: str) -> str:
    """A text as a string of JSON."""
    return quoted(text)


def printed_object(keys: list[str], values: list[str], *, in_order: bool) -> str:
    """An object of values that are printed already. `in_order`: as MySQL keeps its keys, the last of each name; else as they are said."""
    members = list(dict(zip(keys, values, strict=True)).items())
    if in_order:
        members.sort(key=lambda member: (len(member[0].encode()), member[0].encode()))
    return printed([key for key, _ in members], [value for _, value in members])


class _Members(list[tuple[str, Any]]):
    """The members of an object, as they are written."""


class _Whole(str):
    """A number without a fraction, as it is written."""

    __slots__ = ()


def _refused(_text: str) -> Any:
    raise _NotPlainError


def _double(text: str) -> float:
    """A number that fast readers and exact ones read alike."""
    found = _FRACTION.fullmatch(text)
    if found is None:
        raise _NotPlainError
    fraction = found[2] or ""
    digits, exponent = (found[1] + fraction).lstrip("0"), int(found[3] or 0) - len(fraction)
    if len(digits) > _DIGITS_EXACT or abs(exponent) > _EXPONENT_EXACT:
        raise _NotPlainError
    return float(text)


def _printed(value: Any, depth: int) -> str:
    if depth > DEPTH_MAX - 1:
        raise _NotPlainError
    if isinstance(value, _Whole):
        number = int(value)
        if number not in _INTEGERS:
            raise _NotPlainError
        return str(number)
    if isinstance(value, _Members):
        keys = [_string(key) for key, _ in value]
        if len(set(keys)) < len(keys):
            raise _NotPlainError
        return printed_object(keys, [_printed(each, depth + 1) for _, each in value], in_order=True)
    if isinstance(value, list):
        return printed(None, [_printed(each, depth + 1) for each in value])
    if isinstance(value, str):
        return quoted(_string(value))
    if isinstance(value, float):
        return printed_double(value)
    return {None: "null", True: "true", False: "false"}[value]


def _string(text: str) -> str:
    text.encode()  # half of a surrogate pair is a ValueError
    return text
