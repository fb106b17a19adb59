"""Tests a host that is suspended immediately before a commit while another host takes over: what it writes then must not reach the table.

The other host is this process with another file of the run lock, as if another host had taken the lock, and with its own Spark sessions.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.orchestration.base.lake_settings import SESSIONS_FILE
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.maintain_run import Looked, MaintainRequest, run_maintenance
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.session import LakeSession
from tests.instance.fix_destination import running
from tests.spark.rows.test_repair_on_spark_equality import Broken
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.spark]
LOST = "does not hold the run lock"


class Late(Broken):
    """A pipeline whose host is suspended before the next commit of one of its operations."""

    @contextlib.contextmanager
    def standing_still(self, *statements: str) -> Iterator[None]:
        """Suspends the host before its next commit. During this time, another host merges the changes that `statements` make at the source.
        `merge_next` does the work of this other host.
        """
        commit, marker = LakeSession.commit, next(self._markers)
        stalled = list[str]()

        def late(session: LakeSession, name: str, statement: str) -> None:
            if not stalled and not self._merges:
                stalled.append(statement)
                (self.captured.directory / "run.lock").unlink()
                (self.captured.directory / SESSIONS_FILE).unlink()
                self.change(*statements, f"INSERT INTO {self.name} VALUES ({marker}, 'marker')")
                wait_for("the other host has merged them", lambda: marker in self.rows(), 180)
            commit(session, name, statement)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LakeSession, "commit", late)
            yield
        assert stalled, "nothing came to a commit"

    _merges = False
    _markers = itertools.count(900)

    def merge_next(self, engine: Engine, run: str = "") -> list[int]:
        batch = engine.hand_out(0.5)
        if batch is None:
            return []
        self._merges = True
        try:
            return super().merge_next(engine, run)
        finally:
            self._merges = False

    def maintain(self) -> Looked:
        ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
        return run_maintenance(ports, self.config, MaintainRequest(destination="shop", force=True), lambda _: None)


@pytest.mark.found
def test_ha_repair_backfill_and_maintenance_that_are_late_write_nothing(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 5: repair, backfill and maintenance checked the run lock only once. A host that was suspended after the check wrote rows that
    another host had deleted in the meantime.
    """
    pipeline = Late(tmp_path, mysql80, spark_server, merge="spark")
    numbers, path = pipeline.name, f"delta.`{pipeline.path}`"
    acts: dict[int, Callable[[], Any]] = {1: pipeline.repair, 2: lambda: pipeline.backfill(-5)}
    with running(pipeline.captured) as engine:
        for number in range(4):
            pipeline.insert(number, 10 * number)
        pipeline.merge(engine)
        pipeline.by_another_hand(f"DELETE FROM {path} WHERE n IN (1, 2)")
        with pipeline.streaming(engine):
            for number, act in acts.items():
                with (
                    pipeline.standing_still(f"DELETE FROM {numbers} WHERE n = {number}"),
                    pytest.raises(MergeFailedError, match=LOST),
                ):
                    act()
                assert number not in pipeline.rows(), "a row that was deleted came back"
            with pipeline.standing_still(f"DELETE FROM {numbers} WHERE n = 3"):
                (why,) = pipeline.maintain().failed.values()
            assert LOST in why
            assert "OPTIMIZE" not in {each["operation"] for each in deltalake.DeltaTable(pipeline.path).history()}
            assert pipeline.maintain().failed == {}
        assert 0 in pipeline.rows()
