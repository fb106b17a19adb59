"""Tests swaps, in which a past state replaces its live table: which swaps are refused, and that the stream continues in the table. Spark is
not needed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import yaml
from deltalake.schema import PrimitiveType
from typer.testing import CliRunner

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.position import Position
from sluice.console.main import app
from sluice.orchestration.base.ports import MergeFailedError, Ports
from sluice.orchestration.run.rows.swap import SwapRequest, plan_swap, run_swap
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.spark_jobs.backfill.into import PastState, build
from sluice.spark_jobs.backfill.swap import PastTable, refusal
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.table_owner import Owner
from sluice.spark_jobs.tables.commit_record import CommittedInterval, PublicationRecord, read_commit
from tests.fix_ledgers import FileLedger
from tests.spark.side_tables.fix_side_tables import NAME, LoggedTable, changes, delete, insert, update
from tests.spark.staged import LEDGER_ID

PAST = "past.orders"
OWNER = Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME)
COLUMNS = (("id", "bigint"), ("note", "string"))
POSITION = Position(epoch=0, file="b.000000", offset=40 * 16)  # An order key counts units of 16 bytes.


class Shop(LoggedTable):
    """A live table with a past state next to it, and a conf/ for both."""

    @property
    def config(self) -> SluiceConfig:
        return load_config(self.folder / "conf")

    def begin(self) -> Shop:
        (self.folder / "conf" / "destinations").mkdir(parents=True)
        reported = {"data_dir": str(self.folder / "data"), "lake": str(self.folder / "lake")}
        (self.folder / "conf" / "sluice.yaml").write_text(yaml.safe_dump(reported))
        (self.folder / "conf" / "destinations" / "shop.yaml").write_text("source: {user: u}\n")
        directory = self.config.destination_dir("shop")
        FileLedger(directory).update(
            lambda ledger: dataclasses.replace(ledger, ledger_id=LEDGER_ID).set_cursor(POSITION)
        )
        return self

    def rebuild(self, version: int, up_to: Position = POSITION, ledger: str = LEDGER_ID) -> None:
        """Builds a past state from `version`, as `backfill --into` does if no changes follow that version."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        build(
            PastState(
                name=NAME,
                base=deltalake.DeltaTable(self.target.path, version=version),
                images=None,
                key=(),
                path=self.config.table_path("shop", *PAST.split(".")),
                description="as it was",
                folder=work,
                record={"past_of": NAME, "ledger": ledger, "version": version, "up_to": up_to.to_json()},
                storage_options={},
            ),
            BY_HAND,
        )

    def swap(self) -> int:
        ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
        return run_swap(ports, self.config, SwapRequest(destination="shop", table=NAME, rebuilt=PAST), lambda _: None)

    def live(self) -> list[tuple[Any, ...]]:
        return self.rows(self.target.path, "id, note", "id")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Sets up three rows. Another program then removes one row and damages another. The state before that is rebuilt."""
    made = Shop(tmp_path).begin()
    made.merge(made.stage(changes([insert(1, 16, "a"), insert(2, 16, "b"), insert(3, 16, "c")])))
    log = deltalake.DeltaTable(made.target.path)
    good = log.version()
    log.delete("id = 2")
    log.update(updates={"note": "'wrong'"}, predicate="id = 3")
    made.rebuild(good)
    return made


def test_a_swap_gives_the_rows_and_leaves_the_table_what_it_is_backfill(shop: Shop) -> None:
    before = deltalake.DeltaTable(shop.target.path)
    request = SwapRequest(destination="shop", table=NAME, rebuilt=PAST)
    plan = plan_swap(shop.config, request)
    assert (plan.refused, plan.rows_before, plan.rows_after, plan.version) == ("", 2, 3, before.version())
    assert shop.live() == [(1, "a"), (3, "wrong")], "a plan changes nothing"
    assert shop.swap() == before.version() + 1
    assert shop.live() == [(1, "a"), (2, "b"), (3, "c")]
    after = deltalake.DeltaTable(shop.target.path)
    assert (after.metadata().id, after.metadata().configuration) == (
        before.metadata().id,
        before.metadata().configuration,
    )
    commit = read_commit(after.history(1)[0])
    reported = (commit.ours, commit.kind, commit.backfill.endswith("past/orders"), commit.streamed)
    assert reported == (True, "swap", True, False), "as `sluice history` tells it"
    directory = shop.config.destination_dir("shop")
    assert destination_files.LakeTables(directory).get(NAME) == (str(after.metadata().id), after.version())
    shop.merge(shop.stage(changes([update(1, 16, "again"), insert(2, 16, "again")])))
    assert shop.live() == [(1, "a"), (2, "b"), (3, "c")], "what the stream had brought comes no second time"
    shop.merge(shop.stage(changes([update(1, 32, "A"), delete(2, 48), insert(4, 64, "d")])))
    assert shop.live() == [(1, "A"), (3, "c"), (4, "d")]


@pytest.mark.found
def test_a_swap_takes_columns_with_quotation_marks_in_their_names(tmp_path: Path) -> None:
    """Defect 1226: `lake swap` failed with an error of SQL if a column's name had a quotation mark."""
    shop = Shop(tmp_path).begin()
    shop.merge(shop.stage(changes([insert(1, 16, "a"), insert(2, 16, "b")])))
    log = deltalake.DeltaTable(shop.target.path)
    log.alter.add_columns(deltalake.Field('5" disks', PrimitiveType("long")))
    log.update(updates={'"5"" disks"': "id"})
    shop.rebuild(log.version())
    log.delete("id = 2")
    shop.swap()
    assert shop.rows(shop.target.path, 'id, "5"" disks"', "id") == [(1, 1), (2, 2)]


