"""The change log and the history of a table as assets: what they come from, and what the run that writes them reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sluice.cdc_engine.config import SluiceConfig, TableConfig
from sluice.orchestration import assets
from sluice.orchestration.base.batch_reference import BatchReference
from sluice.orchestration.base.table_catalog import delta_key, source_key
from sluice.orchestration.base.testing import FakePorts
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

ORDERS, ITEMS = "shop.orders", "shop.items"
LOG, HISTORY = delta_key("shop", f"{ORDERS}__log"), delta_key("shop", f"{ORDERS}__history")


def described(root: Path, tables: dict[str, TableConfig], names: tuple[str, ...] = (ORDERS, ITEMS)) -> SluiceConfig:
    config = make_config(root)
    write_tables(config.destination_dir("shop"), names)
    shop = config.destinations["shop"].model_copy(update={"tables": tables})
    return config.model_copy(update={"destinations": {"shop": shop}})


def built(root: Path, both: TableConfig) -> tuple[dg.Definitions, FakePorts]:
    config = described(root, {ORDERS: both})
    fakes = make_fake_ports(config)
    return build_definitions(config, fakes.ports()), fakes


def merged(defs: dg.Definitions, fakes: FakePorts, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    fakes.engine.capture(5)
    batch = fakes.engine.hand_out(0)
    assert batch is not None
    reference = BatchReference.of("shop", batch)
    return defs.resolve_job_def("merge_shop_job").execute_in_process(
        instance=instance,
        run_config={"ops": {"merge_shop": {"config": reference.to_config()}}},
        tags=reference.to_tags(),
    )


@pytest.mark.found
def test_a_log_and_a_history_come_from_the_delta_table(tmp_path: Path) -> None:
    """Number 30: the lineage ended at the Delta table; its history and its change log were no assets."""
    defs, fakes = built(
        tmp_path, TableConfig(change_log=True, history=True, owners=("ann@example.org",), group="sales")
    )
    graph = defs.resolve_asset_graph()
    for key, words in ((LOG, "The change log of shop.orders"), (HISTORY, "The history of shop.orders")):
        found = graph.get(key)
        assert found.parent_keys == {delta_key("shop", ORDERS)}
        assert (list(found.owners), found.group_name) == (["ann@example.org"], "sales")
        assert str(found.description).startswith(words)
        assert str(found.metadata["dagster/uri"]).endswith("/shop/" + key.path[-1])
    assert graph.get(delta_key("shop", ORDERS)).parent_keys == {source_key("shop", ORDERS)}
    assert not graph.has(delta_key("shop", f"{ITEMS}__log"))
    with dg.DagsterInstance.ephemeral() as instance:
        result = merged(defs, fakes, instance)
        (log,) = instance.fetch_materializations(LOG, limit=9).records
        (history,) = instance.fetch_materializations(HISTORY, limit=9).records
    assert result.success
    told: Any = history.asset_materialization.metadata if history.asset_materialization else {}
    (origin,) = told["dagster/column_lineage"].value.deps_by_column["note"]
    assert (origin.asset_key, origin.column_name) == (delta_key("shop", ORDERS), "note")
    assert log.asset_materialization is not None
    assert "dagster/column_lineage" not in log.asset_materialization.metadata


def test_a_history_instead_of_the_rows_is_the_asset_of_the_table(tmp_path: Path) -> None:
    defs, _ = built(tmp_path, TableConfig(change_log=True, history=True, mirror=False))
    graph = defs.resolve_asset_graph()
    assert not graph.has(HISTORY)
    assert graph.get(LOG).parent_keys == {source_key("shop", ORDERS)}


def test_a_captured_table_of_that_name_keeps_its_asset(tmp_path: Path) -> None:
    names = (ORDERS, f"{ORDERS}__log")
    config = described(tmp_path, {ORDERS: TableConfig(change_log=True)}, names)
    graph = build_definitions(config, make_fake_ports(config, names).ports()).resolve_asset_graph()
    assert graph.get(LOG).parent_keys == {source_key("shop", f"{ORDERS}__log")}


def test_a_log_that_dagster_cannot_show_fails_no_run_that_has_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*_: object) -> list[dg.AssetMaterialization]:
        raise ValueError("odd")

    monkeypatch.setattr(assets, "side_events", odd)
    defs, fakes = built(tmp_path, TableConfig(change_log=True))
    with dg.DagsterInstance.ephemeral() as instance:
        assert merged(defs, fakes, instance).success
