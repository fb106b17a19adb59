"""Tests runs of the real job in the process of the test, on a real (ephemeral) Dagster instance. Fakes replace the engine's files and the
merge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.contracts import OutstandingBatch
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.table_catalog import SOURCE
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

ORDERS, ITEMS, NEW = (dg.AssetKey(["shop", table]) for table in ("orders", "items", "created_since"))
NUMBERS = {
    "rows_inserted": int,
    "rows_updated": int,
    "rows_deleted": int,
    "rows_changed": int,
    "rows_rewritten_unchanged": int,
    "source_rows": int,
    "batch_bytes": int,
    "merge_ms": int,
    "files_added": int,
    "files_removed": int,
    "files_scanned": int,
    "files_pruned": int,
    "commit_conflicts": int,
    "delta_version": int,
    "delta_version_before": int,
    "source_inserts": int,
    "source_updates": int,
    "source_deletes": int,
    "lag_seconds": float,
    "dagster/row_count": int,
    "dagster/size_bytes": int,
}


class Shop:
    """One destination's merge job with everything around it."""

    def __init__(self, root: Path, instance: dg.DagsterInstance, **said: Any) -> None:
        self.instance = instance
        config = make_config(root).model_copy(update=said)
        write_tables(config.destination_dir("shop"))
        self.fakes = make_fake_ports(config, ("shop.orders", "shop.items", "shop.created_since"))
        self.defs = build_definitions(config, self.fakes.ports())

    def hand_out(self) -> tuple[OutstandingBatch, BatchReference]:
        self.fakes.engine.capture(5)
        batch = self.fakes.engine.hand_out(0)
        assert batch is not None
        return batch, BatchReference.of("shop", batch)

    def run(
        self,
        reference: BatchReference,
        selection: tuple[dg.AssetKey, ...] = (ORDERS, ITEMS),
        config: dict[str, Any] | None = None,
    ) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def("merge_shop_job").execute_in_process(
            instance=self.instance,
            run_config={"ops": {"merge_shop": {"config": config or reference.to_config()}}},
            tags=reference.to_tags(),
            asset_selection=list(selection),
            raise_on_error=False,
        )

    def why_failed(self, result: dg.ExecuteInProcessResult) -> str:
        failures = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
        assert len(failures) == 1
        data = failures[0].step_failure_data.user_failure_data
        assert data is not None, "a failure of one sentence, not a traceback"
        return str(data.description)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Shop(tmp_path, instance)


def materialized(result: dg.ExecuteInProcessResult) -> dict[dg.AssetKey, dg.AssetMaterialization]:
    events = [event for event in result.all_events if event.is_step_materialization]
    return {
        event.step_materialization_data.materialization.asset_key: event.step_materialization_data.materialization
        for event in events
    }


def test_a_run_reports_every_table_of_its_batch_also_one_without_an_asset(shop: Shop) -> None:
    batch, reference = shop.hand_out()
    result = shop.run(reference)
    assert result.success
    found = materialized(result)
    assert set(found) == {ORDERS, ITEMS, NEW}
    for materialization in found.values():
        metadata: dict[str, Any] = dict(materialization.metadata)
        assert {name: type(metadata[name].value) for name in NUMBERS} == NUMBERS
        assert (metadata["rows_inserted"].value, metadata["rows_updated"].value) == (1, 2)
        assert metadata["start_position"].value == str(batch.start)
        assert metadata["end_position"].value == str(batch.end)
        assert metadata["lag_seconds"].value > 0
        assert [column.name for column in metadata["dagster/column_schema"].value.columns] == ["id", "note"]
    (order,) = shop.fakes.merge.orders
    assert order.batch_dir == shop.fakes.engine.directory / batch.path
    assert shop.fakes.engine.head is not None, "the run does not ack"


def test_s3_a_run_gets_the_url_of_its_batch_and_is_refused_if_it_does_not_see_the_engines_folder(
    tmp_path: Path,
) -> None:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        shop = Shop(tmp_path, instance, staging="s3://bucket/staged")
        batch, reference = shop.hand_out()
        assert shop.run(reference).success
        (order,) = shop.fakes.merge.orders
        assert order.stored == f"s3://bucket/staged/shop/{batch.ledger_id}/{batch.path.removeprefix('staging/')}"
        (shop.fakes.engine.directory / "tables.json").unlink()
        failed = shop.run(reference)
        assert "this host cannot see the engine's folder" in shop.why_failed(failed)
        assert len(shop.fakes.merge.orders) == 1


def test_a_run_of_some_of_the_assets_merges_the_whole_batch_all_the_same(shop: Shop) -> None:
    _, reference = shop.hand_out()
    result = shop.run(reference, selection=(ORDERS,))
    assert result.success, "its success acks the whole batch"
    assert shop.fakes.merge.orders[0].tables == ("shop.orders", "shop.items", "shop.created_since")
    assert set(materialized(result)) == {ORDERS, ITEMS, NEW}


