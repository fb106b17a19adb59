"""The value of an expression that is the same for every row: `(1 + 1)`, `(concat('a', 'b'))`, `(now() + interval 1 day)`.

A DEFAULT of that kind, or what a generated column is made of, gives rows already there one value. It is worked out here, and not asked of
the server: that one may be of another version by now, and would be made to run what the binlog says. What has no rule here is named, and
the table stops: `(uuid())` and what reads a column cannot be told, `1 / 3` has as many digits as a setting says that is in no binlog.
Pure; used by `initial_value`. Held against four servers by `tests/table_meta/test_ddl_additions.py`.
"""

from __future__ import annotations

import dataclasses
import decimal
import hashlib
import re
from collections.abc import Callable

from cdc_engine.contracts import StatementSession
from cdc_engine.table_meta.change import document_value
from cdc_engine.table_meta.ddl.declared_type import MYSQL
from cdc_engine.table_meta.ddl.default_value import NULL, Default, Notation, read_operand
from cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind, UnreadableError

PIPES_AS_CONCAT = 2  # a bit of sql_mode, the same for all servers
_UNITS_US = {
    "WEEK": 7 * 86_400_000_000,
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
}
_UNITS_MONTHS = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}
_WHOLE_DAYS = {"WEEK", "DAY", *_UNITS_MONTHS}
_UNICODE = {"utf8mb3", "utf8mb4"}
_INTEGERS = range(-(1 << 63), 1 << 64)
_EXACT = decimal.Context(prec=81, traps=[decimal.Inexact, decimal.Overflow, decimal.InvalidOperation])
_DIGITS_MAX, _SCALE_MAX = 65, 30
_REPEATED_MAX = 1 << 20  # characters


class NotConstantError(Exception):
    """The message says what of the expression has no value that is known."""


def constant_value(inside: tuple[Token, ...], session: StatementSession) -> Default:
    """What the tokens of an expression make, as a literal or a clock. Raises NotConstantError."""
    reader = _Reader(TokenCursor(list(inside)), session)
    try:
        value = reader.sum()
        if not reader.cursor.at_end:
            raise NotConstantError(f"there is no rule for {reader.cursor.peek().text[:40]!r} in it")
    except UnreadableError as error:
        raise NotConstantError(str(error)) from error
    except RecursionError as error:
        raise NotConstantError("it is nested too deeply") from error
    return value


