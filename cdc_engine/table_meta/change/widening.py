"""Decides whether a column's new type can store every value of the old type unchanged. Pure functions.

Types are parsed first (`declared_type`), so different spellings of one type are equal. RULES has one rule per pair of kinds of types. If
RULES has no rule for a change, the result is CONVERT. It must not be WIDEN, because the setting `widen` must never change a value.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.batch_manifest.values import AlterationKind
from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.table_meta.ddl.declared_type import DeclaredType, declared_type
from sluice.cdc_engine.table_meta.schema import DeclaredColumn

_INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXT_BYTES = {"tinytext": (1 << 8) - 1, "text": (1 << 16) - 1, "mediumtext": (1 << 24) - 1, "longtext": (1 << 32) - 1}
_BLOB_BYTES = {"tinyblob": (1 << 8) - 1, "blob": (1 << 16) - 1, "mediumblob": (1 << 24) - 1, "longblob": (1 << 32) - 1}
_KINDS = {
    **dict.fromkeys(_INTEGER_BYTES, "integer"),
    **dict.fromkeys(("float", "double"), "floating"),
    **dict.fromkeys((*_TEXT_BYTES, "varchar"), "text"),
    **dict.fromkeys((*_BLOB_BYTES, "varbinary"), "bytes"),
    **dict.fromkeys(("time", "datetime", "timestamp"), "moment"),
    **dict.fromkeys(("enum", "set"), "labels"),
}
# _UNIVERSAL: charsets that have every character. _BEYOND_BMP: charsets that have characters beyond the first 65,536 of Unicode.
_UNIVERSAL = {"utf8mb4", "utf16", "utf16le", "utf32"}
_BEYOND_BMP = {*_UNIVERSAL, "gb18030"}
_BMP = {"utf8mb3", "ucs2"}
_FLOAT_DIGITS = {"float": 24, "double": 53}  # Integers with at most this number of bits are exact in the type.
Rule = Callable[[DeclaredType, DeclaredType, int, int], bool]


def type_change(old: DeclaredColumn, new: DeclaredColumn) -> AlterationKind | None:
    """Returns WIDEN if the new type can store every value of the old type unchanged, otherwise CONVERT. Returns None if both types have the
    same values, printed in the same way, for example if only the display width, the order of columns, NULL or the visibility changed.
    """
    if (old.type, old.charset) == (new.type, new.charset):
        return None
    before, after = declared_type(old.type), declared_type(new.type)
    if _shown_alike(before, after) and old.charset == new.charset:
        return None
    rule = RULES.get((_kind(before), _kind(after)))
    holds = rule is not None and rule(before, after, _bytes_max(old.charset), _bytes_max(new.charset))
    return AlterationKind.WIDEN if holds and charset_holds(old.charset, new.charset) else AlterationKind.CONVERT


def charset_holds(old: str, new: str) -> bool:
    """Returns True if the charset `new` certainly has every character of the charset `old`, so that texts stay the same. Returns False for
    a change from or to `binary`, from or to a type without charset, and for pairs of charsets that Sluice does not compare.
    """
    if old == new:
        return True
    if "binary" in (old, new) or not old or not new:
        return False
    return old == "ascii" or new in _UNIVERSAL or (new in _BMP and old not in _BEYOND_BMP)


def _shown_alike(before: DeclaredType, after: DeclaredType) -> bool:
    """Returns whether both types have the same values, printed in the same way: tinyint(1) and tinyint, or a type with and without
    COMPRESSED.
    """
    same_integer = before.base == after.base == "tinyint" and before.unsigned == after.unsigned
    return same_integer or before.text.removesuffix(" compressed") == after.text.removesuffix(" compressed")


def _kind(declared: DeclaredType) -> str:
    return _KINDS.get(declared.base, declared.base)


def _bytes_max(charset: str) -> int:
    found = charset_of_name(charset) if charset else None
    return found.bytes_max if found else 1


def _integer(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    small, large = _INTEGER_BYTES[before.base], _INTEGER_BYTES[after.base]
    if before.unsigned == after.unsigned:
        return small <= large
    return before.unsigned and small < large


def _decimal_digits(declared: DeclaredType) -> int:
    """Returns the number of decimal digits of the largest integer of the type."""
    bits = 8 * _INTEGER_BYTES[declared.base] - (not declared.unsigned)
    return len(str((1 << bits) - 1))


def _integer_to_decimal(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    return (before.unsigned or not after.unsigned) and _decimal_digits(before) <= after.length - after.scale


def _integer_to_floating(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    exact = 8 * _INTEGER_BYTES[before.base] <= _FLOAT_DIGITS[after.base]
    return exact and after.scale < 0 and (before.unsigned or not after.unsigned)


def _decimal(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    integer_digits = after.length - after.scale >= before.length - before.scale
    return integer_digits and after.scale >= before.scale and (before.unsigned or not after.unsigned)


def _floating(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    unrounded = after.scale < 0 or (before.length, before.scale) == (after.length, after.scale)
    return unrounded and (before.base, after.base) != ("double", "float") and (before.unsigned or not after.unsigned)


def _characters(declared: DeclaredType, bytes_max: int) -> int:
    """Returns how many characters fit into a value of the type, whatever the characters are. `bytes_max` is the length of the charset's
    longest character in bytes.
    """
    return _TEXT_BYTES[declared.base] // bytes_max if declared.base in _TEXT_BYTES else declared.length


def _text(before: DeclaredType, after: DeclaredType, old: int, new: int) -> bool:
    return _characters(before, old) <= _characters(after, new)


def _bytes(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    return _BLOB_BYTES.get(before.base, before.length) <= _BLOB_BYTES.get(after.base, after.length)


def _length(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    return before.length <= after.length


def _bits(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    """Returns whether a BIT column can be widened. BIT(1) cannot, because the lake stores it as a boolean and a longer BIT as a number."""
    return 1 < before.length <= after.length


def _moment(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    return before.base == after.base and max(before.length, 0) <= max(after.length, 0)


def _labels(before: DeclaredType, after: DeclaredType, _old: int, _new: int) -> bool:
    return before.base == after.base and after.labels[: len(before.labels)] == before.labels


def _always(_before: DeclaredType, _after: DeclaredType, _old: int, _new: int) -> bool:
    return True


# There is no rule from binary(n) to a longer one, because the server pads the values with zero bytes and so changes them.
RULES: dict[tuple[str, str], Rule] = {
    ("integer", "integer"): _integer,
    ("integer", "decimal"): _integer_to_decimal,
    ("integer", "floating"): _integer_to_floating,
    ("decimal", "decimal"): _decimal,
    ("floating", "floating"): _floating,
    ("text", "text"): _text,
    ("char", "text"): _text,
    ("char", "char"): _length,
    ("bytes", "bytes"): _bytes,
    ("binary", "bytes"): _bytes,
    ("binary", "binary"): lambda before, after, _old, _new: before.length == after.length,
    ("bit", "bit"): _bits,
    ("moment", "moment"): _moment,
    ("labels", "labels"): _labels,
    **{(kind, "geometry"): _always for kind in ("point", "linestring", "polygon", "multipoint", "multilinestring")},
    **{(kind, "geometry"): _always for kind in ("multipolygon", "geomcollection")},
}
