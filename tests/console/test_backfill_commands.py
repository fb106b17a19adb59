"""Tests `sluice backfill`: the plan as a table and as JSON, exit codes, and messages for invalid arguments."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.cdc_engine.instance.rows.plan import BackfillTablePlan, Plan
from sluice.console.lake import rows
from sluice.console.main import app
from sluice.orchestration.run.rows.merged_run import interval_of_run
from sluice.orchestration.run.rows.request import BackfillRequest
from sluice.spark_jobs.tables.commit_record import CommittedInterval

READY = BackfillTablePlan(name="shop.orders", refused="", changes=12, reaches_back=True)
REFUSED = BackfillTablePlan(
    name="shop.loose", refused="it has no key", changes=3, reaches_back=False, statements=("ALTER",)
)
PLAN = Plan(
    destination="shop",
    from_time="2026-03-01T12:00:00Z",
    to_time="",
    earliest_time="2026-02-28T00:00:00Z",
    earliest_file="b.000003",
    begin="b.000004:120@1",
    end="b.000006:900@1",
    read_to="b.000006:900@1",
    cursor="b.000006:800@1",
    files=("b.000004", "b.000005", "b.000006"),
    bytes=3 << 20,
    sample_bytes=1 << 20,
    counted=False,
    changes=12,
    seconds=7.4,
    tables=(READY,),
)


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the conf/ of a destination that has not begun."""
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "sluice.yaml").write_text(f"data_dir: {tmp_path}/data\n")
    (tmp_path / "conf" / "destinations" / "shop.yaml").write_text("source: {user: root}\n")


def test_the_plan_of_a_backfill_is_shown_with_what_is_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "backfill_plan", lambda *_: dataclasses.replace(PLAN, tables=(READY, REFUSED)))
    answer = CliRunner().invoke(app, ["backfill", "shop", "--from", "-10m", "--plan"])
    assert answer.exit_code == 1, "a table is refused"
    for words in (
        "earliest time at which a backfill can start: 2026-02-28T00:00:00Z (binlog file b.000003)",
        "3.0 MiB of binlog, 3 files (b.000004 to b.000006)",
        "changes: 12 (estimated from the first 1.0 MiB); time: about 7 s",
        "~12",
        "reaches back",
        "begins later",
        "it has no key",
    ):
        assert words in answer.stdout


def test_the_plan_of_a_backfill_is_there_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "backfill_plan", lambda *_: PLAN)
    answer = CliRunner().invoke(app, ["backfill", "shop", "--from", "-10m", "--plan", "--json"])
    assert answer.exit_code == 0, answer.exception
    reported = json.loads(answer.stdout)
    assert (reported["earliest_time"], reported["bytes"], reported["files"]) == (
        PLAN.earliest_time,
        PLAN.bytes,
        list(PLAN.files),
    )
    assert reported["tables"][0]["name"] == "shop.orders"
    assert reported["problems"] == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["shop", "--from", "noon"], ConfigurationError),
        (["shop", "--from", "2026-03-01T12:00:00"], ConfigurationError),
        (["shop", "--from", "-10m", "--to", "-20m"], ConfigurationError),
        (["shoe", "--from", "-10m"], ConfigurationError),
        (["shop", "--from", "-10m", "--plan", "--to", "-20m"], ConfigurationError),
    ],
)
def test_arguments_of_a_backfill_that_cannot_be_parsed_are_refused(
    arguments: list[str], error: type[Exception]
) -> None:
    answer = CliRunner().invoke(app, ["backfill", *arguments])
    assert isinstance(answer.exception, error), answer.output
    assert not isinstance(answer.exception, ActRefusedError)


def merged(run: str, first_us: int, last_us: int, **more: object) -> CommittedInterval:
    made = CommittedInterval(
        version_before=1, version=2, operation="MERGE", committed_at_us=9, table="shop.orders", run=run
    )
    changed = {"start": {"file": "b.000001"}, "end": {"file": "b.000001"}, **more}
    return dataclasses.replace(made, first_commit_time_us=first_us, last_commit_time_us=last_us, **changed)  # type: ignore[arg-type]