def test_a_swap_keeps_the_constraints_of_the_table_and_refuses_rows_that_violate_them_backfill(shop: Shop) -> None:
    deltalake.DeltaTable(shop.target.path).alter.add_constraint({"noted": "note <> 'b'"})
    rows = shop.live()
    with pytest.raises(MergeFailedError, match=r"1 rows failed validation check.*; correct the cause"):
        shop.swap()
    assert shop.live() == rows
    deltalake.DeltaTable(shop.target.path).alter.drop_constraint("noted")
    deltalake.DeltaTable(shop.target.path).alter.add_constraint({"known": "note <> 'x'"})
    shop.swap()
    assert shop.live() == [(1, "a"), (2, "b"), (3, "c")]
    assert deltalake.DeltaTable(shop.target.path).metadata().configuration["delta.constraints.known"] == "note != 'x'"


def test_a_swap_that_lacks_what_came_since_is_refused_backfill(shop: Shop) -> None:
    shop.merge(shop.stage(changes([insert(9, POSITION.order_key + 16, "new")])))
    version, rows = deltalake.DeltaTable(shop.target.path).version(), shop.live()
    with pytest.raises(
        MergeFailedError,
        match=r"1 batches with 1 changes were merged into the table after the time of the past state.*up to the present time",
    ):
        shop.swap()
    assert (deltalake.DeltaTable(shop.target.path).version(), shop.live()) == (version, rows)


