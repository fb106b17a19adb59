"""Tests when a destination counts as caught up, and what ends the wait. The files are imitated. tests/acceptance uses real ones."""

from __future__ import annotations

import dataclasses
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cdc_engine.acts.catch_up import CatchUpEnd, Progress, Waiting, missing, read_progress, wait_until_caught_up
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import Holder
from sluice.cdc_engine.errors import ActRefusedError, EngineStoppedError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.keeping.launcher import get_or_start
from sluice.cdc_engine.keeping.served import ONLY, why_not_served
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.snapshot.record import SnapshotRecord, SourceEnd
from sluice.cdc_engine.states import SnapshotState
from sluice.console.acts.catch_up import LOCK_FILE, CaughtUp, running
from sluice.console.main import app
from sluice.console.toolchain.errors import SetupError

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
END = CatchUpEnd(end=SourceEnd(file="b.000007", offset=500, executed=f"{UUID}:1-9"), server_uuid=UUID)
DONE = Progress(
    state="RUNNING", cursor=Position(epoch=1, file="b.000007", offset=500, gtid_set=f"{UUID}:1-9", server_uuid=UUID)
)
SNAPSHOT = SnapshotRecord(snapshot_id="x", database="shop", table="t", state=SnapshotState.READING)


def at(**changed: object) -> Progress:
    assert DONE.cursor is not None
    return dataclasses.replace(DONE, cursor=dataclasses.replace(DONE.cursor, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("progress", "lacks"),
    [
        (DONE, ""),
        (at(offset=450, gtid_set=f"{UUID}:1-8"), "acked up to b.000007:450@1; the wait ends at b.000007:500"),
        (at(offset=450), ""),  # An event outside any transaction follows.
        # A RESET began the file names again, so their numbers cannot be compared.
        (at(file="b.000900", gtid_set=f"{UUID}:1-8"), "acked up to b.000900:500@1; the wait ends at b.000007:500"),
        (at(file="b.000009", server_uuid="other", gtid_set=""), "acked up to b.000009:500@1; the wait ends at b.000007:500"),
        (at(file="b.000002", server_uuid="other"), ""),
        (dataclasses.replace(DONE, ticked=False), "the engine has had no tick since the wait began"),
        (dataclasses.replace(DONE, state=""), "the engine has written no status yet, or has stopped writing it"),
        (dataclasses.replace(DONE, state="STARTING"), "the engine is STARTING"),
        (dataclasses.replace(DONE, state="RECONNECTING", reason="gone"), "the engine is RECONNECTING: gone"),
        (dataclasses.replace(DONE, cursor=None), "nothing is acked yet; the wait ends at b.000007:500"),
        (dataclasses.replace(DONE, snapshots=(SNAPSHOT,)), "snapshots are reading rows: shop.t READING (0 of about 0 rows)"),
    ],
)  # fmt: skip
def test_what_is_missing_is_decided_by_acks_and_snapshots(progress: Progress, lacks: str) -> None:
    assert missing(progress, END) == lacks


def waiting(looks: Iterator[Progress], said: list[str], seconds_max: float = 0.0) -> Waiting:
    return Waiting(
        destination="shop", look=lambda: next(looks), say=said.append, pause=lambda: None, seconds_max=seconds_max
    )


def test_the_wait_ends_with_the_last_ack_and_reports_each_reason_once() -> None:
    said: list[str] = []
    behind = dataclasses.replace(DONE, ticked=False)
    progress = wait_until_caught_up(waiting(iter([behind, behind, DONE]), said), END)
    assert (progress, said) == (DONE, ["the engine has had no tick since the wait began"])


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        (dataclasses.replace(DONE, snapshots=(dataclasses.replace(SNAPSHOT, paused=True),)), "snapshot resume shop shop.t"),
        (
            dataclasses.replace(DONE, snapshots=(dataclasses.replace(SNAPSHOT, state=SnapshotState.FAILED, reason="no grant"),)),
            "the snapshot of shop.t failed: no grant",
        ),
    ],
)  # fmt: skip
def test_a_snapshot_that_cannot_end_ends_the_wait(progress: Progress, why: str) -> None:
    with pytest.raises(ActRefusedError, match=why):
        wait_until_caught_up(waiting(iter([progress]), []), END)


