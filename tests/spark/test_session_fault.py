"""Tests that a Spark that accepts a connection and disappears at the first request counts as unavailable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from pyspark.sql.connect.conf import RuntimeConf

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs import session
from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.session import LakeSession, SparkSettings, open_sessions


class SparkConnectGrpcException(Exception):  # noqa: N818  the client's own name, by which it is known
    """Imitates the exception that the client raises."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [(SparkConnectGrpcException("Socket closed"), SparkUnavailableError), (ValueError("no such setting"), ValueError)],
)
def test_fault_spark_that_dies_while_sessions_are_opened_is_away(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    released: list[str] = []

    def fails(*_: Any) -> NoReturn:
        raise error

    client = SimpleNamespace(release_session=lambda: released.append("session"), close=lambda: None)
    attached = SimpleNamespace(conf=SimpleNamespace(set=fails), client=client)
    monkeypatch.setattr(session, "_require_listening", lambda _: None)
    monkeypatch.setattr(session, "_attach", lambda *_: attached)
    with pytest.raises(expected, match=str(error)), open_sessions(SparkSettings(), 1):
        pass
    assert released == ["session"]


def test_the_settings_of_a_session_are_one_request() -> None:
    """Each merge opens a session. Earlier, each setting of the session was a separate request to Spark."""
    requested, given = (
        list[dict[str, str]](),
        {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
    )

    def config(operation: Any) -> SimpleNamespace:
        requested.append({pair.key: pair.value for pair in operation.set.pairs})
        assert not operation.set.silent, "Spark refuses a setting that it does not accept"
        return SimpleNamespace(warnings=[])

    one = LakeSession(SimpleNamespace(conf=RuntimeConf(SimpleNamespace(config=config))))  # type: ignore[arg-type]
    one.configure(given)
    one.commit_as("app", 7, "{}")
    assert requested[0] == given
    assert [len(each) for each in requested] == [2, 3]


def test_a_spark_in_this_process_gets_each_setting() -> None:
    there = dict[str, str]()
    LakeSession(SimpleNamespace(conf=SimpleNamespace(set=there.__setitem__))).configure({"a": "1", "b": "2"})
    assert there == {"a": "1", "b": "2"}


@pytest.mark.spark
def test_statements_for_many_rows_get_the_settings_back_that_those_for_few_rows_replaced(
    spark_server: SparkConnectServer,
) -> None:
    given = {"spark.sql.shuffle.partitions": "7"}
    with open_sessions(SparkSettings(remote=spark_server.url, options=given), 1) as (one,):
        before = dict(one.spark.conf.getAll)
        one.expect(session.SMALL_ROWS_MAX)
        assert one.spark.conf.get("spark.sql.shuffle.partitions") == "1"
        one.expect(session.SMALL_ROWS_MAX + 1)
        assert dict(one.spark.conf.getAll) == before