@pytest.mark.parametrize("settled", ["acked", "rolled back", "handed out again"])
def test_an_old_run_executed_again_is_refused_and_touches_nothing(shop: Shop, settled: str) -> None:
    batch, reference = shop.hand_out()
    shop.fakes.engine.ack(batch) if settled == "acked" else shop.fakes.engine.rollback(batch)
    if settled == "handed out again":
        shop.hand_out()
    result = shop.run(reference)
    assert not result.success
    assert "delivery 1 of batch 1 of shop was already acked or rolled back" in shop.why_failed(result)
    assert "this run wrote nothing" in shop.why_failed(result)
    assert shop.fakes.merge.orders == []
    assert not shop.fakes.files.run_lock_held(shop.fakes.engine.directory)


def test_a_run_whose_tags_name_another_batch_is_refused(shop: Shop) -> None:
    batch, reference = shop.hand_out()
    shop.fakes.engine.rollback(batch)
    _, current = shop.hand_out()
    result = shop.run(reference, config=current.to_config())
    assert "its tag sluice/" in shop.why_failed(result)
    assert shop.fakes.merge.orders == []


def test_another_delivery_written_by_hand_is_refused(shop: Shop) -> None:
    _, reference = shop.hand_out()
    for delivery, sentence in ((-1, "delivery is not valid"), (7, "its tag sluice/batch")):
        result = shop.run(reference, config={**reference.to_config(), "delivery": delivery})
        assert sentence in shop.why_failed(result)
    assert shop.fakes.merge.orders == []


def test_a_run_during_another_process_that_merges_is_refused(shop: Shop) -> None:
    _, reference = shop.hand_out()
    shop.fakes.files.held_by = 99
    result = shop.run(reference)
    assert "process 99 has held" in shop.why_failed(result)
    assert shop.fakes.merge.orders == []


def test_spark_down_is_one_sentence(shop: Shop) -> None:
    _, reference = shop.hand_out()
    shop.fakes.merge.error = "Spark does not answer at sc://127.0.0.1:15002; start it with ./sluice up"
    result = shop.run(reference)
    assert shop.why_failed(result) == shop.fakes.merge.error
    shop.fakes.merge.error = ""
    assert shop.run(reference).success


def test_a_batch_merged_in_part_fails_and_reports_the_part(shop: Shop) -> None:
    _, reference = shop.hand_out()
    shop.fakes.merge.error, shop.fakes.merge.before_error = "shop.items: a type differs", ("shop.orders",)
    result = shop.run(reference)
    assert not result.success
    assert set(materialized(result)) == {ORDERS}


def test_a_batch_that_is_rolled_back_between_two_tables_is_merged_no_further(shop: Shop) -> None:
    batch, reference = shop.hand_out()

    def roll_back(table: str) -> None:
        if table == "shop.items":
            shop.fakes.engine.rollback(batch)

    shop.fakes.merge.between = roll_back
    result = shop.run(reference)
    assert "shop.items: delivery 1 of batch 1" in shop.why_failed(result)
    assert set(materialized(result)) == {ORDERS}


@pytest.mark.parametrize("config", [{}, {"destination": "shop"}])
def test_a_run_that_names_no_batch_merges_none(shop: Shop, config: dict[str, str]) -> None:
    """Without a reference, the run requests the rows of the tables, which is not possible because there is no position yet. An incomplete
    reference is refused.
    """
    result = shop.defs.resolve_job_def("merge_shop_job").execute_in_process(
        run_config={"ops": {"merge_shop": {"config": config}}}, instance=shop.instance, raise_on_error=False
    )
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    reported = "a reference to a batch must have the fields" if config else "has no position yet"
    assert reported in str(failed.step_failure_data.user_failure_data)
    assert not materialized(result)


def test_lineage_leads_from_each_mysql_table_to_its_delta_table(shop: Shop) -> None:
    graph = shop.defs.resolve_asset_graph()
    odd = dg.AssetKey(["shop", "odd-näme$"])
    for key in (ORDERS, ITEMS, odd):
        assert graph.get(key).parent_keys == {dg.AssetKey([SOURCE, *key.path])}
        assert graph.get(key).group_name == "shop"
        assert graph.get(key).kinds == {"deltalake", "spark"}
        assert graph.get(dg.AssetKey([SOURCE, *key.path])).kinds == {"mysql"}


def test_names_that_dagster_would_confuse_stay_apart(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    names = ("b_.c", "b._c", "a b.we-ird$", "a b.we_ird$")
    write_tables(config.destination_dir("shop"), names)
    defs = build_definitions(config, make_fake_ports(config, names).ports())
    dg.Definitions.validate_loadable(defs)
    keys = defs.resolve_asset_graph().materializable_asset_keys
    assert keys == {dg.AssetKey(["shop", *name.split(".")]) for name in names}
