"""Tests events that a run stores together: they share a transaction of each file of Dagster's storage, and none of them is lost."""

# There is no `from __future__ import annotations`, because Dagster inspects the type of `context` at runtime.

import math
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.storage.event_log import SqliteEventLogStorage

from sluice.console.stack.dagster_storage import with_storage
from sluice.orchestration import storage
from sluice.orchestration.base.stored_together import stored_together
from sluice.orchestration.run import merge_reports
from sluice.orchestration.run.merge_reports import MergeReports
from sluice.orchestration.storage import KeptFile

TABLES = 20
LIMIT_SECONDS = 30.0
COMMON = "index"
Reports = Callable[[dg.OpExecutionContext], None]


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setattr(storage, "JOINED_SECONDS_MAX", math.inf)
    (tmp_path / "dagster.yaml").write_text(with_storage("telemetry: {enabled: false}", tmp_path))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the list of the transactions that were begun. Each element is the name of a storage file without its ending."""
    begun, begin = list[str](), KeptFile.begin

    def counted(self: KeptFile) -> Any:
        begun.append(Path(self._path).stem)
        return begin(self)

    monkeypatch.setattr(KeptFile, "begin", counted)
    return begun


def run_of(instance: dg.DagsterInstance, reports: Reports) -> str:
    """Executes a run whose only step calls `reports`, and returns the run's id."""

    @dg.op
    def step(context: dg.OpExecutionContext) -> None:
        reports(context)

    @dg.job
    def job() -> None:
        step()

    return job.execute_in_process(instance=instance, raise_on_error=False).run_id


def table(number: int) -> dg.AssetKey:
    return dg.AssetKey(["shop", f"t{number:02}"])


def report(context: dg.OpExecutionContext, number: int) -> None:
    """Reports what a run reports about a table: a line in the log, a materialization with a data version, and the result of a check."""
    key = table(number)
    context.log.info("table %s", number)
    context.log_event(dg.AssetMaterialization(key, tags={DATA_VERSION_TAG: str(number)}))
    context.log_event(dg.AssetCheckEvaluation(asset_key=key, check_name="flowing", passed=True))  # type: ignore[arg-type]


def reported(instance: dg.DagsterInstance, run: str) -> list[str]:
    """Returns what the log of a run has about its tables, in the log's order."""
    found = []
    for each in instance.all_logs(run):
        event = each.dagster_event
        if event is None:
            found.append(each.user_message)
        elif event.is_step_materialization:
            found.append(f"made {event.asset_key}")
        elif event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            found.append(f"checked {event.asset_check_evaluation_data.asset_key}")
    return found


def expected(numbers: range) -> list[str]:
    return [text for each in numbers for text in (f"table {each}", f"made {table(each)}", f"checked {table(each)}")]


@pytest.mark.scale
def test_what_a_run_reports_together_is_one_transaction_of_each_file(
    instance: dg.DagsterInstance, transactions: list[str]
) -> None:
    """Without `stored_together`, each table costs two transactions in the file of the run, and four in the file that all runs share."""
    seen = list[list[str]]()

    def reports(context: dg.OpExecutionContext) -> None:
        transactions.clear()
        with stored_together(context.instance):
            for number in range(TABLES):
                report(context, number)
        seen.append(sorted(transactions))

    run = run_of(instance, reports)
    assert seen == [sorted([COMMON, run])]
    assert reported(instance, run) == expected(range(TABLES))
    records = instance.get_asset_records([table(each) for each in range(TABLES)])
    assert {each.asset_entry.last_run_id for each in records} == {run}
    check = dg.AssetCheckKey(table(7), "flowing")
    assert instance.event_log_storage.get_latest_asset_check_execution_by_key([check])[check].run_id == run


def test_what_was_reported_before_an_error_stays(instance: dg.DagsterInstance) -> None:
    def reports(context: dg.OpExecutionContext) -> None:
        with stored_together(context.instance):
            report(context, 0)
            raise dg.Failure("the next table cannot be shown")

    run = run_of(instance, reports)
    assert reported(instance, run) == expected(range(1))
    stored = instance.get_run_by_id(run)
    assert stored is not None
    assert stored.status == dg.DagsterRunStatus.FAILURE


