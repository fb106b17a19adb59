"""Evaluates the condition of a row filter on the columns of a record batch. The module `rules` makes a `Condition` for each table version.

As in SQL, a comparison with NULL is neither true nor false, and a row meets the condition only if the whole condition is true. Texts are
compared character by character, without the source's collations. So 'de' never equals 'DE'. ILIKE ignores case.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.binlog.column_types.entry import AnyArray
from sluice.cdc_engine.binlog.row_rules.expression import (
    ComparisonNode,
    Expression,
    IsNull,
    Joined,
    Like,
    Literal,
    Not,
    OneOf,
    columns_of,
)

Chosen = npt.NDArray[np.bool_]
_COMPARE: Mapping[str, Any] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class ConditionRefusedError(Exception):
    """The condition does not fit the table's columns. The message names the column and the reason."""


class Condition:
    """The condition of a row filter, with its literals converted to the types of the columns with which they are compared. `types`:
    lower-case column name → Arrow type. Raises ConditionRefusedError if a literal does not fit its column, or if the table lacks a column.
    """

    def __init__(self, expression: Expression, types: Mapping[str, pa.DataType]) -> None:
        self._expression = expression
        self.columns = columns_of(expression)
        if missing := sorted(self.columns - types.keys()):
            raise ConditionRefusedError(f"the table has no column {missing[0]}")
        self._scalars: dict[tuple[str, Literal], Any] = {}
        self._bind(expression, types)
        self.met({name: _none_of(types[name]) for name in self.columns})

    def met(self, columns: Mapping[str, AnyArray]) -> Chosen:
        """Returns for each row whether it meets the condition. `columns`: lower-case column name → values, at least for the columns in
        `self.columns`.
        """
        found: Any = pc.fill_null(self._of(self._expression, columns), False)
        return cast("Chosen", found.to_numpy(zero_copy_only=False))

    def _of(self, term: Expression, columns: Mapping[str, AnyArray]) -> Any:
        if isinstance(term, Joined):
            join: Any = pc.and_kleene if term.word == "AND" else pc.or_kleene
            found = self._of(term.terms[0], columns)
            for other in term.terms[1:]:
                found = join(found, self._of(other, columns))
            return found
        if isinstance(term, Not):
            return pc.invert(self._of(term.term, columns))
        values: Any = columns[term.column.lower()]
        if isinstance(term, IsNull):
            return pc.is_null(values)
        if isinstance(term, Like):
            return pc.match_like(values, term.pattern, ignore_case=term.any_case)
        if isinstance(term, OneOf):
            found = self._compared("=", term.column, term.literals[0], values)
            for literal in term.literals[1:]:
                found = pc.or_kleene(found, self._compared("=", term.column, literal, values))
            return found
        return self._compared(term.sign, term.column, term.literal, values)

    def _compared(self, sign: str, column: str, literal: Literal, values: Any) -> Any:
        return _COMPARE[sign](values, self._scalars[column.lower(), literal])

    def _bind(self, term: Expression, types: Mapping[str, pa.DataType]) -> None:
        """Converts each literal of a term to the type of its column, and stores the result in `_scalars`. Raises ConditionRefusedError if a
        literal does not fit, or if LIKE is used for a column that is not text.
        """
        if isinstance(term, Joined):
            for each in term.terms:
                self._bind(each, types)
        elif isinstance(term, Not):
            self._bind(term.term, types)
        elif isinstance(term, Like):
            if not _is_text(types[term.column.lower()]):
                raise ConditionRefusedError(f"LIKE compares text, and column {term.column} is not text in the lake")
        elif isinstance(term, OneOf | ComparisonNode):
            of = types[term.column.lower()]
            for literal in term.literals if isinstance(term, OneOf) else (term.literal,):
                scalar = _scalar(term.column, literal, of)
                self._scalars[term.column.lower(), literal] = scalar
                _try(term.column, literal, scalar, of)


def _none_of(of: pa.DataType) -> Any:
    """Returns an empty array of the type `of`."""
    return pa.array([], of)


def _try(column: str, literal: Literal, scalar: Any, of: pa.DataType) -> None:
    try:
        pc.equal(_none_of(of), scalar)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise ConditionRefusedError(_unfit(column, literal, of)) from None


def _scalar(column: str, literal: Literal, of: pa.DataType) -> Any:
    if isinstance(literal, str):
        return _converted(column, literal, of)
    if pa.types.is_floating(of):
        return pa.scalar(float(literal), of)
    if pa.types.is_boolean(of) and literal in (0, 1):
        return pa.scalar(bool(literal), of)
    # The literal is not converted to the column's type, because the literal may have more digits before the decimal point than the type
    # allows.
    if pa.types.is_decimal(of):
        return pa.scalar(decimal.Decimal(literal))
    if pa.types.is_integer(of):
        within = isinstance(literal, int) and -(1 << 63) <= literal < 1 << 63
        return pa.scalar(literal) if within else pa.scalar(decimal.Decimal(literal))
    raise ConditionRefusedError(_unfit(column, literal, of))


def _converted(column: str, literal: str, of: pa.DataType) -> Any:
    """Converts a text literal to an Arrow text, date or timestamp. A literal without a time zone is taken as UTC if the column has a time
    zone.
    """
    try:
        if _is_text(of):
            return pa.scalar(literal, of)
        if pa.types.is_date(of):
            return pa.scalar(dt.date.fromisoformat(literal), of)
        if pa.types.is_timestamp(of):
            moment = dt.datetime.fromisoformat(literal)
            return pa.scalar(moment.replace(tzinfo=dt.UTC) if of.tz and moment.tzinfo is None else moment, of)
    except ValueError:
        raise ConditionRefusedError(_unfit(column, literal, of)) from None
    raise ConditionRefusedError(_unfit(column, literal, of))


def _unfit(column: str, literal: Literal, of: pa.DataType) -> str:
    return f"{literal!r} cannot be compared with column {column}, which is {of} in the lake"


def _is_text(of: pa.DataType) -> bool:
    return pa.types.is_string(of) or pa.types.is_large_string(of)
