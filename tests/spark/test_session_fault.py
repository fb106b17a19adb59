"""Tests that a Spark that accepts a connection and disappears at the first request counts as unavailable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from sluice.spark_jobs import session
from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.session import SparkSettings, open_sessions


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