def test_a_crash_before_the_record_leaves_a_table_that_continues_and_can_be_swapped_again_backfill(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(destination_files.LakeTables, "keep", crash)
        with pytest.raises(KeyboardInterrupt):
            shop.swap()
    assert shop.live() == [(1, "a"), (2, "b"), (3, "c")]
    shop.swap()
    shop.merge(shop.stage(changes([update(1, 32, "A")])))
    assert shop.live() == [(1, "A"), (2, "b"), (3, "c")]


@pytest.mark.seeds
@pytest.mark.parametrize("by_us", [True, False])
def test_a_swap_after_a_conversion_that_was_killed_before_its_record_is_not_taken_for_another_table_backfill(
    shop: Shop, *, by_us: bool
) -> None:
    """A conversion replaces the table by a copy of itself, with another id."""
    before = deltalake.DeltaTable(shop.target.path)
    directory = shop.config.destination_dir("shop")
    destination_files.LakeTables(directory).keep({NAME: (str(before.metadata().id), before.version())})
    rows = pa.table(deltalake.QueryBuilder().register("t", before).execute("SELECT * FROM t").read_all())
    ours = {"sluice": 1, "ledger": LEDGER_ID, "table": NAME, "destination": "shop"} if by_us else {}
    commit = deltalake.CommitProperties(custom_metadata={"userMetadata": json.dumps(ours)})
    deltalake.DeltaTable.create(
        shop.target.path,
        before.schema(),
        mode="overwrite",
        raise_if_key_not_exists=False,
        configuration=before.metadata().configuration,
        commit_properties=commit,
    )
    deltalake.write_deltalake(shop.target.path, rows, mode="append", commit_properties=commit)
    made = deltalake.DeltaTable(shop.target.path)
    assert made.metadata().id != before.metadata().id
    if not by_us:
        with pytest.raises(MergeFailedError, match="is not the table that the last run left"):
            shop.swap()
        return
    shop.swap()
    assert shop.live() == [(1, "a"), (2, "b"), (3, "c")]
    assert destination_files.LakeTables(directory).get(NAME) == (str(made.metadata().id), made.version() + 1)


def test_another_hand_that_is_faster_costs_the_swap_and_nothing_else_backfill(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.spark_jobs.backfill import swap as swapping  # noqa: PLC0415

    record = swapping._record

    def slow(*given: Any) -> str:
        deltalake.DeltaTable(shop.target.path).delete("id = 1")
        return record(*given)

    monkeypatch.setattr(swapping, "_record", slow)
    with pytest.raises(MergeFailedError, match="run the swap again"):
        shop.swap()
    assert shop.live() == [(3, "wrong")]
    monkeypatch.undo()
    shop.swap()
    assert shop.live() == [(1, "a"), (2, "b"), (3, "c")]


def test_the_command_plans_refuses_and_swaps_backfill(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CONF", str(shop.folder / "conf"))
    words = ["lake", "swap", "shop", NAME, "--with", PAST, "--json"]

    def said(*more: str, code: int) -> Any:
        answer = CliRunner().invoke(app, [*words, *more])
        assert answer.exit_code == code, (answer.exception, answer.output)
        return json.loads(answer.stdout)

    assert said("--plan", code=0)["refused"] == ""
    words[5] = "past.none"
    assert "not a past state of shop.orders" in said("--yes", code=1)["refused"]
    words[5] = PAST
    assert said("--yes", code=0)["version_after"] == deltalake.DeltaTable(shop.target.path).version()
    assert shop.live() == [(1, "a"), (2, "b"), (3, "c")]


def interval(version: int, key: int, **more: Any) -> CommittedInterval:
    reported: dict[str, Any] = {
        "table": NAME,
        "ledger": LEDGER_ID,
        "version_before": version - 1,
        "version": version,
        "inserts": 1,
    } | more
    return CommittedInterval(operation="MERGE", committed_at_us=0, last_order_key=key, **reported)


GOOD = PastTable(
    path="/lake/past", of=NAME, ledger=LEDGER_ID, base=3, up_to={}, columns=COLUMNS, table_id="7d", version=0, rows=1
)
REPORTED = (
    interval(3, 90),
    interval(4, 100),
    interval(5, 200, kind="maintenance"),
    interval(6, 0, table="", ledger=""),
)


@pytest.mark.parametrize(
    ("changed", "more", "sentence"),
    [
        ({}, (), ""),
        ({"of": "shop.items"}, (), "not a past state"),
        ({"ledger": "another"}, (), "ledger another"),
        ({"version": 2}, (), "another program changed"),
        ({"columns": COLUMNS[:1]}, (), "have different columns (note)"),
        ({}, (interval(7, 101),), "1 batches with 1 changes"),
        ({}, (interval(7, 101, ledger="another"),), ""),
        ({}, (interval(7, 50, kind="repair", backfill="0123"),), "version 7 of the table was written by a repair"),
        ({"base": 7}, (interval(7, 50, kind="backfill", backfill="0123"),), ""),
        ({"base": 7}, (interval(7, 50, kind="snapshot", snapshot="0123"),), ""),
        ({"base": 1}, (), "no longer has the commits"),
    ],
)
def test_what_is_refused_backfill(
    changed: Mapping[str, Any], more: tuple[CommittedInterval, ...], sentence: str
) -> None:
    found = refusal(OWNER, COLUMNS, dataclasses.replace(GOOD, **changed), 100, (*REPORTED, *more))
    assert (sentence in found) if sentence else not found, found


@pytest.mark.found
def test_a_past_state_that_lacks_a_swap_or_replayed_values_is_refused(shop: Shop) -> None:
    """Defect 1068: a past state could be built from a version before another swap, or before `sluice quarantine replay`. Its swap was not
    refused, and silently took the corrected rows and the replayed values out of the table again.
    """
    shop.swap()
    assert shop.swap(), "the same swap may be repeated"
    other = dataclasses.replace(GOOD, table_id="8e")
    swapped = interval(7, -1, kind="swap", backfill=GOOD.path, past_state=GOOD.table_id)
    replayed = interval(7, -1, kind="quarantine", table="", ledger="")
    assert refusal(OWNER, COLUMNS, GOOD, 100, (*REPORTED, swapped)) == ""
    for correction, words in (
        (swapped, "by the swap with another past state"),
        (replayed, "by `sluice quarantine replay`"),
    ):
        assert words in refusal(OWNER, COLUMNS, other, 100, (*REPORTED, correction))
        assert refusal(OWNER, COLUMNS, dataclasses.replace(other, base=7), 100, (*REPORTED, correction)) == ""


@pytest.mark.found
def test_a_swap_that_is_late_writes_nothing_ha(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 5: a swap checked the run lock only before its plan. A host that was suspended after the check replaced what another host had
    merged.
    """
    from sluice.spark_jobs.backfill import swap as swapping  # noqa: PLC0415

    record = swapping._record

    def slow(*given: Any) -> str:
        (shop.config.destination_dir("shop") / "run.lock").unlink()
        with destination_files.run_lock(shop.config.destination_dir("shop")):
            pass
        return record(*given)

    monkeypatch.setattr(swapping, "_record", slow)
    version = deltalake.DeltaTable(shop.target.path).version()
    with pytest.raises(MergeFailedError, match="does not hold the run lock of shop"):
        shop.swap()
    assert deltalake.DeltaTable(shop.target.path).version() == version
    assert shop.live() == [(1, "a"), (3, "wrong")]


@pytest.mark.found
def test_a_swap_does_not_undo_a_re_snapshot_backfill(shop: Shop) -> None:
    """Defect 1032: after a mask was added in conf/ and the table was re-snapshotted, a swap with a past state from before that gave the
    table its unmasked rows again.
    """
    table = deltalake.DeltaTable(shop.target.path)
    position = POSITION.to_json()
    record = PublicationRecord(
        destination="shop",
        ledger=LEDGER_ID,
        table=NAME,
        snapshot="0123",
        read="1",
        epoch=0,
        run="",
        start=position,
        end=position,
        label=POSITION.order_key,
        read_at_us=0,
    )
    commit = deltalake.CommitProperties(custom_metadata={"userMetadata": record.to_text()})
    table.update(updates={"note": "'masked'"}, commit_properties=commit)
    with pytest.raises(MergeFailedError, match=r"written by a snapshot.*do not swap.*--from after the snapshot"):
        shop.swap()
    assert {note for _, note in shop.live()} == {"masked"}
