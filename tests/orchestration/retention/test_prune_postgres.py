"""Tests that old runs and events are removed from a Dagster storage in Postgres as from SQLite, and that Postgres
uses their space again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as db
import yaml
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable

from benchmarks.servers.postgres import PostgresServer
from sluice.orchestration.retention import stored_runs
from sluice.orchestration.retention.prune import Pruned, prune
from sluice.orchestration.retention.rules import RunRetention
from tests.orchestration.retention.fix_old_runs import (
    DAY,
    ENGINE,
    ITEMS,
    ORDERS,
    age_runless_events,
    merge_job,
    open_instance,
    storages,
)

pytestmark = [pytest.mark.servers, pytest.mark.scale]
A_DAY = RunRetention(keep_hours=24.0)
RUNS, KEPT = 12, 3


@pytest.fixture
def instance(tmp_path: Path, postgres16: PostgresServer) -> Iterator[dg.DagsterInstance]:
    url = db.make_url(postgres16.url).set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)
    (tmp_path / "dagster.yaml").write_text(yaml.dump({"storage": {"postgres": {"postgres_url": url}}}))
    with open_instance(tmp_path) as made:
        yield made
        made.wipe()


def counted(instance: dg.DagsterInstance) -> tuple[int, int, int]:
    """Returns the number of runs, of events and of check results."""
    _, events = storages(instance)
    with events.index_connection() as connection:
        found = [
            connection.execute(db.select(db.func.count()).select_from(table)).scalar_one()
            for table in (SqlEventLogStorageTable, AssetCheckExecutionsTable)
        ]
    return len(instance.get_runs()), found[0], found[1]


def test_postgres_keeps_the_newest_of_each_asset_and_the_newest_runs(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_runs, "NEWEST_RUNS_KEPT", KEPT)
    job = merge_job((ORDERS, ITEMS))
    for _ in range(RUNS):
        assert job.execute_in_process(instance=instance).success
    for _ in range(KEPT):
        assert merge_job((ORDERS,)).execute_in_process(instance=instance).success
    for _ in range(RUNS):
        instance.report_runless_asset_event(dg.AssetObservation(ENGINE, metadata={"lag_seconds": 1.0}))
    age_runless_events(instance)
    before, later = counted(instance), time.time() + 2 * DAY
    made = prune(instance, A_DAY, label="", destinations=["shop"], clock=lambda: later)
    assert (made.runs, made.files, made.bytes_given_back) == (RUNS, 0, 0), "Postgres has no files of runs"
    runs, events, results = counted(instance)
    assert runs == before[0] - RUNS == KEPT
    assert (events, results) == (before[1] - made.events, before[2] - made.check_results)
    for key in (ORDERS, ITEMS):
        assert instance.fetch_materializations(key, limit=RUNS).records, "the newest stays, also without its run"
    assert len(instance.fetch_materializations(ITEMS, limit=RUNS).records) == 1
    assert len(instance.fetch_observations(ENGINE, limit=RUNS).records) == 1
    assert results == 1
    assert prune(instance, A_DAY, label="", destinations=["shop"], clock=lambda: later) == Pruned(
        runs=0, files=0, events=0, check_results=0, snapshots=0, bytes_given_back=0
    )