class _Reader:
    """Goes down an expression: sums of products of operands, the precedence that all sql_modes share."""

    def __init__(self, cursor: TokenCursor, session: StatementSession) -> None:
        self.cursor, self.session = cursor, session

    def sum(self) -> Default:
        value = self.product()
        while (sign := self._sign("+", "-")) is not None:
            moves = self.cursor.accept("INTERVAL")
            value = _moved(value, *self._interval(sign)) if moves else _calculated(value, sign, self.product())
        return value

    def product(self) -> Default:
        value = self.operand()
        while True:
            word = self.cursor.peek().word
            if sign := self._sign("*", "/", "%"):
                value = _calculated(value, sign, self.operand())
            elif word in {"DIV", "MOD"}:
                self.cursor.next()
                value = _calculated(value, word, self.operand())
            else:
                return value

    def operand(self) -> Default:
        cursor = self.cursor
        if cursor.accept_sign("("):
            value = self.sum()
            cursor.expect_sign(")")
            return value
        if self._sign("-"):
            return _calculated(Default("0", Notation.NUMBER), "-", self.operand())
        is_boolean = cursor.peek().word in {"TRUE", "FALSE"}
        found = read_operand(cursor, in_expression=True)
        if found is not None:
            return self._readable(found) if not is_boolean else dataclasses.replace(found, said=BOOLEAN)
        function = cursor.next()
        if function.kind is not TokenKind.WORD or not cursor.accept_sign("("):
            raise NotConstantError(f"there is no rule for {function.text[:40]!r} in it")
        return self._called(function.word)

    def _readable(self, literal: Default) -> Default:
        """A literal whose characters do not depend on what charset the server keeps them in."""
        plain = (literal.value or "").isascii() or (
            not literal.said and {self.session.client, self.session.connection} <= _UNICODE
        )
        if literal.notation is Notation.MOMENT or not plain or (literal.said and literal.notation is Notation.BYTES):
            raise NotConstantError("it has a literal that is converted")
        return literal

    def _sign(self, *signs: str) -> str | None:
        token = self.cursor.peek()
        return self.cursor.next().text if token.kind is TokenKind.SIGN and token.text in signs else None

    def _interval(self, sign: str) -> tuple[int, str]:
        """After INTERVAL: how many, and of what."""
        count = self.operand()
        text = count.value or ""
        if count.notation not in {Notation.NUMBER, Notation.STRING} or not re.fullmatch(r"-?\d{1,9}", text):
            raise NotConstantError("its interval is no whole number")
        return int(text) * (-1 if sign == "-" else 1), self.cursor.next().word

    def _called(self, name: str) -> Default:
        if name in _MOVES:
            return self._moving(name)
        if name == "CAST":
            return self._cast()
        rule = _FUNCTIONS.get(name)
        if rule is None:
            raise NotConstantError(f"what {name}() gives is not known")
        arguments: list[Default] = []
        while not self.cursor.accept_sign(")"):
            if arguments:
                self.cursor.expect_sign(",")
            arguments.append(self.sum())
        return rule(arguments, self.session)

    def _moving(self, name: str) -> Default:
        """DATE_ADD(now(), INTERVAL 1 DAY), ADDDATE(curdate(), 5)."""
        value = self.sum()
        self.cursor.expect_sign(",")
        if self.cursor.accept("INTERVAL"):
            count, unit = self._interval(_MOVES[name])
        elif name in {"ADDDATE", "SUBDATE"}:
            count, unit = _whole(self.sum()) * (-1 if _MOVES[name] == "-" else 1), "DAY"
        else:
            raise self.cursor.unreadable()
        self.cursor.expect_sign(")")
        return _moved(value, count, unit)

    def _cast(self) -> Default:
        value = self.sum()
        self.cursor.expect("AS")
        self.cursor.expect("JSON")
        self.cursor.expect_sign(")")
        if value.notation is Notation.STRING:
            return _document(document_value.printed_text(value.value or ""))
        return value if value.notation is Notation.NULL else _document(_member(value, self.session))


# ── arithmetic ──


def _number(value: Default) -> int | decimal.Decimal | float:
    text = value.value or ""
    if value.notation is not Notation.NUMBER:
        raise NotConstantError("it counts with what is no number")
    if "e" in text.lower():
        return float(text)
    return decimal.Decimal(text) if "." in text else int(text)


def _whole(value: Default) -> int:
    number = _number(value)
    if not isinstance(number, int):
        raise NotConstantError("a number in it is not whole")
    return number


def _calculated(left: Default, sign: str, right: Default) -> Default:
    if NULL in (left, right):
        return NULL
    one, other = _number(left), _number(right)
    try:
        if isinstance(one, float) or isinstance(other, float):
            return _of_double(_DOUBLES[sign](float(one), float(other)))
        if isinstance(one, int) and isinstance(other, int):
            return _of_integer(_INTEGRAL[sign](one, other))
        return _of_decimal(_EXACT_SIGNS[sign](decimal.Decimal(one), decimal.Decimal(other)))
    except KeyError:
        raise NotConstantError(f"how many digits {sign} gives there is not known") from None
    except (ArithmeticError, ValueError) as error:
        raise NotConstantError("its value is out of range") from error


def _of_integer(value: int) -> Default:
    if value not in _INTEGERS:
        raise NotConstantError("its value is out of range")
    return Default(str(value), Notation.NUMBER)


def _of_decimal(value: decimal.Decimal) -> Default:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or len(digits) > _DIGITS_MAX or -exponent > _SCALE_MAX:
        raise NotConstantError("it has more digits than a DECIMAL")
    return Default(format(value, "f"), Notation.NUMBER, said=COMPUTED)


def _of_double(value: float) -> Default:
    text = repr(value)
    if not re.fullmatch(r"[-+.0-9e]+", text):
        raise NotConstantError("its value is out of range")
    return Default(text if "e" in text else f"{text}e0", Notation.NUMBER)


