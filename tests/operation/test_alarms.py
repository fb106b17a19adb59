"""Tests that an alarm is sent once when a problem begins and once when it ends, and that a webhook that fails delays nothing else."""

from __future__ import annotations

import dataclasses
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluice.cdc_engine.config.alarms import AlarmConfig
from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.errors import ConfigurationError, LedgerLostError
from sluice.cdc_engine.instance.status import EngineStatus
from sluice.cdc_engine.operation import handlers
from sluice.cdc_engine.operation.alarms import QUIET_SECONDS, Alarm, AlarmWatcher, failed, matters
from sluice.cdc_engine.operation.handlers import TRIES, AlarmSender, handler_of
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.states import TableState

WELL = EngineStatus(state="RUNNING")
STOP = StoppedTable(
    database="shop", table="orders", state=TableState.DDL_UNSUPPORTED, reason="why", position=Position(epoch=1, file="b.000001", offset=4)
)  # fmt: skip
ALARM = Alarm(destination="shop", key="engine", state="LEDGER_LOST", text="gone")


class Watched:
    """Provides a watcher with a simulated clock. `see` returns the alarms that the watcher reports about a status."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reported: list[Alarm] = []
        self.watcher = AlarmWatcher(self.reported.append, lambda: self.now)

    def see(self, status: EngineStatus, seconds: float = 1.0) -> list[Alarm]:
        self.reported.clear()
        self.now += seconds
        self.watcher.see([*matters("shop", status)])
        return list(self.reported)


def test_an_alarm_is_sent_once_and_its_end_after_a_while_admin() -> None:
    watched = Watched()
    lost = dataclasses.replace(WELL, state="POSITION_LOST", reason="purged")
    assert watched.see(WELL) == []
    (reported,) = watched.see(lost)
    assert (reported.state, reported.text, reported.over) == ("POSITION_LOST", "purged", False)
    assert watched.see(lost) == []
    assert watched.see(WELL) == []
    assert watched.see(lost) == []  # The problem came and went.
    assert watched.see(WELL) == []
    (over,) = watched.see(WELL, QUIET_SECONDS)
    assert (over.key, over.over) == ("engine", True)
    assert watched.see(WELL) == []


def test_an_alarm_is_the_same_whatever_it_says_of_seconds_admin() -> None:
    watched = Watched()
    first = dataclasses.replace(WELL, troubles=("no tick for 12 s", "the disk is full"))
    assert [each.text for each in watched.see(first)] == ["no tick for 12 s", "the disk is full"]
    assert watched.see(dataclasses.replace(WELL, troubles=("no tick for 13.5 s", "the disk is full"))) == []


def test_an_alarm_is_the_same_in_seconds_minutes_and_hours_admin() -> None:
    watched = Watched()
    first = dataclasses.replace(WELL, troubles=("out for 119 s and 2 tables wait",))
    assert len(watched.see(first)) == 1
    for age in ("2 min", "119 min", "2.0 h"):
        assert watched.see(dataclasses.replace(WELL, troubles=(f"out for {age} and 2 tables wait",)), 100.0) == []
    assert watched.see(dataclasses.replace(WELL, troubles=("out for 2.1 h and 2 hosts wait",))) != []


def test_a_start_that_fails_ends_no_alarm_of_a_table_admin() -> None:
    watched = Watched()
    watched.see(dataclasses.replace(WELL, stopped_tables=(STOP,)))
    watched.reported.clear()
    for _ in range(3):
        watched.now += QUIET_SECONDS
        watched.watcher.see_failed(failed("shop", LedgerLostError("gone")))
    assert watched.reported == [ALARM]
    assert watched.see(WELL) == []
    assert {(each.key, each.over) for each in watched.see(WELL, QUIET_SECONDS)} == {
        ("engine", True), ("table shop.orders", True)
    }  # fmt: skip


def test_tables_and_engines_that_cannot_start_are_alarms_admin() -> None:
    watched = Watched()
    (reported,) = watched.see(dataclasses.replace(WELL, stopped_tables=(STOP,)))
    assert (reported.key, reported.state, reported.text) == ("table shop.orders", "DDL_UNSUPPORTED", "shop.orders: why")
    assert failed("shop", LedgerLostError("gone")) == ALARM


@pytest.fixture
def webhook() -> Iterator[Any]:
    """Refuses the first request."""
    got: list[Any] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.headers["X-Key"], json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(500 if len(got) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server, got
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_alarm_reaches_a_webhook_that_refused_it_first_admin(webhook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, got = webhook
    monkeypatch.setenv("HOOK_KEY", "secret")
    config = AlarmConfig(kind="webhook", url=f"http://127.0.0.1:{server.server_port}/", headers={"X-Key": "$HOOK_KEY"})
    sender = AlarmSender([handler_of(config)], lambda _seconds: None)
    sender.send(ALARM)
    sender.close()
    assert [key for key, _ in got] == ["secret", "secret"]
    record = got[-1][1]
    assert record.pop("at") > 0
    assert record == {"destination": "shop", "state": "LEDGER_LOST", "about": "engine", "text": "gone", "over": False}


@pytest.mark.found
def test_an_alarm_reaches_a_webhook_whose_variable_ends_with_a_line_end_admin(
    webhook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1251: no engine started if the URL of a webhook had a line end, as variables from Kubernetes secrets often do."""
    server, got = webhook
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/\n")
    sender = AlarmSender([handler_of(AlarmConfig(kind="webhook", url="$HOOK"))], lambda _seconds: None)
    sender.send(ALARM)
    sender.close()
    assert got[-1][1]["text"] == "gone"


