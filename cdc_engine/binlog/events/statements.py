"""Classifies the statement of a QUERY event. `parser.scan` calls this module for statements that its kernel cannot classify.

With binlog_format=ROW, the server logs as statements only transaction boundaries, savepoints, XA and DDL. If a row change is logged as a
statement, a session used another binlog format, and Sluice stops the tables to which the statement writes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection


class StatementKind(enum.Enum):
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"  #: Ends the transaction and undoes its row events on transactional tables.
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback to"  #: Undoes the row events after the savepoint.
    RELEASE = "release"
    XA_START = "xa start"
    XA_END = "xa end"
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"
    #: INSERT, UPDATE and so on, or a SELECT, which the server logs if a function in the SELECT changes rows.
    ROW_CHANGE = "row change"
    DEFINITION = "definition"  #: Every other statement; the schema history decides whether it changes a captured table.


_COMMENT = re.compile(r"\s+|--\s[^\n]*(?:\n|\Z)|#[^\n]*(?:\n|\Z)|/\*(?!M?!).*?\*/|/\*M?!\d*|;", re.DOTALL)
_RULES: tuple[tuple[StatementKind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for kind, pattern in (
        (StatementKind.BEGIN, r"(?:BEGIN|START\s+TRANSACTION)\b"),
        (StatementKind.COMMIT, r"COMMIT\b"),
        (StatementKind.ROLLBACK_TO, r"ROLLBACK\s+(?:WORK\s+)?TO\b"),
        (StatementKind.ROLLBACK, r"ROLLBACK\b"),
        (StatementKind.SAVEPOINT, r"SAVEPOINT\b"),
        (StatementKind.RELEASE, r"RELEASE\s+SAVEPOINT\b"),
        (StatementKind.XA_START, r"XA\s+(?:START|BEGIN)\b"),
        (StatementKind.XA_COMMIT, r"XA\s+COMMIT\b"),
        (StatementKind.XA_ROLLBACK, r"XA\s+ROLLBACK\b"),
        (StatementKind.XA_END, r"XA\b"),
        (StatementKind.ROW_CHANGE, r"(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH|CALL|DO|SELECT|MERGE)\b"),
    )
)

# MySQL 5.7 does not double a quote within the name in its ROLLBACK TO. So the name ends at the last quote.
_SAVEPOINT_NAME = re.compile(
    r"(?:SAVEPOINT|TO(?:\s+SAVEPOINT)?)\s+(?:([`\"])(.*)\1|([\w$\x80-\uffff]+))", re.IGNORECASE | re.DOTALL
)


def without_comments(statement: str) -> str:
    """Returns the statement without the blanks and comments before its first word. The text in an executable comment (`/*!40000 … */`) is
    part of the statement.
    """
    at = 0
    while match := _COMMENT.match(statement, at):
        at = match.end()
    return statement[at:]


def statement_kind(statement: str) -> StatementKind:
    text = without_comments(statement)
    return next((kind for kind, pattern in _RULES if pattern.match(text)), StatementKind.DEFINITION)


def savepoint_name(statement: str) -> str:
    """Returns the savepoint's name in SAVEPOINT x or ROLLBACK TO x. The name is in lower case, because MySQL ignores the case. Returns an
    empty text if the statement has no name.
    """
    match = _SAVEPOINT_NAME.search(without_comments(statement))
    if match is None:
        return ""
    quote, quoted, bare = match.groups()
    return (quoted.replace(quote * 2, quote) if quote else bare).lower()


def is_certain(name: str, savepoints: Collection[str]) -> bool:
    """Returns True if it is certain that ROLLBACK TO `name` means the savepoint `name` of the transaction. `savepoints`: the names of all
    savepoints of the transaction.

    The server compares names in a collation of its own, in which é can equal E. So the function returns False if the transaction has
    several savepoints and a name is not ASCII. The function also returns False if the transaction has no savepoint `name`.
    """
    return bool(name) and name in savepoints and (len(savepoints) == 1 or all(map(str.isascii, savepoints)))


def xa_name(statement: str) -> str:
    """Returns the transaction id in an XA statement. The id has the form in which the server writes it (x'…',x'…',1), but is in lower case
    and without ONE PHASE.
    """
    words = without_comments(statement).split(None, 2)
    return re.sub(r"\s+ONE\s+PHASE\s*\Z", "", words[2] if len(words) > 2 else "", flags=re.IGNORECASE).strip().lower()
