r"""Splits a DDL statement into tokens (words, names, strings, signs), as MySQL and MariaDB do.

sqlglot is not suitable. Its tokenizer treats an executable comment (`/*!80023 INVISIBLE */`) as a comment, drops the backslash of '\n' in a
label, and splits names that begin with a digit. The parser of sqlglot does not support half of MySQL's column types.

The session's sql_mode decides what quotes mean. Under ANSI_QUOTES, double quotes enclose names. Under NO_BACKSLASH_ESCAPES, a backslash is
an ordinary character.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re

from sluice.cdc_engine.binlog.charsets.statement_text import (
    BLANK_NO_BREAK_SPACE,
    Literals,
    has_no_character,
    word_characters,
)


class UnreadableError(Exception):
    """Raised if a statement cannot be parsed. The message says what the parser does not know or expect."""


class TokenKind(enum.Enum):
    WORD = "word"  # A keyword or a name without quotes.
    NAME = "name"  # A name in backquotes, or in double quotes under ANSI_QUOTES.
    STRING = "string"
    NUMBER = "number"  # Includes hexadecimal and bit literals.
    SIGN = "sign"
    END = "end"


@dataclasses.dataclass(frozen=True)
class Token:
    """A token of a statement. `text` is the token's text; for strings and names, the content without quotes and escapes. For a sign,
    `apart` tells whether blanks or a comment are directly before it.
    """

    kind: TokenKind
    text: str
    apart: bool = dataclasses.field(default=False, compare=False)

    @property
    def word(self) -> str:
        """The token as a keyword in upper case, or "" if it cannot be a keyword."""
        return self.text.upper() if self.kind is TokenKind.WORD else ""


_END = Token(TokenKind.END, "")
# The alternatives are tried in order. Of an executable comment, only the delimiters and the version are skipped, so that its content is
# parsed.
_SHAPES = r"""
    (?P<space>{blank}+ | --(?=[\x00-\x20]|\Z)[^\n]* | \#[^\n]* | {fence} | /\*.*?\*/ | \*/ )
  | (?P<name>`(?:[^`]|``)*` {more_names})
  | (?P<string>[nN]?{single} {more_strings})
  | (?P<number>0[xX][0-9a-fA-F]+(?!{letter}) | 0[bB][01]+(?!{letter}) | [xXbB]'[0-9a-fA-F]*'
      | \d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?!{letter}) )
  | (?P<word>{letter}+)
  | (?P<sign>[^'"`])
"""
# The servers treat every character outside ASCII as a letter, even characters that are blanks or signs in Unicode.
_LETTER = r"[0-9A-Za-z_$\x80-\U0010FFFF]"
_BLANK = r"[\t-\r\x20]"
# Whether the server is a MariaDB → pattern of the beginning of an executable comment, with the version. Further digits belong to the
# statement.
_FENCES = {
    True: r"/\*M?!(?:\d{5,6})?",
    False: r"/\*!(?:[01]\d{5}|\d{5})?",
}
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


@dataclasses.dataclass(frozen=True)
class Notation:
    """The rules by which a session's statements are split into tokens. `client` is the charset of the text, or empty if unknown. With
    `mariadb`, the content of `/*M! … */` is executed too.

    Versions in executable comments need not be compared: a server that skips an executable comment because of its version writes a plain
    comment to the binlog instead.
    """

    ansi_quotes: bool = False
    backslash_escapes: bool = True
    mariadb: bool = True
    client: str = ""


_USUAL = Notation()
_NOWHERE = -2


@functools.cache
def _patterns(notation: Notation) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns two regular expressions: one for any token, and one for a name that follows a point."""
    character, blank = _LETTER, _BLANK
    if notation.client in BLANK_NO_BREAK_SPACE:
        character, blank = r"(?!\xa0)" + _LETTER, _BLANK.replace("]", r"\xa0]")
        character = f"(?:{character})"
    inside = r"(?:[^Q\\]|\\.|QQ)*" if notation.backslash_escapes else r"(?:[^Q]|QQ)*"
    double_name, double_string = '"(?:[^"]|"")*"', f'"{inside.replace("Q", chr(34))}"'
    pattern = _SHAPES
    for position, value in {
        "{fence}": _FENCES[notation.mariadb],
        "{more_names}": f"| {double_name}" if notation.ansi_quotes else "",
        "{more_strings}": "" if notation.ansi_quotes else f"| {double_string}",
        "{single}": "'" + inside.replace("Q", "'") + "'",
        "{letter}": character,
        "{blank}": blank,
    }.items():
        pattern = pattern.replace(position, value)
    return re.compile(pattern, re.VERBOSE | re.DOTALL), re.compile(f"{character}+")


