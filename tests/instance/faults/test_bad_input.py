"""Tests what an engine reports when its disk is full, its source refuses it or its staged files are damaged.

Afterwards nothing is lost or duplicated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.cdc_engine.errors import ConfigurationError, MetaError, SluiceError, SourceCheckError, StagingError
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.spark_jobs.errors import StagedBatchError
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.fix_servers import ServerFactory
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

MEBIBYTE = 1 << 20


class SmallDisk:
    """A file system of 64 MiB in memory that contains a destination's files. It can be filled and freed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.filler = folder, folder / "filler"
        folder.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], check=False)
        if done.returncode:
            pytest.skip("only root may mount a small file system; tests/staging fills the disk at the file layer")

    def fill(self, left_bytes: int = 0) -> None:
        """Fills the disk until `left_bytes` are free and no temporary file is left. This includes the space that becomes free when a
        temporary file replaces an older file.
        """
        taken = 0
        with self.filler.open("wb") as file:
            while self._free() > left_bytes or any(self.folder.rglob("*.tmp")):
                if more := max(self._free() - left_bytes, 0):
                    os.posix_fallocate(file.fileno(), taken, more)
                    taken += more

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free

    def free(self) -> None:
        self.filler.unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)  # Spark may still hold a file open


@pytest.fixture
def captured(mysql80: DatabaseServer, tmp_path: Path) -> Captured:
    return Captured(tmp_path, mysql80)


@pytest.fixture
def disk(captured: Captured) -> Iterator[SmallDisk]:
    made = SmallDisk(captured.directory)
    yield made
    made.unmount()


@pytest.fixture
def engine(captured: Captured, disk: SmallDisk) -> Iterator[Engine]:
    captured.describe("ring: {bytes_max: 4194304}")
    made = Engine(captured.config, "shop")
    made.start()
    yield made
    made.stop()


def refused(engine: Engine) -> SluiceError | None:
    try:
        engine.hand_out(0.5)
    except SluiceError as error:
        return error
    return None


def test_a_disk_that_fills_up_while_staging_is_a_state_that_ends_with_it(
    captured: Captured, engine: Engine, disk: SmallDisk
) -> None:
    captured.insert(range(3))
    assert captured.take(engine, 3) == [0, 1, 2]
    disk.fill(left_bytes=MEBIBYTE)
    captured.insert(range(3, 6), filler_bytes=MEBIBYTE)
    for _ in range(2):
        error = wait_for("it cannot be staged", lambda: refused(engine))
        assert isinstance(error, StagingError)
        assert str(captured.directory / "staging") in str(error)
        assert "No space left on device" in str(error)
    assert (engine.status().state, engine.status().reason) == ("STAGING", str(error))
    assert engine.outstanding() is None
    disk.free()
    captured.insert([6])
    assert captured.take(engine, 4) == [3, 4, 5, 6]
    assert engine.status().state == "RUNNING"


def test_a_batch_that_a_full_disk_keeps_from_its_ack_waits_until_there_is_space(
    captured: Captured, engine: Engine, disk: SmallDisk
) -> None:
    captured.insert(range(2))
    batch = wait_for("it is handed out", lambda: engine.hand_out(0.5))
    numbers = captured.staged(batch)
    disk.fill()
    with pytest.raises(MetaError, match=str(captured.directory / "meta.json")):
        engine.ack(batch)
    assert engine.outstanding() == batch, "what could not be acked still waits"
    disk.free()
    engine.ack(batch)
    captured.insert([2])
    assert numbers + captured.take(engine, 3 - len(numbers)) == [0, 1, 2]


def test_a_disk_that_fills_up_while_a_huge_transaction_spills_is_a_state_that_ends_with_it(
    captured: Captured, engine: Engine, disk: SmallDisk
) -> None:
    captured.insert([0])
    assert captured.take(engine, 1) == [0]
    disk.fill(left_bytes=4 * MEBIBYTE)
    values = ", ".join(f"({n}, REPEAT('x', {MEBIBYTE}))" for n in range(1, 17))
    captured.run(f"INSERT INTO {captured.database}.numbers VALUES {values}")
    wait_for("the engine says so", lambda: engine.status().state == "STAGING")
    assert str(captured.directory / "spill") in engine.status().reason
    disk.free()
    assert captured.take(engine, 16) == list(range(1, 17))
    assert engine.status().state == "RUNNING"