def test_an_alarm_follows_no_redirect_of_a_webhook_admin() -> None:
    requested: list[str] = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requested.append(f"POST {self.path}")
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(302)
            self.send_header("Location", "/other")
            self.end_headers()

        def do_GET(self) -> None:
            requested.append(f"GET {self.path}")
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        config = AlarmConfig(kind="webhook", url=f"http://127.0.0.1:{server.server_port}/", headers={})
        with capture_logs() as lines:
            sender = AlarmSender([handler_of(config)], lambda _seconds: None)
            sender.send(ALARM)
            sender.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert requested == ["POST /"] * TRIES
    assert "answered 302, a redirect" in lines[0]["reason"]


def test_a_dead_handler_of_alarms_delays_no_other_admin() -> None:
    answer, reported = threading.Event(), threading.Event()

    def dead(_alarm: Alarm) -> None:
        answer.wait(60)

    def alive(_alarm: Alarm) -> None:
        reported.set()

    sender = AlarmSender([dead, alive])
    sender.send(ALARM)
    assert reported.wait(60)
    assert not answer.is_set()
    answer.set()
    sender.close()


def test_a_failing_handler_of_alarms_does_not_stop_other_handlers_admin() -> None:
    tries: list[Alarm] = []
    reported: list[Alarm] = []

    def failing(alarm: Alarm) -> None:
        tries.append(alarm)
        raise ValueError

    sender = AlarmSender([failing, handler_of(AlarmConfig(kind="log")), reported.append], lambda _seconds: None)
    sender.send(ALARM)
    sender.close()
    assert (len(tries), reported) == (TRIES, [ALARM])


def test_an_alarm_webhook_wants_an_address_and_its_secrets_admin() -> None:
    with pytest.raises(ValueError, match="url"):
        AlarmConfig(kind="webhook")
    with pytest.raises(ConfigurationError, match="NOT_THERE_AT_ALL"):
        handler_of(AlarmConfig(kind="webhook", url="$NOT_THERE_AT_ALL"))


def test_an_alarm_that_finds_its_queue_full_is_dropped_and_logged_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "WAITING_MAX", 2)
    taken, may_go_on, reported = threading.Event(), threading.Event(), list[Alarm]()

    def slow(alarm: Alarm) -> None:
        taken.set()
        may_go_on.wait(60.0)
        reported.append(alarm)

    sender = AlarmSender([slow])
    sender.send(ALARM)
    assert taken.wait(60.0)
    with capture_logs() as lines:
        for _ in range(3):
            sender.send(ALARM)
    may_go_on.set()
    sender.close()
    assert [(line["event"], line["reason"]) for line in lines] == [("alarm_dropped", "too many alarms wait to be sent")]
    assert len(reported) == 3
