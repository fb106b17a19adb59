"""Prints MySQL's binary JSON in Python exactly as the server does. `json_diff` calls this module, and tests compare this package's kernels
with it.

The format is that of sql-common/json_binary.h: a type byte and a value. An object or array consists of its element count and its size (2
bytes each, 4 in the large form), an entry per key, an entry per value, the keys, and the values. A key's entry has the offset and the
2-byte length of the key. A value's entry has the type, and then the offset of the value, or the value itself if it fits. Strings and opaque
values begin with their length, which is stored in 7 bits per byte. Offsets count from the first byte of the container. The text follows
json_dom.cc: separators `", "` and `": "`, doubles with their shortest digits, and `.0` after a double that looks like an integer.
"""

from __future__ import annotations

import base64
import io
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sluice.cdc_engine.binlog.type_codes import TypeCode

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL, INT16, UINT16, INT32, UINT32 = range(9)
INT64, UINT64, DOUBLE, STRING = 9, 10, 11, 12
OPAQUE = 15
LITERALS = {0: "null", 1: "true", 2: "false"}
NUMBERS = {INT16: "<h", UINT16: "<H", INT32: "<i", UINT32: "<I", INT64: "<q", UINT64: "<Q"}
INLINE_SMALL = {LITERAL, INT16, UINT16}
INLINE_LARGE = INLINE_SMALL | {INT32, UINT32}
# The deepest level of a value. The server allows 100 levels of containers, and a scalar in the innermost container is on level 101.
DEPTH_MAX = 101
# The text of a valid document of n bytes has at most TEXT_FACTOR * n + TEXT_SPARE bytes. A document with a longer text is invalid: several
# of its entries point to one value.
TEXT_FACTOR, TEXT_SPARE = 8, 64
BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
BASE64_LINE = 76  # characters per line of the server's base64
FIXED_DIGITS_MAX = 15  # The server prints doubles from 1e-15 up to, but not including, 1e15 without an exponent.

