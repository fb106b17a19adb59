"""Tests how the text of a QUERY event is classified."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.binlog.events.statements import StatementKind, savepoint_name, statement_kind, xa_name


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("BEGIN", StatementKind.BEGIN),
        ("  start  transaction ", StatementKind.BEGIN),
        ("COMMIT /* x */", StatementKind.COMMIT),
        ("ROLLBACK", StatementKind.ROLLBACK),
        ("ROLLBACK TO SAVEPOINT a", StatementKind.ROLLBACK_TO),
        ("ROLLBACK WORK TO a", StatementKind.ROLLBACK_TO),
        ("SAVEPOINT a", StatementKind.SAVEPOINT),
        ("RELEASE SAVEPOINT a", StatementKind.RELEASE),
        ("XA START X'61',X'',1", StatementKind.XA_START),
        ("XA END X'61',X'',1", StatementKind.XA_END),
        ("XA COMMIT X'61',X'',1 ONE PHASE", StatementKind.XA_COMMIT),
        ("XA ROLLBACK X'61',X'',1", StatementKind.XA_ROLLBACK),
        ("/* rid */ insert into t values (1)", StatementKind.ROW_CHANGE),
        ("# note\nREPLACE t VALUES (1)", StatementKind.ROW_CHANGE),
        ("-- note\nWITH x AS (SELECT 1) DELETE FROM t", StatementKind.ROW_CHANGE),
        ("LOAD DATA INFILE 'x' INTO TABLE t", StatementKind.ROW_CHANGE),
        ("SELECT `shop`.`f`(1)", StatementKind.ROW_CHANGE),
        ("CREATE TABLE begin_ (a INT)", StatementKind.DEFINITION),
        ("/*!40000 ALTER TABLE t DISABLE KEYS */", StatementKind.DEFINITION),
        ("/*M!100100 DROP TABLE t */", StatementKind.DEFINITION),
        ("CREATE PROCEDURE p() BEGIN", StatementKind.DEFINITION),
        ("BEGINNING", StatementKind.DEFINITION),
        ("GRANT SELECT ON *.* TO x", StatementKind.DEFINITION),
        ("", StatementKind.DEFINITION),
    ],
)
def test_kinds(statement: str, kind: StatementKind) -> None:
    assert statement_kind(statement) is kind


def test_names_of_savepoints_and_xa_transactions() -> None:
    assert savepoint_name("SAVEPOINT `My ``Point`") == "my `point"
    assert savepoint_name("ROLLBACK TO SAVEPOINT a") == savepoint_name("rollback to A") == "a"
    assert xa_name("XA END X'61',X'',1") == xa_name("XA COMMIT X'61',X'',1 ONE PHASE") == "x'61',x'',1"
