"""Tests that an operator who takes over a current-state table also takes over its change log and history. Delta's names of these two
tables state their owner.
"""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pytest
from deltalake import CommitProperties

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.destination_files import run_lock
from sluice.console.lake.tables import DestinationLake
from sluice.console.toolchain.errors import SetupError
from sluice.spark_jobs.side_tables.side_table import side_app_id_of
from sluice.spark_jobs.table_owner import OWNER_PROPERTY, Owner
from tests.spark.side_tables.fix_side_tables import NAME, LoggedTable, changes, insert


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    found = LoggedTable(tmp_path)
    directory = found.stage(changes([insert(1, 16)]))
    found.merge(directory)
    found.write(directory)
    return found


def config(folder: Path) -> SluiceConfig:
    (folder / "conf" / "destinations").mkdir(parents=True)
    (folder / "conf" / "sluice.yaml").write_text(f"data_dir: {folder}/data\nlake: {folder}/lake\n")
    reported = "source: {user: u}\ntables: {shop.orders: {change_log: true, history: true}}\n"
    (folder / "conf" / "destinations" / "shop.yaml").write_text(reported)
    found = load_config(folder / "conf")
    found.destination_dir("shop").mkdir(parents=True)
    return found


def own(given: SluiceConfig, ledger_id: str) -> None:
    lake = DestinationLake(given, "shop")
    table = lake.table(NAME)
    assert table is not None
    with run_lock(given.destination_dir("shop")):
        lake.own(table, ledger_id)


def test_another_ledger_takes_over_change_log_and_history_too_history(logged: LoggedTable, tmp_path: Path) -> None:
    own(config(tmp_path), "ba9876543210")
    owner = Owner(ledger_id="ba9876543210", destination="shop", table=NAME)
    current_state = deltalake.DeltaTable(logged.target.path).metadata()
    assert current_state.configuration[OWNER_PROPERTY] == owner.to_text()
    for kind, path in (("log", logged.target.change_log), ("history", logged.target.history)):
        assert deltalake.DeltaTable(path).metadata().name == side_app_id_of("shop", "ba9876543210", kind, NAME)


def test_a_folder_next_to_a_current_state_table_that_is_no_table_is_left_alone_history(
    logged: LoggedTable, tmp_path: Path
) -> None:
    deltalake.DeltaTable(logged.target.history).alter.set_table_name("somebody's")
    with pytest.raises(SetupError, match="move this table away"):
        own(config(tmp_path), "ba9876543210")
    assert deltalake.DeltaTable(logged.target.history).metadata().name == "somebody's"


@pytest.mark.found
@pytest.mark.parametrize(
    "features", [["deletionVectors"], ["deletionVectors", "clustering", "domainMetadata"]], ids=str
)
def test_a_table_that_is_taken_over_gets_another_owner_and_no_feature(
    logged: LoggedTable, tmp_path: Path, features: list[str]
) -> None:
    """Defect 1055: deltalake sets no property in a table with `cluster_by`, so no command could take such a table over. In other tables,
    deltalake also added the feature `variantType`. Older readers refuse this feature, and only Spark merged such a table.
    """
    log = Path(logged.target.path) / "_delta_log"
    versions = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features[:1],
        "writerFeatures": features,
    }
    actions = [{"commitInfo": {"operation": "UPGRADE PROTOCOL"}}, {"protocol": versions}]
    (log / f"{deltalake.DeltaTable(logged.target.path).version() + 1:020d}.json").write_text(
        "".join(f"{json.dumps(action)}\n" for action in actions)
    )
    before = deltalake.DeltaTable(logged.target.path)
    own(config(tmp_path), "ba9876543210")
    after = deltalake.DeltaTable(logged.target.path)
    owner = Owner(ledger_id="ba9876543210", destination="shop", table=NAME).to_text()
    assert after.metadata().configuration == {**before.metadata().configuration, OWNER_PROPERTY: owner}
    assert after.version() == before.version() + 1
    for found in (before, after):
        assert sorted(found.protocol().writer_features or ()) == sorted(features)
        assert (found.metadata().id, found.metadata().created_time) == (
            before.metadata().id,
            before.metadata().created_time,
        )
        assert (found.schema(), found.transaction_version(NAME)) == (before.schema(), before.transaction_version(NAME))


@pytest.mark.found
def test_the_delivery_of_a_table_is_known_after_maintenance_history(logged: LoggedTable, tmp_path: Path) -> None:
    """Defect 81: a commit of maintenance has no delivery number, and counted as delivery 0."""
    lake = DestinationLake(config(tmp_path), "shop")
    before = lake.table(NAME)
    assert before is not None
    assert before.owner is not None
    assert before.delivery > 0
    metadata = {"userMetadata": json.dumps({"ledger": before.owner.ledger_id, "kind": "optimize"})}
    log = deltalake.DeltaTable(logged.target.path)
    log.alter.set_table_properties({"delta.appendOnly": "false"}, commit_properties=CommitProperties(metadata))
    after = lake.table(NAME)
    assert after is not None
    assert (after.version, after.delivery) == (before.version + 1, before.delivery)


def test_a_table_whose_log_cannot_be_read_is_not_taken_over_history(logged: LoggedTable, tmp_path: Path) -> None:
    given = config(tmp_path)
    lake = DestinationLake(given, "shop")
    table = lake.table(NAME)
    assert table is not None
    for commit in (Path(logged.target.path) / "_delta_log").iterdir():
        commit.write_text("{")
    with run_lock(given.destination_dir("shop")), pytest.raises(SetupError, match="cannot be read"):
        lake.own(table, "ba9876543210")
