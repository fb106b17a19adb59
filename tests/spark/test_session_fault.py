"""Spark that takes a connection and is gone at the first request is away, as one that takes none."""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from sluice.spark_jobs import session
from sluice.spark_jobs.errors import SparkUnavailableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.session import SessionOnDemand, SparkSettings, open_sessions


class SparkConnectGrpcException(Exception):  # noqa: N818  the client's own name, by which it is known
    """What the client raises."""


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


def test_fault_what_a_killed_run_left_in_spark_ends_although_nothing_needs_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left, ended = str(uuid.uuid4()), list[str]()
    settings = SparkSettings(sessions_file=tmp_path / "sessions.json")
    (tmp_path / "sessions.json").write_text(json.dumps({"remote": settings.remote, "sessions": [left]}))
    monkeypatch.setattr(session, "end_sessions", lambda _, ids: ended.extend(ids))
    with ExitStack() as stack:
        SessionOnDemand(settings, BY_HAND, stack)
    assert ended == [left]
