"""Tests which statements a consumer of Canal's protocol gets, with an example for each rule."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.binlog.entries.numbers import EventType
from sluice.cdc_engine.contracts import LoggedStatement, StatementSession
from sluice.cdc_engine.instance.consumers.statements import described


def logged(text: str) -> LoggedStatement:
    return LoggedStatement(
        text=text, database="shop", offset=4, length=100, seconds=1, server=1, session=StatementSession()
    )


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.a = 1",
        "CREATE OR REPLACE VIEW v AS SELECT * FROM orders",
        "ALTER VIEW v AS SELECT a FROM orders",
        "DROP TRIGGER IF EXISTS t",
        "DROP VIEW v, w",
        "CREATE PROCEDURE p() DELETE FROM orders",
        "CREATE FUNCTION f() RETURNS int RETURN 1",
        "GRANT SELECT ON shop.* TO reader",
    ],
)
def test_what_canal_shows_to_no_client_is_not_shown(text: str) -> None:
    assert described(logged(text)) is None


def test_a_statement_about_a_table_is_shown_with_its_kind() -> None:
    found = described(logged("DROP TABLE orders"))
    assert found is not None
    assert (found.kind, found.tables) == (EventType.ERASE, (("shop", "orders"),))
