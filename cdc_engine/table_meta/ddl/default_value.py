"""Parses what follows DEFAULT in a column definition.

A literal keeps its notation, because a number and a quoted string can mean different values: `enum('2','1') DEFAULT 1` is '2'.
`table_meta.change.literal_value` converts the literal to the value that the column stores.
"""

from __future__ import annotations

import dataclasses
import enum
import re

from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenCursor, TokenKind

_BITS = re.compile(r"(?:[bB]'|0b)([01]*)'?")
_HEXADECIMAL = re.compile(r"(?:[xX]'|0[xX])([0-9a-fA-F]*)'?")
_MOMENTS = {"DATE", "TIME", "TIMESTAMP"}
# Spelling of a time function → what it returns: the statement's start time, or only its date.
CLOCKS = {
    **dict.fromkeys(("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"), "now"),
    **dict.fromkeys(("CURRENT_DATE", "CURDATE"), "date"),
}
_DIGITS_MAX = 6
# Time functions that may be written without parentheses.
_BARE_CLOCKS = set(CLOCKS) - {"NOW", "CURDATE"}


class DefaultNotation(enum.Enum):
    NULL = "NULL"
    STRING = "a string"
    NUMBER = "a number"  # `value` is the number as written, with its sign.
    BYTES = "bytes"  # x'4142', 0x4142 or b'101'; `value` is in hexadecimal.
    MOMENT = "a moment"  # DATE'…', TIME'…' or TIMESTAMP'…'; `said` is the keyword before the text.
    # `value` is "now" or "date". `digits` is the number of fraction digits of a second, or -1 if none is declared.
    CLOCK = "the time"
    EXPRESSION = "an expression"  # `value` is None, because expressions are not evaluated.


@dataclasses.dataclass(frozen=True)
class Default:
    """The parsed value after DEFAULT in a column definition.

    - `value`: None for NULL and for an expression. For the other notations, `DefaultNotation` says what it contains.
    - `said`: the charset introducer of a string or bytes (`_latin1` in `_latin1 x'E4'`), or the keyword before a date or time.
    - `digits`: for a time function, the number of fraction digits of a second, or -1 if none is declared.
    """

    value: str | None
    notation: DefaultNotation = DefaultNotation.STRING
    said: str = ""
    digits: int = -1

    @property
    def is_literal(self) -> bool:
        return self.notation not in {DefaultNotation.CLOCK, DefaultNotation.EXPRESSION}


NULL = Default(None, DefaultNotation.NULL)
EXPRESSION = Default(None, DefaultNotation.EXPRESSION)


def read_default(cursor: TokenCursor) -> Default:
    """Parses the value after DEFAULT. Raises UnreadableError if the value is missing."""
    if cursor.peek() == Token(TokenKind.SIGN, "("):
        return _in_parentheses(_parenthesized(cursor))
    found = read_operand(cursor)
    if found is None:
        skip_value(cursor)
    return found or EXPRESSION


def _in_parentheses(inside: tuple[Token, ...]) -> Default:
    """Parses an expression that was in parentheses. Returns EXPRESSION if the expression is anything but one literal or one
    time function.
    """
    cursor = TokenCursor(list(_without_parentheses(inside)))
    found = read_operand(cursor, in_expression=True)
    return found if found is not None and cursor.at_end else EXPRESSION


def _without_parentheses(inside: tuple[Token, ...]) -> tuple[Token, ...]:
    """Removes the pairs of parentheses that enclose all tokens."""
    opened: list[int] = []
    closes: dict[int, int] = {}
    for index, token in enumerate(inside):
        if token == Token(TokenKind.SIGN, "("):
            opened.append(index)
        elif token == Token(TokenKind.SIGN, ")") and opened:
            closes[opened.pop()] = index
    around = 0
    while closes.get(around) == len(inside) - 1 - around:
        around += 1
    return inside[around : len(inside) - around]


def _parenthesized(cursor: TokenCursor) -> tuple[Token, ...]:
    """Skips a pair of parentheses. Returns the tokens between them."""
    begin = cursor.index
    cursor.skip_parentheses()
    return cursor.since(begin)[1:-1]