def test_fault_events_of_a_block_that_is_never_left_are_stored_when_the_storage_is_closed(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    stored_together(instance).__enter__()
    instance.report_runless_asset_event(dg.AssetObservation(table(0)))
    instance.event_log_storage.dispose()
    with dg.DagsterInstance.from_config(str(tmp_path)) as other:
        assert len(other.fetch_observations(table(0), limit=9).records) == 1


def test_others_see_the_events_after_a_moment(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes that write to the shared file wait until the transaction ends. So a transaction is committed if an event is stored
    more than JOINED_SECONDS_MAX after its first event.
    """
    monkeypatch.setattr(storage, "JOINED_SECONDS_MAX", -1.0)
    seen = list[int]()

    def reports(context: dg.OpExecutionContext) -> None:
        with stored_together(context.instance):
            for number in range(3):
                report(context, number)
                seen.append(_stored(tmp_path))

    run = run_of(instance, reports)
    assert seen == [1, 2, 3]
    assert reported(instance, run) == expected(range(3))


@pytest.mark.found
def test_no_run_waits_for_events_while_the_lake_is_read(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 51: a run counted quarantined values in the lake within a transaction. A slow object store stopped all other runs."""
    seen = list[int]()

    def count(*_: object) -> None:
        seen.append(_stored(tmp_path))
        raise dg.Failure("the lake does not answer")

    monkeypatch.setattr(merge_reports, "quarantine_evaluation", count)

    def reports(context: dg.OpExecutionContext) -> None:
        of: Any = SimpleNamespace(_context=context, _tables=SimpleNamespace(config=None, destination=""))
        with stored_together(context.instance):
            for number in range(2):
                report(context, number)
                MergeReports.quarantine(of, "shop.t")

    run_of(instance, reports)
    assert seen == [1, 2]


def _stored(home: Path) -> int:
    (file,) = home.rglob(f"{COMMON}.db")
    database = sqlite3.connect(file)
    try:
        return int(database.execute("SELECT count(*) FROM event_logs WHERE asset_key IS NOT NULL").fetchone()[0])
    finally:
        database.close()


def test_another_thread_waits_and_then_stores_its_events(instance: dg.DagsterInstance) -> None:
    begun = threading.Event()

    def store() -> None:
        begun.set()
        instance.report_runless_asset_event(dg.AssetObservation(table(99)))

    def reports(context: dg.OpExecutionContext) -> None:
        other = threading.Thread(target=store)
        with stored_together(context.instance):
            report(context, 0)
            other.start()
            assert begun.wait(LIMIT_SECONDS)
            report(context, 1)
        other.join(LIMIT_SECONDS)
        assert not other.is_alive()

    run = run_of(instance, reports)
    assert reported(instance, run) == expected(range(2))
    assert len(instance.fetch_observations(table(99), limit=9).records) == 1


def test_a_storage_of_dagster_stores_each_event_at_once(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as dagsters, stored_together(dagsters):
        assert run_of(dagsters, lambda context: report(context, 0))


@pytest.mark.scale
def test_dagster_looks_for_a_table_or_column_of_its_storage_once(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster itself opens the shared file for each materialization and each check, to look for tables that always exist. Sluice's storage
    looks only once.
    """
    looked = list[str]()
    for name in ("has_table", "_has_asset_key_col_on_connection"):
        real = getattr(SqliteEventLogStorage, name)

        def look(*given: Any, real: Any = real) -> Any:
            looked.append(given[-1])
            return real(*given)

        monkeypatch.setattr(SqliteEventLogStorage, name, look)

    def reports(context: dg.OpExecutionContext) -> None:
        for number in range(TABLES):
            report(context, number)

    run_of(instance, reports)
    assert looked
    assert len(looked) == len(set(looked))
