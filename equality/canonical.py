"""Defines a canonical form for each column type. Values of source and lake are converted to this form before they are compared. Pure
functions.

A form has an expression that selects the column from the server, and expressions that convert the server's text and Delta's value to one
DuckDB type. DuckDB hashes and compares the results. Nothing is rounded: the server prints a FLOAT with six digits only, so Sluice selects a
FLOAT as a double and converts it to the exact 32-bit number. Texts are compared by their UTF-8 bytes, never by a collation. The server's
text is converted as docs/fidelity.md defines for the Delta type of the column.
"""

from __future__ import annotations

import dataclasses
import re

from sluice.cdc_engine.contracts import Column

# For each Delta type, by Spark SQL's name: the DuckDB type in which the values of source and lake are compared.
TYPES = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
    "string": "BLOB",
    "binary": "BLOB",
}
# The server and DuckDB order values of these types in the same way. So a range of such a key column selects the same rows in source and
# lake.
COMPARABLE_RANGES = frozenset(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"))
# Columns of these types are selected with `+ 0`. The addition removes the leading zeros of ZEROFILL, and makes the server return a number
# instead of bytes for BIT.
NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year", "bit")
FLOATS = ("float", "double")
# Matches a whole string in a JSON document (group 1), or the `.0` at the end of a number with the character after the number (group 2).
# Strings are matched so that a `.0` within a string is not changed.
DOUBLE_IN_JSON = r'("(?:[^"\\]|\\.)*")|\.0([,\]}]|$)'


@dataclasses.dataclass(frozen=True)
class Canonical:
    """The canonical form of one column, in which values of the source and the lake are compared.

    - `type` is the DuckDB type. For texts, the type is BLOB: the UTF-8 bytes of the characters.
    - `select` is the expression that selects the column from the server.
    - `from_text` and `from_delta` are DuckDB expressions that convert the server's text and Delta's value. In them, `{}` stands for the
      column.
    - `is_bytes` is true if the column is a byte string.
    """

    name: str
    type: str
    select: str
    from_text: str
    from_delta: str
    is_bytes: bool = False

    @property
    def compared(self) -> str:
        """The expression in MySQL's SQL that conditions compare: the quoted name, or `select` if `charsets` in conf/ has the column."""
        return self.select if self.has_other_charset else quoted(self.name)

    @property
    def has_other_charset(self) -> bool:
        """Whether `charsets` in conf/ names another charset for the column than the source declares."""
        return self.select.startswith("CONVERT(")


def canonical(column: Column, spark_type: str, *, charset: str = "", whole_doubles: bool = True) -> Canonical:
    """Returns the canonical form of a column whose Delta type is `spark_type`. Raises KeyError for a type that Sluice's Delta tables do
    not have.

    `charset` is the charset that `charsets` in conf/ names for the column, because the source declares a wrong one. It is empty if conf/
    names none. `whole_doubles` tells whether the server prints a double without a fraction in a JSON document as `1.0`. MySQL 5.7 prints
    `1`. If `whole_doubles` is False, the comparison treats `1` and `1.0` in JSON as equal.
    """
    kind = TYPES.get(spark_type, spark_type)
    if kind not in TYPES.values() and not re.fullmatch(r"decimal\(\d+,\d+\)", spark_type):
        raise KeyError(spark_type)
    declared = base_of(column.mysql_type)
    from_text, from_delta = _from_text(kind), _from_delta(spark_type)
    if declared == "json" and not whole_doubles:
        from_text, from_delta = (_without_whole_doubles(each) for each in ("decode({})", "{}"))
    return Canonical(
        name=column.name,
        type=kind.upper(),
        select=_select(column, declared, charset),
        from_text=from_text,
        from_delta=from_delta,
        is_bytes=spark_type == "binary",
    )


def base_of(mysql_type: str) -> str:
    """Returns the name of a MySQL type without length and attributes, for example `int` for `int(5) unsigned zerofill`."""
    return mysql_type.lower().partition("(")[0].partition(" ")[0]


def _select(column: Column, declared: str, charset: str) -> str:
    name = quoted(column.name)
    if charset:
        return f"CONVERT(CAST({name} AS BINARY) USING {re.sub(r'[^A-Za-z0-9_]', '', charset)})"
    if declared in NUMBERS:
        return f"{name} + 0"
    if declared in FLOATS:
        return f"{name} * 1e0"
    return name


def _from_text(kind: str) -> str:
    match kind:
        case "BLOB":
            return "{}"
        case "FLOAT":
            return "CAST(CAST({} AS DOUBLE) AS FLOAT)"
        case "DATE" | "TIMESTAMP":
            return _unless_year_0("TRY_CAST({} AS " + kind + ")")
        case "TIMESTAMPTZ":
            return _unless_year_0("TRY_CAST({} || '+00:00' AS TIMESTAMPTZ)")
    return "CAST({} AS " + kind + ")"


def _unless_year_0(expression: str) -> str:
    """Returns a DuckDB expression that is NULL for a date of the year 0, and has the value of `expression` for any other date. `expression`
    is a TRY_CAST to a date or timestamp. The lake has NULL for invalid dates. TRY_CAST returns NULL for invalid dates too, but accepts the
    year 0.
    """
    return "CASE WHEN {} LIKE '0000-%' THEN NULL ELSE " + expression + " END"


def _from_delta(spark_type: str) -> str:
    return "encode({})" if spark_type == "string" else "{}"


def _without_whole_doubles(text: str) -> str:
    return f"encode(regexp_replace({text}, '{DOUBLE_IN_JSON}', '\\1\\2', 'g'))"


def quoted(name: str) -> str:
    """Quotes a name for MySQL's SQL."""
    return "`" + name.replace("`", "``") + "`"
