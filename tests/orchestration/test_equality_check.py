"""Tests the asset checks that compare each table with its source. A fake performs the comparison. conf/ limits what the checks compare, and
each result shows what was compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

from sluice.cdc_engine.config import EqualityConfig
from sluice.cdc_engine.destination_files import for_runs
from sluice.cdc_engine.source.in_use import SOURCE_FILE
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.equality import destination
from sluice.equality.destination import ComparedDestination
from sluice.equality.values import ChunkDifference, Difference, Extent, TableResult, Verdict
from sluice.orchestration.checks.equality import compare_with_source, result_of
from sluice.orchestration.code_location import build_definitions
from tests.orchestration.fix_location import make_config, make_fake_ports, write_tables

KEY = dg.AssetKey(["shop", "orders"])


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as made:
        yield made


def test_equality_the_job_compares_every_table_as_conf_bounds_it(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    config = make_config(tmp_path)
    bounds = EqualityConfig(mode="sample", percent=5, schedule="0 4 * * *")
    shop = config.destinations["shop"].model_copy(update={"equality": bounds})
    config = config.model_copy(update={"destinations": {"shop": shop}})
    write_tables(config.destination_dir("shop"))
    ports = make_fake_ports(config)
    ports.compare.verdicts["shop.orders"] = Verdict.DIFFERENT
    ports.compare.verdicts["shop.items"] = Verdict.UNDECIDED
    defs = build_definitions(config, ports.ports())
    result = defs.resolve_job_def("equal_shop_job").execute_in_process(instance=instance)
    found = {each.asset_key.path[-1]: (each.passed, each.severity) for each in result.get_asset_check_evaluations()}
    assert found == {
        "orders": (False, dg.AssetCheckSeverity.ERROR),
        "items": (False, dg.AssetCheckSeverity.WARN),
    }
    ((tables, extent),) = ports.compare.compared
    assert tables == ["shop.items", "shop.orders"]
    assert (extent.mode, extent.percent) == ("sample", 5.0)
    schedule = defs.resolve_schedule_def("equal_shop_schedule")
    assert (schedule.cron_schedule, schedule.default_status) == ("0 4 * * *", dg.DefaultScheduleStatus.RUNNING)


def test_equality_without_a_time_in_conf_the_schedule_is_switched_off(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    write_tables(config.destination_dir("shop"))
    schedule = build_definitions(config, make_fake_ports(config).ports()).resolve_schedule_def("equal_shop_schedule")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED


def test_equality_a_result_says_what_was_compared_where_and_what_differs() -> None:
    found = TableResult(
        table="shop.orders",
        verdict=Verdict.DIFFERENT,
        rows=100,
        difference_count=1,
        chunks_different=(ChunkDifference(chunk="id from 1 to 50", source_rows=50, lake_rows=50),),
        differences=(Difference("value", {"id": "7"}, "id from 1 to 50", (("v", "1", "2"),)),),
        position="mysql-bin.000003:1234",
        gtid_set="3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5",
        server_uuid="3e11fa47-71ca-11e1-9e33-c80aa9429562",
        version=12,
    )
    result = result_of(KEY, found)
    assert (result.passed, result.description) == (False, "1 rows differ")
    reported = {name: value.value for name, value in result.metadata.items()}
    assert reported["position"] == "mysql-bin.000003:1234"
    assert reported["gtid_set"] == found.gtid_set
    assert reported["rows"] == 100
    assert reported["delta_version"] == 12
    assert reported["differences"] == "- chunk id from 1 to 50\n- id=7: v is 1 in the source and 2 in the lake"


@pytest.mark.found
def test_equality_on_another_host_than_the_engine_compares_with_the_source_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1200: after a failover, a check on a host without the engine's folder compared the lake with the first source of conf/."""

    class Shared:
        """The object store to which the engine uploads the record of the source in use."""

        def read(self, name: str) -> bytes | None:
            assert name == SOURCE_FILE
            return b'{"address": "two:3306"}'

    def compared(given: ComparedDestination, *_: object) -> Iterator[TableResult]:
        assert given.settings.source.address == given.config.destinations["shop"].source.address == given.source.address
        addresses.append(given.source.address)
        return iter(())

    addresses: list[str] = []
    monkeypatch.setattr(for_runs, "as_location", lambda _: SimpleNamespace(is_apart=True))
    monkeypatch.setattr(for_runs, "_folder", lambda _: Shared())
    monkeypatch.setattr(destination, "compare_destination", compared)
    config = make_config(tmp_path)
    sources = (SourceConfig(user="u", host="one"), SourceConfig(user="u", host="two"))
    settings = config.destinations["shop"].model_copy(update={"source": sources[0], "sources": sources})
    config = config.model_copy(update={"destinations": {"shop": settings}})
    list(compare_with_source(config, "shop", ["shop.orders"], Extent()))
    assert addresses == ["two:3306"]