def test_fault_a_full_disk_under_history_and_status_is_a_state_that_ends_with_it(
    captured: Captured, engine: Engine, disk: SmallDisk
) -> None:
    captured.insert([0])
    assert captured.take(engine, 1) == [0]
    captured.wait_until_running()
    disk.fill()
    captured.run(f"ALTER TABLE {captured.database}.numbers ADD COLUMN late INT")
    captured.run(f"INSERT INTO {captured.database}.numbers (n) VALUES (1)")
    wait_for("the engine says so", lambda: engine.status().state == "META")
    assert str(captured.directory) in engine.status().reason
    status = json.loads((captured.directory / "status.json").read_text())
    assert status["state"], "what cannot be replaced stays whole"
    disk.free()
    assert captured.take(engine, 1) == [1]
    wait_for("it is written again", lambda: _written_state(captured) == "RUNNING")


def test_fault_a_full_disk_under_a_prepared_transaction_is_a_state_that_ends_with_it(
    captured: Captured, engine: Engine, disk: SmallDisk
) -> None:
    captured.insert([0])
    assert captured.take(engine, 1) == [0]
    disk.fill()
    with captured.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("XA START 'full'")
        cursor.execute(f"INSERT INTO {captured.database}.numbers (n) VALUES (1)")
        cursor.execute("XA END 'full'")
        cursor.execute("XA PREPARE 'full'")
        wait_for("the engine says so", lambda: engine.status().state == "STAGING")
        assert str(captured.directory / "prepared") in engine.status().reason
        disk.free()
        cursor.execute("XA COMMIT 'full'")
    assert captured.take(engine, 1) == [1]
    assert engine.status().state == "RUNNING"


def _written_state(captured: Captured) -> str:
    return str(json.loads((captured.directory / "status.json").read_text())["state"])


def test_a_batch_whose_files_are_damaged_is_refused_and_staged_again(captured: Captured) -> None:
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.insert(range(5))
        for damage in (Path.unlink, lambda file: file.write_bytes(b"garbage")):
            batch = wait_for("a batch is staged", lambda: engine.hand_out(0.5))
            damage(next((captured.directory / batch.path).glob("*.parquet")))
            with pytest.raises(StagedBatchError):
                read_staged_batch(captured.directory / batch.path)
            engine.rollback(batch)
        assert captured.take(engine, 5) == list(range(5))
    finally:
        engine.stop()


def test_a_batch_whose_manifest_is_gone_is_staged_again_after_a_restart(captured: Captured) -> None:
    def started() -> Engine:
        engine = Engine(captured.config, "shop")
        engine.start()
        return engine

    first = started()
    captured.insert(range(3))
    batch: OutstandingBatch = wait_for("a batch is staged", lambda: first.hand_out(0.5))
    (captured.directory / batch.path / "manifest.json").unlink()
    (captured.directory / "staging" / "1-1-9-77.partial").mkdir()
    first.stop()
    second = started()
    try:
        assert not list((captured.directory / "staging").iterdir()), "what no record names is cleared away"
        assert captured.take(second, 3) == [0, 1, 2]
    finally:
        second.stop()


def test_a_source_that_refuses_is_a_sentence_and_continues_once_it_does_not(
    fresh_mysql80: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = Captured(tmp_path, fresh_mysql80())
    secret = "not-to-be-shown"  # noqa: S105
    captured.run(f"CREATE USER poor IDENTIFIED BY '{secret}'")
    monkeypatch.setenv("POOR_PASSWORD", "wrong")
    source = f"{{user: poor, password: $POOR_PASSWORD, port: {captured.server.port}}}"
    captured.describe(source=source)

    def refusal() -> SluiceError:
        with pytest.raises(SluiceError) as caught:
            Engine(captured.config, "shop").start()
        assert secret not in str(caught.value)
        return caught.value

    wrong = refusal()
    assert isinstance(wrong, ConfigurationError)
    assert "poor" in str(wrong)
    monkeypatch.setenv("POOR_PASSWORD", secret)
    lacking = refusal()
    assert isinstance(lacking, SourceCheckError)
    captured.run("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO poor")
    captured.run("SET GLOBAL binlog_format = STATEMENT")
    statement = refusal()
    assert isinstance(statement, SourceCheckError)
    assert "binlog_format" in str(statement)
    captured.run("SET GLOBAL binlog_format = ROW")
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.insert(range(3))
        assert captured.take(engine, 3) == [0, 1, 2]
    finally:
        engine.stop()