def _integer_quotient(one: int, other: int) -> int:
    """Cut off towards zero."""
    quotient = abs(one) // abs(other)
    return -quotient if (one < 0) != (other < 0) else quotient


# `said` of a decimal that was calculated: MariaDB does not show its zeros at the end
COMPUTED = "computed"
_INTEGRAL: dict[str, Callable[[int, int], int]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "DIV": _integer_quotient,
    "%": lambda one, other: one - other * _integer_quotient(one, other),
    "MOD": lambda one, other: one - other * _integer_quotient(one, other),
}
_EXACT_SIGNS: dict[str, Callable[[decimal.Decimal, decimal.Decimal], decimal.Decimal]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
}
_DOUBLES: dict[str, Callable[[float, float], float]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": lambda one, other: one / other,
}


# ── moments ──

_MOVES = {"DATE_ADD": "+", "ADDDATE": "+", "DATE_SUB": "-", "SUBDATE": "-"}


def _moved(value: Default, count: int, unit: str) -> Default:
    """A clock that is ahead or behind."""
    if value.notation is not Notation.CLOCK or value.value not in {"now", "date", "utc now", "utc date"}:
        raise NotConstantError("it moves what is not the time of now")
    if value.value.endswith("date") and unit not in _WHOLE_DAYS:
        raise NotConstantError("it makes a time of a date")
    if unit in _UNITS_MONTHS:
        return dataclasses.replace(value, moves=(*value.moves, (count * _UNITS_MONTHS[unit], 0)))
    if unit not in _UNITS_US:
        raise NotConstantError(f"there is no rule for an interval of {unit or 'that'}")
    return dataclasses.replace(value, moves=(*value.moves, (0, count * _UNITS_US[unit])))


# ── functions ──


def _text(value: Default, session: StatementSession) -> str:
    """A value as a string, of those that every server prints alike."""
    text = value.value or ""
    if value.notation in {Notation.STRING, Notation.DOCUMENT}:
        return text
    if value.notation is Notation.NUMBER and value.said != BOOLEAN and re.fullmatch(r"-?(?:0|[1-9]\d*)", text):
        return text
    if value.notation is Notation.NUMBER and "e" not in text.lower() and (session.flavour == MYSQL or not value.said):
        return text if re.fullmatch(r"-?(?:0|[1-9]\d*)\.\d+", text) else _unlike(value)
    return _unlike(value)


def _unlike(value: Default) -> str:
    raise NotConstantError(f"it makes a text of {value.notation.value}")


Rule = Callable[[list[Default], StatementSession], Default]


def _of_texts(least: int, most: int, make: Callable[..., str]) -> Rule:
    """A function of texts; NULL where one of them is."""

    def rule(arguments: list[Default], session: StatementSession) -> Default:
        if not least <= len(arguments) <= most:
            raise NotConstantError("a function in it has other arguments")
        if NULL in arguments:
            return NULL
        return Default(make(*(_text(each, session) for each in arguments)))

    return rule


def _concat_ws(arguments: list[Default], session: StatementSession) -> Default:
    if not arguments or arguments[0] == NULL:
        return NULL
    between, *parts = (_text(each, session) for each in arguments if each != NULL)
    return Default(between.join(parts))


def _first(arguments: list[Default], _session: StatementSession) -> Default:
    """COALESCE and IFNULL, of strings: of other types the result's type would be that of all."""
    if any(each != NULL and each.notation is not Notation.STRING for each in arguments):
        raise NotConstantError("it chooses among values of several types")
    return next((each for each in arguments if each != NULL), NULL)


def _ascii(text: str) -> str:
    if not text.isascii():
        raise NotConstantError("it changes characters by the rules of a collation")
    return text


def _repeated(text: str, count: str) -> str:
    times = max(0, int(count)) if re.fullmatch(r"-?\d+", count) else -1
    if times < 0 or len(text) * times > _REPEATED_MAX:
        raise NotConstantError("it repeats a text too often")
    return text * times