@pytest.mark.seeds
def test_a_run_is_the_interval_of_all_its_batches_in_the_tables_that_it_merged() -> None:
    histories = {
        "shop.orders": [merged("one", 50, 60), merged("two", 30, 40), merged("two", 20, 30)],
        "shop.customers": [merged("two", 25, 45)],
        "shop.other": [merged("one", 1, 2)],
    }
    found = interval_of_run(histories, "two")
    assert (found.from_us, found.to_us, found.tables) == (20, 46, ("shop.customers", "shop.orders"))
    with pytest.raises(ConfigurationError, match="no Delta log of the requested tables has a batch of the run 'three'"):
        interval_of_run(histories, "three")


@pytest.mark.seeds
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--run", "x", "--from", "-1h"],
        ["--run", "x", "--to", "-1h"],
        ["--gtids", "x", "--from", "-1h"],
        ["--gtids", "x", "--to", "-1h"],
        ["--gtids", "x", "--run", "x"],
        ["--gtids", "x", "--into", "past.orders", "--tables", "shop.orders"],
    ],
)
def test_an_interval_is_named_by_times_or_by_a_run_or_by_gtids(words: list[str]) -> None:
    answer = CliRunner().invoke(app, ["backfill", "shop", *words])
    assert answer.exit_code == 2


@pytest.mark.seeds
def test_the_plan_of_gtids_names_them_and_says_what_its_count_includes(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[BackfillRequest] = []

    def plan(_: object, request: BackfillRequest) -> Plan:
        requested.append(request)
        return dataclasses.replace(PLAN, gtids=request.gtids, to_time="2026-03-01T12:05:00Z")

    monkeypatch.setattr(rows, "backfill_plan", plan)
    answer = CliRunner().invoke(app, ["backfill", "shop", "--gtids", "0-1-5,0-1-9", "--plan"])
    assert answer.exit_code == 0, answer.exception
    assert "shop: changes of 0-1-5,0-1-9, from 2026-03-01T12:00:00Z to 2026-03-01T12:05:00Z" in answer.stdout
    assert "including changes of other transactions between them" in answer.stdout
    assert str(requested[0]) == "shop: changes of the transactions 0-1-5,0-1-9"


@pytest.mark.seeds
def test_a_run_of_a_destination_without_merged_tables_is_refused() -> None:
    answer = CliRunner().invoke(app, ["backfill", "shop", "--run", "x"])
    assert isinstance(answer.exception, ConfigurationError)
    assert "no Delta log of the requested tables has a batch of the run" in str(answer.exception)


@pytest.mark.seeds
def test_an_archive_and_its_schemas_are_found_from_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[BackfillRequest] = []
    monkeypatch.chdir(tmp_path)

    def plan(_config: SluiceConfig, request: BackfillRequest) -> Plan:
        seen.append(request)
        return PLAN

    monkeypatch.setattr(rows, "backfill_plan", plan)
    begin = ["backfill", "shop", "--from", "-10m", "--plan"]
    assert CliRunner().invoke(app, [*begin, "--archive", "binlogs", "--schemas", "dump.sql"]).exit_code == 0
    assert CliRunner().invoke(app, [*begin, "--archive", "s3://bucket/logs"]).exit_code == 0
    assert [(each.archive, each.schemas) for each in seen] == [
        (str(tmp_path / "binlogs"), tmp_path / "dump.sql"),
        ("s3://bucket/logs", None),
    ]
    alone = CliRunner().invoke(app, [*begin, "--schemas", "dump.sql"])
    assert isinstance(alone.exception, ConfigurationError)
    assert "name the archive too" in str(alone.exception)
    secret = CliRunner().invoke(app, [*begin, "--archive", "s3://key:word@bucket/logs"])
    assert isinstance(secret.exception, ConfigurationError)
    assert "must not contain credentials" in str(secret.exception)
    assert "word@" not in str(secret.exception)
