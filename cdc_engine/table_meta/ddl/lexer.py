"""A DDL statement as words, names, strings and signs, the way MySQL and MariaDB cut it. Used by `ddl` and `declared`.

sqlglot's tokenizer was tried and does not do for this: it takes the inside of executable comments (`/*!80023 INVISIBLE */`) for a comment,
drops the backslash of '\\n' in a label, and splits names that begin with a digit; its parser gives up on half of MySQL's column types.

The session's sql_mode decides about quotes: under ANSI_QUOTES double ones are a name's, under NO_BACKSLASH_ESCAPES a backslash is itself.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re


class UnreadableError(Exception):
    """The statement cannot be read from here on; the message says what stands there."""


class TokenKind(enum.Enum):
    WORD = "word"  #: keyword or bare name
    NAME = "name"  #: in backquotes, or in double quotes that are a name's
    STRING = "string"
    NUMBER = "number"  #: also hexadecimal and bit literals
    SIGN = "sign"
    END = "end"


@dataclasses.dataclass(frozen=True)
class Token:
    """`text`: of strings and names without quotes and escapes, else as written."""

    kind: TokenKind
    text: str

    @property
    def word(self) -> str:
        """The keyword in upper case; empty for all that cannot be one."""
        return self.text.upper() if self.kind is TokenKind.WORD else ""


_END = Token(TokenKind.END, "")
# alternatives are tried in order; an executable comment only loses its fence
_TOKEN = re.compile(
    r"""
    (?P<space>\s+ | --(?=\s|\Z)[^\n]* | \#[^\n]* | /\*M?!\d* | /\*.*?\*/ | \*/ )
  | (?P<name>`(?:[^`]|``)*`)
  | (?P<string>[nN]?'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
  | (?P<number>0[xX][0-9a-fA-F]+\b | 0[bB][01]+\b | [xXbB]'[0-9a-fA-F]*' | \d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w$]) )
  | (?P<word>[\w$\x80-\U0010FFFF]+)
  | (?P<sign>[^'"`\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


@functools.cache
def _pattern(backslash_escapes: bool, mariadb: bool) -> re.Pattern[str]:
    pattern = _TOKEN.pattern
    if not backslash_escapes:
        pattern = pattern.replace(r"\\.|", "").replace("\\\\", "")
    return re.compile(pattern if mariadb else pattern.replace("/\\*M?!", "/\\*!"), _TOKEN.flags)


def tokens(
    statement: str, *, ansi_quotes: bool = False, backslash_escapes: bool = True, mariadb: bool = True
) -> list[Token]:
    """Cuts a statement; `/*M! … */` is a comment unless `mariadb`. Raises UnreadableError where a quote is not closed.

    A server that does not execute an executable comment, for its version, writes it into the binlog as a plain one.
    """
    pattern = _pattern(backslash_escapes, mariadb)
    found: list[Token] = []
    at = 0
    while at < len(statement):
        match = pattern.match(statement, at)
        if match is None:
            raise UnreadableError(f"a quote is not closed at character {at}")
        at = match.end()
        token = _token(match.lastgroup or "", match[0], ansi_quotes, backslash_escapes)
        if token is None:
            continue
        if found and token.kind is found[-1].kind is TokenKind.STRING:  # 'a' 'b' is one string
            token = Token(TokenKind.STRING, found.pop().text + token.text)
        found.append(token)
    return found


def _token(group: str, text: str, ansi_quotes: bool, backslash_escapes: bool) -> Token | None:
    if group == "space":
        return None
    if group == "name":
        return Token(TokenKind.NAME, text[1:-1].replace("``", "`"))
    if group == "string" and ansi_quotes and text[0] == '"':
        return Token(TokenKind.NAME, text[1:-1].replace('""', '"'))
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
    """A place in a statement. `accept…` moves on and answers True if that stands there; `expect…` raises UnreadableError otherwise."""

    def __init__(self, found: list[Token]) -> None:
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
    def at_end(self) -> bool:
        return self.peek().kind is TokenKind.END

    def skip_all(self) -> None:
        """To the end of the statement."""
        self._at = len(self._tokens)

    def words(self, count: int) -> str:
        """The keywords from here on, up to `count` or to the first token that is none, joined by blanks and ended by one."""
        found = []
        for ahead in range(count):
            if not self.peek(ahead).word:
                break
            found.append(self.peek(ahead).word + " ")
        return "".join(found)

    def accept(self, *words: str) -> bool:
        """All of these keywords, one after the other."""
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
        if token.kind not in {TokenKind.WORD, TokenKind.NAME, TokenKind.STRING} or not token.text:
            raise self.unreadable(token)
        return token.text

    def expect_number(self) -> int:
        token = self.next()
        if not token.text.isdecimal():
            raise self.unreadable(token)
        return int(token.text)

    def skip_parentheses(self) -> None:
        """Over `( … )` with all that is inside."""
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