def read_operand(cursor: TokenCursor, *, in_expression: bool = False) -> Default | None:
    """Parses a literal or a time function. For anything else, returns None and does not move the cursor."""
    sign = cursor.peek().text if cursor.peek().kind is TokenKind.SIGN and cursor.peek().text in {"-", "+"} else ""
    at = 1 if sign else 0
    if not sign and (found := _introduced(cursor)):
        return found
    token = cursor.peek(at)
    literal = _literal(token)
    if literal is None and token == Token(TokenKind.SIGN, ".") and cursor.peek(at + 1).kind is TokenKind.NUMBER:
        literal, at = Default(f".{cursor.peek(at + 1).text}", DefaultNotation.NUMBER), at + 1
    if literal is not None and (not sign or literal.notation is DefaultNotation.NUMBER):
        for _ in range(at + 1):
            cursor.next()
        return dataclasses.replace(literal, value=f"-{literal.value}") if sign == "-" else literal
    return None if sign else _read_clock(cursor, in_expression=in_expression)


def _introduced(cursor: TokenCursor) -> Default | None:
    """Parses a literal with an introducer: _utf8mb4'text', _latin1 x'E4', DATE'2020-01-01'."""
    word, token = cursor.peek().word, cursor.peek(1)
    if word in _MOMENTS and token.kind is TokenKind.STRING:
        found = Default(token.text, DefaultNotation.MOMENT, said=word)
    elif word.startswith("_") and (charset := charset_of_name(word[1:].lower())) and (literal := _literal(token)):
        if literal.notation not in {DefaultNotation.STRING, DefaultNotation.BYTES}:
            return None
        found = dataclasses.replace(literal, said=charset.name)
    else:
        return None
    cursor.next()
    cursor.next()
    return found


def bytes_of(token: Token) -> bytes | None:
    """Returns the bytes of a token such as 0x4142, x'4142' or b'101', or None for any other token."""
    found = _literal(token)
    return bytes.fromhex(found.value or "") if found is not None and found.notation is DefaultNotation.BYTES else None


def _literal(token: Token) -> Default | None:
    if token.kind is TokenKind.STRING:
        return Default(token.text)
    if token.word == "NULL":
        return NULL
    if token.kind is not TokenKind.NUMBER:
        number = {"TRUE": "1", "FALSE": "0"}.get(token.word)
        return Default(number, DefaultNotation.NUMBER) if number else None
    if found := _BITS.fullmatch(token.text):
        return Default(f"{int(found[1], 2):0{-(-len(found[1]) // 8) * 2}x}" if found[1] else "", DefaultNotation.BYTES)
    if found := _HEXADECIMAL.fullmatch(token.text):
        return Default(found[1].lower().rjust(len(found[1]) + len(found[1]) % 2, "0"), DefaultNotation.BYTES)
    return Default(token.text, DefaultNotation.NUMBER)


def _read_clock(cursor: TokenCursor, *, in_expression: bool) -> Default | None:
    """Parses a time function such as CURRENT_TIMESTAMP, CURRENT_DATE or NOW(3). Parses CURDATE() only in an expression."""
    word = cursor.peek().word
    what = CLOCKS.get(word)
    if what is None or (what != "now" and not in_expression and word not in _BARE_CLOCKS):
        return None
    if cursor.peek(1) != Token(TokenKind.SIGN, "("):
        if word not in _BARE_CLOCKS:
            return None
        cursor.next()
        return Default(what, DefaultNotation.CLOCK)
    behind = [cursor.peek(2), cursor.peek(3)]
    digits = -1
    if behind[0].text.isdecimal() and int(behind[0].text) <= _DIGITS_MAX:
        digits, behind = int(behind[0].text), behind[1:]
    if behind[0] != Token(TokenKind.SIGN, ")"):
        return None
    for _ in range(3 if digits < 0 else 4):
        cursor.next()
    return Default(what, DefaultNotation.CLOCK, digits=digits)


def skip_value(cursor: TokenCursor) -> None:
    """Skips a literal, an expression in parentheses, NEXT or PREVIOUS VALUE FOR a sequence, or a function with or without arguments. The
    names may be qualified (`schema.function`).
    """
    if cursor.peek().text == "(" and cursor.peek().kind is TokenKind.SIGN:
        cursor.skip_parentheses()
        return
    if cursor.accept("NEXT", "VALUE", "FOR") or cursor.accept("PREVIOUS", "VALUE", "FOR"):
        cursor.expect_name()
    else:
        token = cursor.next()
        if token.kind is TokenKind.SIGN and token.text in {"-", "+"}:
            token = cursor.next()
        if token.kind in {TokenKind.SIGN, TokenKind.END} and not (
            token.text == "." and cursor.next().kind is TokenKind.NUMBER
        ):
            raise cursor.unreadable(token)
    while cursor.accept_sign("."):
        cursor.next()
    if cursor.peek() == Token(TokenKind.SIGN, "("):
        cursor.skip_parentheses()
