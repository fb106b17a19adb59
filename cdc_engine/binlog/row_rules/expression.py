"""Parses the condition of a row filter: `country = 'DE' AND (amount > 100 OR note IS NULL)`.

    condition   terms with AND, OR, NOT and brackets; AND binds more strongly than OR
    term        column  = | <> | != | < | <= | > | >=  literal
                column  [NOT] IN (literal, …)     column [NOT] BETWEEN literal AND literal
                column  [NOT] LIKE 'pattern'      column [NOT] ILIKE 'pattern'      column IS [NOT] NULL
    literal     'text' (a quote in it doubled), 12, -1.5, TRUE (1), FALSE (0)

A column name is a word, or any text in backticks or double quotes. The letter case of column names does not matter.
"""

from __future__ import annotations

import dataclasses
import decimal
import re
from collections.abc import Callable
from typing import TypeAlias

from sluice.cdc_engine.errors import ConfigurationError

Literal: TypeAlias = str | int | decimal.Decimal
CHARACTERS_MAX = 10_000
DEPTH_MAX = 50  # A condition with more nested levels of brackets and NOT is refused.
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))|(?P<quoted>`[^`]+`|"[^"]+")
    |(?P<word>[^\W\d][\w$]*)|(?P<sign><=|>=|<>|!=|=|<|>|\(|\)|,))""",
    re.VERBOSE,
)
_WORDS = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "ILIKE", "TRUE", "FALSE"})
COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclasses.dataclass(frozen=True)
class ComparisonNode:
    """A comparison of a column with a literal. `sign` is one of = <> < <= > >=."""

    column: str
    sign: str
    literal: Literal


@dataclasses.dataclass(frozen=True)
class OneOf:
    column: str
    literals: tuple[Literal, ...]


@dataclasses.dataclass(frozen=True)
class Like:
    column: str
    pattern: str
    any_case: bool


@dataclasses.dataclass(frozen=True)
class IsNull:
    column: str


@dataclasses.dataclass(frozen=True)
class Not:
    term: Expression


@dataclasses.dataclass(frozen=True)
class Joined:
    """Terms that are joined by `word`, which is AND or OR."""

    word: str
    terms: tuple[Expression, ...]


Expression: TypeAlias = ComparisonNode | OneOf | Like | IsNull | Not | Joined


def parse(text: str) -> Expression:
    """Parses a condition. Raises ConfigurationError if the text is not a condition, or if the condition is too long or too deeply nested.
    The message names the wrong character by its number, counted from 1.
    """
    return _ExpressionReader(text).whole()


def columns_of(expression: Expression) -> frozenset[str]:
    """Returns the names of all columns in an expression, in lower case."""
    if isinstance(expression, Joined):
        return frozenset[str]().union(*(columns_of(term) for term in expression.terms))
    if isinstance(expression, Not):
        return columns_of(expression.term)
    return frozenset({expression.column.lower()})


@dataclasses.dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The token's text in upper case if the token is a word or a sign, else an empty text."""
        return self.text.upper() if self.kind in {"word", "sign"} else ""


class _ExpressionReader:
    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._next, self._depth = text, _tokens(text), 0, 0

    def whole(self) -> Expression:
        found = self._joined("OR", lambda: self._joined("AND", self._term))
        if self._now.kind != "end":
            raise self._wrong("AND, OR or the end")
        return found

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._now
        self._next += token.kind != "end"
        return token

    def _took(self, word: str) -> bool:
        found = self._now.word == word
        self._next += found
        return found

    def _must(self, word: str) -> None:
        if not self._took(word):
            raise self._wrong(word)

    def _wrong(self, wanted: str) -> ConfigurationError:
        token = self._now
        found = f"{token.text!r}" if token.kind != "end" else "the end"
        return ConfigurationError(
            f"the condition {self._text!r} cannot be read: {found} at character {token.at + 1}, where {wanted} should be"
        )

    def _joined(self, word: str, part: Callable[[], Expression]) -> Expression:
        terms = [part()]
        while self._took(word):
            terms.append(part())
        return terms[0] if len(terms) == 1 else Joined(word, tuple(terms))

    def _term(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ConfigurationError(
                f"the condition has more than {DEPTH_MAX} nested levels: use fewer brackets and NOT"
            )
        try:
            if self._took("NOT"):
                return Not(self._term())
            if self._took("("):
                found = self._joined("OR", lambda: self._joined("AND", self._term))
                self._must(")")
                return found
            return self._about_column()
        finally:
            self._depth -= 1

    def _about_column(self) -> Expression:
        column = self._column()
        if self._took("IS"):
            denied = self._took("NOT")
            self._must("NULL")
            return Not(IsNull(column)) if denied else IsNull(column)
        if self._now.word in COMPARISONS:
            return ComparisonNode(column, COMPARISONS[self._take().word], self._literal())
        denied = self._took("NOT")
        found = self._of_several(column)
        return Not(found) if denied else found

    def _of_several(self, column: str) -> Expression:
        if self._took("IN"):
            self._must("(")
            literals = [self._literal()]
            while self._took(","):
                literals.append(self._literal())
            self._must(")")
            return OneOf(column, tuple(literals))
        if self._took("BETWEEN"):
            low = self._literal()
            self._must("AND")
            return Joined("AND", (ComparisonNode(column, ">=", low), ComparisonNode(column, "<=", self._literal())))
        if self._now.word in {"LIKE", "ILIKE"}:
            any_case = self._take().word == "ILIKE"
            if self._now.kind != "text":
                raise self._wrong("a pattern in quotes")
            return Like(column, str(self._literal()), any_case)
        raise self._wrong("=, <>, <, <=, >, >=, IN, BETWEEN, LIKE, ILIKE or IS")

    def _column(self) -> str:
        token = self._now
        if token.kind == "quoted":
            return self._take().text[1:-1]
        if token.kind != "word" or token.word in _WORDS:
            raise self._wrong("the name of a column")
        return self._take().text

    def _literal(self) -> Literal:
        token = self._now
        if token.kind == "text":
            return self._take().text[1:-1].replace("''", "'")
        if token.kind == "number":
            text = self._take().text
            return decimal.Decimal(text) if "." in text else int(text)
        if token.word in {"TRUE", "FALSE"}:
            return int(self._take().word == "TRUE")
        raise self._wrong("a text in single quotes, or a number (for NULL, use IS NULL)")


def _tokens(text: str) -> list[_Token]:
    if len(text) > CHARACTERS_MAX:
        raise ConfigurationError(
            f"a condition of {len(text)} characters is too long: at most {CHARACTERS_MAX} are allowed"
        )
    found, at = list[_Token](), 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            index = at + len(text[at:]) - len(text[at:].lstrip())
            raise ConfigurationError(
                f"the condition {text!r} cannot be read: {text[index]!r} at character {index + 1} is not a known token"
            )
        found.append(_Token(match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup)))
        at = match.end()
    return [*found, _Token("end", "", len(text))]