ESCAPED = re.compile(r'["\\\x00-\x1f]')
ESCAPES = {chr(code): f"\\u{code:04x}" for code in range(32)}
ESCAPES.update({'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class JsonFormatError(Exception):
    """The bytes are not a valid JSON document or difference. The message says why."""


Built = Callable[[list[str] | None, list[Any]], Any]


def read(document: bytes, built: Built) -> Any:
    """Parses a document. Returns a scalar as its text, and an object or array as the result of `built(keys, values)`; for an array, `keys`
    is None. A document without bytes is the JSON null. Raises JsonFormatError if the document is not valid.
    """
    if not document:
        return LITERALS[0]
    try:
        return _JsonbReader(document, built).value(document[0], 1, 0)
    except (struct.error, IndexError):
        raise JsonFormatError("the document is truncated") from None
    except UnicodeDecodeError:
        raise JsonFormatError("a string in the document is not UTF-8") from None


def printed(keys: list[str] | None, values: list[str]) -> str:
    """Returns the text of an object or array. `keys`: None for an array. `values`: the texts of the values."""
    if keys is None:
        return f"[{', '.join(values)}]"
    members = [f"{quoted(key)}: {value}" for key, value in zip(keys, values, strict=True)]
    return f"{{{', '.join(members)}}}"


class _JsonbReader:
    def __init__(self, data: bytes, built: Built) -> None:
        self.data, self.built = data, built
        # Each value has an entry of at least three bytes. If a document seems to have more values than bytes, several entries have the same
        # offset, and the document is refused.
        self.values_left = len(data)

    def value(self, kind: int, at: int, depth: int) -> Any:
        self.values_left -= 1
        if self.values_left < 0 or depth > DEPTH_MAX:
            raise JsonFormatError("parts of the document overlap, or it has too many levels of objects and arrays")
        if kind == STRING:
            return quoted(self._sized(at).decode())
        if kind <= LARGE_ARRAY:
            return self._container(kind, at, depth)
        if kind in NUMBERS:
            return str(struct.unpack_from(NUMBERS[kind], self.data, at)[0])
        if kind == LITERAL:
            return _literal(self.data[at])
        if kind == DOUBLE:
            return printed_double(struct.unpack_from("<d", self.data, at)[0])
        if kind == OPAQUE:
            return _opaque(self.data[at], self._sized(at + 1))
        raise JsonFormatError(f"the document has a value of the unknown type {kind}")

    def _container(self, kind: int, at: int, depth: int) -> Any:
        large = kind in (LARGE_OBJECT, LARGE_ARRAY)
        width, layout = (4, "<I") if large else (2, "<H")
        count, size = struct.unpack_from("<II" if large else "<HH", self.data, at)
        keyed = kind in (SMALL_OBJECT, LARGE_OBJECT)
        keys_at = at + 2 * width
        values_at = keys_at + count * (width + 2) * keyed
        content = values_at + count * (1 + width) - at
        if content > size or at + size > len(self.data):
            raise JsonFormatError(
                "an object or array in the document is larger than its stated size or than the document"
            )
        keys: list[str] = []
        values: list[Any] = []
        for index in range(count):
            entry = values_at + index * (1 + width)
            child = self.data[entry]
            offset = entry + 1
            if child not in (INLINE_LARGE if large else INLINE_SMALL):
                offset = at + self._offset(layout, offset, content)
            values.append(self.value(child, offset, depth + 1))
            if keyed:
                keys.append(self._key(keys_at + index * (width + 2), at, layout, width, content))
        return self.built(keys if keyed else None, values)

    def _key(self, entry: int, at: int, layout: str, width: int, content: int) -> str:
        start = at + self._offset(layout, entry, content)
        (length,) = struct.unpack_from("<H", self.data, entry + width)
        return self._bytes(start, length).decode()

    def _offset(self, layout: str, at: int, content: int) -> int:
        offset: int = struct.unpack_from(layout, self.data, at)[0]
        if offset < content:
            raise JsonFormatError("an offset in the document points into the header of the same object or array")
        return offset

    def _sized(self, at: int) -> bytes:
        length, shift = 0, 0
        while True:
            byte = self.data[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return self._bytes(at, length)
            if shift > 28:
                raise JsonFormatError("a length in the document has more than five bytes")

    def _bytes(self, at: int, length: int) -> bytes:
        if at + length > len(self.data):
            raise JsonFormatError("the document is truncated")
        return self.data[at : at + length]


def quoted(text: str) -> str:
    """Returns the text as a JSON string with the server's escapes."""
    return '"' + (ESCAPED.sub(lambda match: ESCAPES[match[0]], text) if ESCAPED.search(text) else text) + '"'


def _literal(code: int) -> str:
    if code not in LITERALS:
        raise JsonFormatError(f"the document has the unknown literal {code}")
    return LITERALS[code]


def printed_double(number: float) -> str:
    """Prints a double like the server's my_gcvt (strings/dtoa.cc): with the fewest digits that identify the double, and with an exponent
    for very large or small numbers.
    """
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    if not isinstance(exponent, int):
        raise JsonFormatError("the document has an invalid number")
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent if number else 1  # The number equals 0.<text> * 10 ** point.
    minus = "-" * sign
    fixed = _fixed(text, point)
    if -FIXED_DIGITS_MAX + 1 <= point <= FIXED_DIGITS_MAX:
        return minus + (fixed if "." in fixed else fixed + ".0")
    mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
    return f"{minus}{mantissa}e{point - 1}"


def _fixed(text: str, point: int) -> str:
    if point <= 0:
        return "0." + "0" * -point + text
    return text.ljust(point, "0") if point >= len(text) else text[:point] + "." + text[point:]


def _opaque(code: int, payload: bytes) -> str:
    if code in OPAQUES:
        return OPAQUES[code](payload)
    encoded = base64.b64encode(payload).decode()
    lines = "\n".join(encoded[start : start + BASE64_LINE] for start in range(0, len(encoded), BASE64_LINE))
    return quoted(f"base64:type{code}:{lines}")


def _decimal(payload: bytes) -> str:
    """Prints a DECIMAL. `payload`: a byte of precision, a byte of scale, and the digits in MySQL's packed format."""
    precision, scale, data = payload[0], payload[1], payload[2:]
    if not precision or scale > precision:
        raise JsonFormatError("a decimal in the document has an invalid precision, scale or digit")
    negative = data[0] < 0x80
    plain = bytes([data[0] ^ 0x80, *data[1:]])
    rest = io.BytesIO(bytes(byte ^ 0xFF for byte in plain) if negative else plain)
    whole, fraction = divmod(precision - scale, 9), divmod(scale, 9)
    groups = [whole[1]] * bool(whole[1]) + [9] * (whole[0] + fraction[0]) + [fraction[1]] * bool(fraction[1])
    digits = "".join(_digits(rest.read(_bytes_of(count)), count) for count in groups)
    text = digits[: precision - scale].lstrip("0") or "0"
    return "-" * negative + text + ("." + digits[precision - scale :] if scale else "")


def _bytes_of(digits: int) -> int:
    return (digits + 1) // 2 if digits < 9 else 4


def _digits(group: bytes, count: int) -> str:
    if len(group) < _bytes_of(count):
        raise IndexError
    text = str(int.from_bytes(group)).zfill(count)
    if len(text) > count:
        raise JsonFormatError("a decimal in the document has an invalid precision, scale or digit")
    return text


def _packed(payload: bytes) -> tuple[str, int, int]:
    """Returns (sign, whole part, microseconds) of a packed date or time, whose lowest 24 bits are the microseconds."""
    (packed,) = struct.unpack("<q", payload)
    return "-" * (packed < 0), abs(packed) >> 24, abs(packed) & 0xFFFFFF


def _date(payload: bytes) -> str:
    _, whole, _ = _packed(payload)
    months = whole >> 22
    return f'"{months // 13:04}-{months % 13:02}-{whole >> 17 & 31:02}"'


def _clock(whole: int, micros: int, hour_bits: int) -> str:
    return f"{whole >> 12 & (1 << hour_bits) - 1:02}:{whole >> 6 & 63:02}:{whole & 63:02}.{micros:06}"


def _time(payload: bytes) -> str:
    sign, whole, micros = _packed(payload)
    return f'"{sign}{_clock(whole, micros, 10)}"'


def _datetime(payload: bytes) -> str:
    _, whole, micros = _packed(payload)
    return f'{_date(payload)[:-1]} {_clock(whole, micros, 5)}"'


OPAQUES: dict[int, Callable[[bytes], str]] = {
    TypeCode.NEWDECIMAL: _decimal,
    TypeCode.DATE: _date,
    TypeCode.TIME: _time,
    TypeCode.DATETIME: _datetime,
    TypeCode.TIMESTAMP: _datetime,
}