def test_an_engine_that_stays_ended_and_a_limit_of_time_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 25))
    monkeypatch.setattr("sluice.cdc_engine.acts.catch_up.time.monotonic", lambda: float(next(now)))
    lost = dataclasses.replace(DONE, cursor=None, state="POSITION_LOST", reason="the source has purged b.000001")

    def forever(progress: Progress) -> Callable[[], Progress]:
        return lambda: progress

    for progress, seconds_max, why in (
        (lost, 0.0, "shop is POSITION_LOST: the source has purged b.000001"),
        (dataclasses.replace(DONE, state=""), 0.0, "has written no status for 300 s"),
        (dataclasses.replace(DONE, ticked=False), 90.0, "has not caught up within 90 s: the engine has had no tick"),
    ):
        with pytest.raises(ActRefusedError, match=why):
            wait_until_caught_up(waiting(iter(forever(progress), None), [], seconds_max), END)


def test_a_table_counts_as_stopped_only_if_the_engine_does_not_re_snapshot_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr("sluice.cdc_engine.acts.catch_up.time.monotonic", lambda: float(next(now)))
    stopped = dataclasses.replace(DONE, stopped=("shop.t",))
    reading, said = dataclasses.replace(DONE, snapshots=(SNAPSHOT,)), list[str]()
    assert wait_until_caught_up(waiting(iter([stopped, stopped, reading, DONE]), said), END) == DONE
    assert said[0] == "the engine may re-snapshot the stopped tables shop.t by itself"
    looks = iter([stopped] * 10)
    assert wait_until_caught_up(waiting(looks, []), END) == stopped
    assert len(list(looks)) == 6, "it is certain after 30 s, with a look each 10 s"


@pytest.mark.parametrize(("host", "state"), [("another", "RUNNING"), (socket.gethostname(), "")])
def test_an_engine_on_another_host_writes_no_status_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, state: str
) -> None:
    holder = Holder(pid=1, host=host, since=0.0, token=1, held=True)
    monkeypatch.setattr("sluice.cdc_engine.acts.catch_up.lease_holder", lambda _: holder)
    assert read_progress(tmp_path, time.time()).state == state


@pytest.mark.parametrize(("age_seconds", "state"), [(1.0, "RUNNING"), (16.0, "")])
def test_the_status_of_an_engine_that_died_does_not_count(tmp_path: Path, age_seconds: float, state: str) -> None:
    written_us = int((time.time() - age_seconds) * 1e6)
    status = {"state": "RUNNING", "updated_at_us": written_us, "ticked_at_us": written_us}
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert read_progress(tmp_path, time.time() - 60).state == state


def test_one_catch_up_at_a_time_and_no_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SluiceConfig(data_dir=tmp_path / "data", lake=str(tmp_path / "lake"))
    lock = FileLock(config.data_dir / LOCK_FILE)
    assert lock.try_acquire()
    with pytest.raises(SetupError, match="Another `sluice catch-up` uses"), running(config, tmp_path, ["shop"], print):
        pass
    monkeypatch.setattr("sluice.console.main.config_now", lambda: config)
    answer = CliRunner().invoke(app, ["up"])
    assert "will stop the processes that it started" in str(answer.exception)


def test_only_the_named_destinations_are_started_and_conf_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_served("idle") == ""
    monkeypatch.setenv(ONLY, "shop, other")
    assert why_not_served("shop") == ""
    with pytest.raises(
        EngineStoppedError, match="idle is not started: this process runs for `sluice catch-up` of other, shop only"
    ):
        get_or_start("idle")


def test_a_stopped_table_is_named_and_gives_exit_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [CaughtUp(destination="shop", end=END, seconds=3.0, stopped=("shop.t",))]
    assert "except the changes of the stopped tables shop.t after their stops" in found[0].sentence
    (tmp_path / "destinations").mkdir()
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path))
    for tables, code in ((("shop.t",), 1), ((), 0)):
        found = [dataclasses.replace(found[0], stopped=tables)]
        monkeypatch.setattr("sluice.console.acts.catch_up.catch_up", lambda *_, found=found, **__: found)
        answer = CliRunner().invoke(app, ["catch-up", "--json"])
        assert answer.exit_code == code
        assert json.loads(answer.stdout)["destinations"][0]["stopped_tables"] == list(tables)