def _unhexed(arguments: list[Default], session: StatementSession) -> Default:
    (text,) = (_text(each, session) for each in arguments)
    if not re.fullmatch(r"[0-9a-fA-F]*", text):
        raise NotConstantError("it reads what is no hexadecimal")
    return Default(text.lower().rjust(len(text) + len(text) % 2, "0"), Notation.BYTES)


def _uuid_bytes(arguments: list[Default], session: StatementSession) -> Default:
    """UUID_TO_BIN of a literal, without swapped parts."""
    text = _text(arguments[0], session).strip("{}").replace("-", "").lower()
    if len(arguments) != 1 or not re.fullmatch(r"[0-9a-f]{32}", text):
        raise NotConstantError("what UUID_TO_BIN() gives there is not known")
    return Default(text, Notation.BYTES)


def _seconds(arguments: list[Default], session: StatementSession) -> Default:
    if arguments or not session.started_us:
        raise NotConstantError("what UNIX_TIMESTAMP() gives there is not known")
    return _of_integer(session.started_us // 1_000_000)


def _document(text: str | None) -> Default:
    if text is None:
        raise NotConstantError("it has a document that no rule here reads")
    return Default(text, Notation.DOCUMENT)


def _member(value: Default, session: StatementSession) -> str:
    """A value inside of a document."""
    if value == NULL:
        return "null"
    if value.notation is Notation.DOCUMENT:
        return value.value or ""
    if value.notation is Notation.STRING:
        return document_value.printed_string(value.value or "")
    if value.said == BOOLEAN and session.flavour == MYSQL:
        return "true" if value.value == "1" else "false"
    if value.notation is Notation.NUMBER and "e" not in (value.value or "").lower():
        return _text(value, session)
    raise NotConstantError(f"it puts {value.notation.value} into a document")


BOOLEAN = "boolean"


def _array(arguments: list[Default], session: StatementSession) -> Default:
    return _document("[" + ", ".join(_member(each, session) for each in arguments) + "]")


def _object(arguments: list[Default], session: StatementSession) -> Default:
    keys = [_text(each, session) for each in arguments[::2] if each != NULL]
    values = [_member(each, session) for each in arguments[1::2]]
    if len(keys) != len(values) or (session.flavour != MYSQL and len(set(keys)) < len(keys)):
        raise NotConstantError("what JSON_OBJECT() gives there is not known")
    return _document(document_value.printed_object(keys, values, in_order=session.flavour == MYSQL))


_FUNCTIONS: dict[str, Rule] = {
    "CONCAT": _of_texts(1, 1000, lambda *texts: "".join(texts)),
    "CONCAT_WS": _concat_ws,
    "UPPER": _of_texts(1, 1, lambda text: _ascii(text).upper()),
    "UCASE": _of_texts(1, 1, lambda text: _ascii(text).upper()),
    "LOWER": _of_texts(1, 1, lambda text: _ascii(text).lower()),
    "LCASE": _of_texts(1, 1, lambda text: _ascii(text).lower()),
    "REVERSE": _of_texts(1, 1, lambda text: text[::-1]),
    "REPEAT": _of_texts(2, 2, _repeated),
    "REPLACE": _of_texts(3, 3, lambda text, old, new: text.replace(old, new) if old else text),
    "HEX": _of_texts(1, 1, lambda text: _ascii(text).encode().hex().upper()),
    "MD5": _of_texts(1, 1, lambda text: hashlib.md5(_ascii(text).encode(), usedforsecurity=False).hexdigest()),
    "SHA1": _of_texts(1, 1, lambda text: hashlib.sha1(_ascii(text).encode(), usedforsecurity=False).hexdigest()),
    "SHA": _of_texts(1, 1, lambda text: hashlib.sha1(_ascii(text).encode(), usedforsecurity=False).hexdigest()),
    "COALESCE": _first,
    "IFNULL": _first,
    "UNHEX": _unhexed,
    "UUID_TO_BIN": _uuid_bytes,
    "UNIX_TIMESTAMP": _seconds,
    "JSON_ARRAY": _array,
    "JSON_OBJECT": _object,
}
