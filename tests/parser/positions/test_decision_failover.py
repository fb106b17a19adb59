"""Tests every branch of the start position as one table: the saved position, the requested one, the facts of the
server, and the decision.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sluice.cdc_engine.parser.positions.decision import BeginOf, Decision, OfTime, RequestedPosition, decide
from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.start_position import DumpStart, Epochs, Lost
from sluice.cdc_engine.position import Position

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
FACTS = ServerFacts(
    version="8.0.31",
    mariadb=False,
    server_uuid=A,
    gtid_enabled=True,
    executed=f"{A}:1-90",
    purged=f"{A}:1-20",
    file="binlog.000004",
    offset=900,
    logs=tuple(BinaryLog(file=f"binlog.00000{number}", size_bytes=900) for number in (2, 3, 4)),
)
BARE = dataclasses.replace(FACTS, gtid_enabled=False, executed="", purged="")
OTHER = {"server_uuid": B, "file": "mysql-bin.000009", "logs": (BinaryLog(file="mysql-bin.000009", size_bytes=900),)}
SAVED = Position(epoch=3, file="binlog.000003", offset=700, gtid_set=f"{A}:1-60", server_uuid=A, time_us=5)
OLD = dataclasses.replace(SAVED, gtid_set="")
NOTHING, EPOCHS = RequestedPosition(), Epochs(highest=3)


def other(facts: ServerFacts, **more: Any) -> ServerFacts:
    return dataclasses.replace(facts, **{**OTHER, **more})


def reported(decision: Decision) -> str:
    """Returns the decision in one line."""
    if isinstance(decision, Lost):
        return f"lost: {decision.reason}"
    if isinstance(decision, OfTime):
        return f"time {decision.time_us} in {decision.file or 'all'}"
    if isinstance(decision, BeginOf):
        return f"begin of {decision.file}:{decision.offset}"
    position, way = decision.position, "by gtid" if decision.by_gtid else "by file"
    return f"{way} {position.file or 'anywhere'}:{position.offset}@{position.epoch}"


@pytest.mark.parametrize(
    ("cursor", "wanted", "facts", "expected"),
    [
        pytest.param(None, RequestedPosition(gtid_set=f"{A}:1-50"), FACTS, "by gtid anywhere:4@3", id="gtid"),
        pytest.param(None, RequestedPosition(gtid_set=f"{A}:1-10"), FACTS, "lost: the server purged", id="gtid-purged"),
        pytest.param(None, RequestedPosition(gtid_set=f"{A}:1-99"), FACTS, "lost: the server has not executed", id="gtid-ahead"),
        pytest.param(None, RequestedPosition(gtid_set=f"{A}:1-50"), BARE, "lost: `start` is a GTID set", id="no-gtids"),
        pytest.param(SAVED, NOTHING, FACTS, "by gtid binlog.000003:700@3", id="saved-gtid"),
        pytest.param(OLD, NOTHING, BARE, "by file binlog.000003:700@3", id="saved-file"),
        pytest.param(OLD, NOTHING, FACTS, "by file binlog.000003:700@3", id="saved-before-gtids"),
        pytest.param(SAVED, RequestedPosition(earliest=True), FACTS, "by gtid binlog.000003:700@3", id="saved-wins"),
        pytest.param(SAVED, RequestedPosition(time_us=1), FACTS, "by gtid binlog.000003:700@3", id="saved-wins-over-time"),
        pytest.param(None, RequestedPosition(file="binlog.000003", offset=700), FACTS, "begin of binlog.000003:700", id="offset"),
        pytest.param(None, RequestedPosition(file="binlog.000003", offset=4), FACTS, "by file binlog.000003:4@3", id="offset-4"),
        pytest.param(None, RequestedPosition(file="binlog.000003", offset=901), FACTS, "lost: binlog.000003:901", id="offset-far"),
        pytest.param(None, RequestedPosition(file="binlog.000001", offset=700), FACTS, "lost: binlog.000001 is not", id="offset-gone"),
        pytest.param(None, RequestedPosition(file="binlog.000003", time_us=9), FACTS, "time 9 in binlog.000003", id="file-time"),
        pytest.param(None, RequestedPosition(file="binlog.000001", time_us=9), FACTS, "lost: binlog.000001", id="file-time-gone"),
        pytest.param(None, RequestedPosition(file="binlog.000003"), FACTS, "by file binlog.000003:4@3", id="file"),
        pytest.param(None, RequestedPosition(file="binlog.000001"), FACTS, "lost: binlog.000001 is not among", id="file-gone"),
        pytest.param(None, RequestedPosition(time_us=9), FACTS, "time 9 in all", id="time"),
        pytest.param(None, RequestedPosition(time_us=0), BARE, "time 0 in all", id="time-0"),
        pytest.param(None, RequestedPosition(earliest=True), FACTS, "by file binlog.000002:4@3", id="earliest"),
        pytest.param(
            None, RequestedPosition(earliest=True), dataclasses.replace(FACTS, logs=()), "lost: the server does not list", id="no-logs"
        ),
        pytest.param(None, NOTHING, FACTS, "by gtid binlog.000004:900@3", id="latest"),
        pytest.param(None, NOTHING, BARE, "by file binlog.000004:900@3", id="latest-bare"),
        pytest.param(None, NOTHING, dataclasses.replace(BARE, file=""), "lost: the server did not report the end of", id="no-end"),
        pytest.param(SAVED, NOTHING, other(FACTS), "by gtid anywhere:4@4", id="standby"),
        pytest.param(SAVED, NOTHING, other(FACTS, executed=f"{A}:1-59"), "lost: the server has not executed", id="standby-behind"),
        pytest.param(SAVED, NOTHING, other(FACTS, purged=f"{A}:1-70"), "lost: the server purged the binlog with", id="standby-purged"),
        pytest.param(OLD, NOTHING, other(FACTS), "lost: the cursor", id="standby-without-gtids"),
        pytest.param(SAVED, NOTHING, other(BARE), "lost: the cursor", id="standby-bare"),
        pytest.param(
            SAVED, NOTHING, dataclasses.replace(FACTS, server_uuid=B), "by gtid anywhere:4@4", id="address-moved-uuid-changed"
        ),
        pytest.param(
            dataclasses.replace(SAVED, gtid_set="0-1-60", server_uuid="mariadb-1"),
            NOTHING,
            dataclasses.replace(FACTS, mariadb=True, server_uuid="mariadb-2", executed="0-1-90", purged="0-1-20"),
            "by gtid anywhere:4@4",
            id="server-id-changed",
        ),
        pytest.param(OLD, NOTHING, dataclasses.replace(BARE, logs=BARE.logs[2:]), "lost: binlog.000003 is not", id="purged"),
        pytest.param(dataclasses.replace(OLD, offset=950), NOTHING, BARE, "lost: binlog.000003:950 is after the end", id="reset"),
    ],
)  # fmt: skip
def test_failover_each_branch_of_the_start(
    cursor: Position | None, wanted: RequestedPosition, facts: ServerFacts, expected: str
) -> None:
    assert reported(decide(cursor, wanted, facts, EPOCHS)).startswith(expected)


def test_failover_a_start_within_the_ledgers_epoch_is_a_dump_of_it() -> None:
    decision = decide(None, RequestedPosition(earliest=True), FACTS)
    assert isinstance(decision, DumpStart)
    assert (decision.position.epoch, decision.position.server_uuid) == (1, A)