def tokens(statement: str, notation: Notation = _USUAL) -> list[Token]:
    """Splits a statement into tokens. Raises UnreadableError if a quote is not closed."""
    pattern, name_pattern = _patterns(notation)
    characters = word_characters(notation.client)
    found: list[Token] = []
    at, point = 0, _NOWHERE  # `point` is the end of the last name, if a point directly follows the name.
    apart = False
    while at < len(statement):
        # Directly after a name and a point, a name follows, even if it looks like a number: d.20151214.
        match = (name_pattern.match(statement, at) if at == point + 1 else None) or pattern.match(statement, at)
        if match is None:
            raise UnreadableError(f"the quote at offset {at} of the statement is never closed")
        at = match.end()
        token = _token(match.lastgroup or "word", match[0], notation.backslash_escapes)
        if token is None:
            apart = True
            continue
        if apart and token.kind is TokenKind.SIGN:
            token = Token(token.kind, token.text, apart=True)
        apart = False
        if token.kind in _NAMES_OR_WORDS:
            point = at if statement[at : at + 1] == "." else _NOWHERE
        if characters and token.kind in _WRITTEN:
            token = Token(token.kind, token.text.translate(characters))
        if token.kind in _NAMES_OR_WORDS and not token.text.isascii():
            token = Token(token.kind, _BEYOND_NAMES.sub("?", token.text))
        # The servers concatenate adjacent strings: 'a' 'b' is 'ab'.
        if found and token.kind is found[-1].kind is TokenKind.STRING:
            token = Token(TokenKind.STRING, found.pop().text + token.text)
        found.append(token)
    return found


# The servers store names in utf8mb3, and replace characters that utf8mb3 does not have.
_BEYOND_NAMES = re.compile("[\U00010000-\U0010ffff]")
_NAMES_OR_WORDS = {TokenKind.NAME, TokenKind.WORD}
_WRITTEN = {*_NAMES_OR_WORDS, TokenKind.STRING}


def _token(group: str, text: str, backslash_escapes: bool) -> Token | None:
    if group == "space":
        return None
    if group == "name":
        return Token(TokenKind.NAME, text[1:-1].replace(text[0] * 2, text[0]))
    if group == "string":
        return Token(TokenKind.STRING, _unquoted(text.lstrip("nN"), backslash_escapes))
    return Token(TokenKind(group), text)


def _unquoted(literal: str, backslash_escapes: bool) -> str:
    quote = literal[0]
    if not backslash_escapes:
        return literal[1:-1].replace(quote * 2, quote)
    pattern = rf"\\(.)|{quote}{quote}"
    return re.sub(pattern, lambda match: _unescaped(match[1], quote), literal[1:-1], flags=re.DOTALL)


def _unescaped(escaped: str | None, quote: str) -> str:
    return quote if escaped is None else _ESCAPES.get(escaped, escaped)


class TokenCursor:
    """A cursor in the tokens of a statement. The methods `accept…` skip the given tokens if these are next, and return whether they were
    next. The methods `expect…` raise UnreadableError if the given tokens are not next. `literals` converts literals by the charsets of the
    statement's session.
    """

    def __init__(self, found: list[Token], literals: Literals = Literals()) -> None:  # noqa: B008 - immutable
        self.literals = literals
        self._tokens = found
        self._at = 0

    def peek(self, ahead: int = 0) -> Token:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else _END

    def next(self) -> Token:
        token = self.peek()
        self._at += 1
        return token

    @property
    def index(self) -> int:
        """The number of tokens before the cursor, for `since`."""
        return self._at

    def since(self, index: int) -> tuple[Token, ...]:
        """Returns the tokens from `index`, an earlier value of the property `index`, up to the cursor."""
        return tuple(self._tokens[index : self._at])

    @property
    def at_end(self) -> bool:
        return self.peek().kind is TokenKind.END

    def skip_all(self) -> None:
        """Moves the cursor to the end of the statement."""
        self._at = len(self._tokens)

    def words(self, count: int) -> str:
        """Returns the next keywords, each followed by a blank. Stops after `count` keywords, and at a token that is not a keyword."""
        found = []
        for ahead in range(count):
            if not self.peek(ahead).word:
                break
            found.append(self.peek(ahead).word + " ")
        return "".join(found)

    def accept(self, *words: str) -> bool:
        """Skips the keywords if all of them follow in this order. Returns whether they did."""
        if any(self.peek(index).word != word for index, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def accept_sign(self, sign: str) -> bool:
        if self.peek() != Token(TokenKind.SIGN, sign):
            return False
        self._at += 1
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.unreadable()

    def expect_sign(self, sign: str) -> None:
        if not self.accept_sign(sign):
            raise self.unreadable()

    def expect_name(self) -> str:
        token = self.next()
        if token.kind not in _WRITTEN or not token.text or has_no_character(token.text):
            raise self.unreadable(token)
        return token.text

    def expect_last_name(self) -> str:
        """Returns c from `c`, `t.c`, `d.t.c` or `.c`, because MySQL 5.7 and MariaDB accept qualified names of columns in DDL."""
        if self.accept_sign("."):
            return self.expect_name()
        name = self.expect_name()
        while self.accept_sign("."):
            name = self.expect_name()
        return name

    def expect_number(self) -> int:
        token = self.next()
        if not token.text.isdecimal():
            raise self.unreadable(token)
        return int(token.text)

    def skip_parentheses(self) -> None:
        """Skips a pair of parentheses with its contents."""
        self.expect_sign("(")
        depth = 1
        while depth:
            token = self.next()
            if token.kind is TokenKind.END:
                raise UnreadableError("a parenthesis is not closed")
            if token.kind is TokenKind.SIGN:
                depth += {"(": 1, ")": -1}.get(token.text, 0)

    def unreadable(self, token: Token | None = None) -> UnreadableError:
        there = token or self.peek()
        return UnreadableError(
            f"{there.text[:40]!r} is not expected" if there is not _END else "the statement ends too soon"
        )
