"""Tests how the console shows shards: one view in `sluice sql`, the changes of a row of one shard, and an owner for each shard."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties
from typer.testing import CliRunner

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, load_config
from sluice.cdc_engine.config.shards import ShardsConfig
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.destination_files import read_ledger, run_lock
from sluice.cdc_engine.errors import ActRefusedError
from sluice.cdc_engine.meta.stored_ledger import StoredLedger
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.lake.accept import Acceptance, accept
from sluice.console.lake.history import captured_table, history_of
from sluice.console.lake.lacking import refuse_unless_left_by_runs
from sluice.console.lake.life import known_life
from sluice.console.lake.tables import DestinationLake
from sluice.console.main import app
from sluice.console.shards_check import shards_problems, shards_sentence, shards_warnings
from sluice.console.toolchain.errors import SetupError
from sluice.orchestration.run.consistent_snapshots import _as_they_stand
from sluice.spark_jobs.table_owner import Owner, TableRecord
from sluice.spark_jobs.targets.shards import owners

RULE = {"tables": r"shop_(\d)\.orders", "into": "shop/orders", "column": "shop", "name": "{1}"}
NAMES = ("shop_1.orders", "shop_2.orders")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SluiceConfig:
    """Returns a configuration with a table in which each shard has committed a row with the key 1."""
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "destinations" / "a.yaml").write_text(
        yaml.safe_dump({"source": {"user": "u"}, "shards": [RULE]})
    )
    made = load_config()
    key = Column(name="id", type_code=8, nullable=False, mysql_type="bigint")
    directory = made.destination_dir("a")
    directory.mkdir(parents=True)
    tables = [
        TableVersion(database=f"shop_{n}", table="orders", version="v", columns=(key,), key=("id",)) for n in "12"
    ]
    write_tables(directory, tables)
    for index, name in enumerate(NAMES, start=1):
        commit = {"sluice": 1, "kind": "changes", "table": name, "ledger": "l", "destination": "a", "inserts": 1}
        commit |= {"first_order_key": index, "last_order_key": index, "delivery": 1, "epoch": 0}
        row = {"id": [1], "name": [f"of {index}"], "shop": [str(index)], "_sluice_order_key": [index]}
        deltalake.write_deltalake(
            f"{made.lake}/shop/orders",
            pa.table(row),
            mode="append",
            commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(commit)}),
        )
    return made


@pytest.mark.usefixtures("config")
def test_shards_are_one_view_of_the_folder_they_are_in_in_a_group() -> None:
    answer = CliRunner().invoke(app, ["sql", "SELECT shop, name FROM shop.orders ORDER BY shop", "--csv"])
    assert answer.stdout.splitlines() == ["shop,name", "1,of 1", "2,of 2"]


def test_why_and_history_show_the_rows_of_one_shard_in_a_group(config: SluiceConfig) -> None:
    for index, name in enumerate(NAMES, start=1):
        table = captured_table(config, name)
        steps, _ = known_life(table, "1")
        assert [(step.happened, step.values["name"]) for step in steps] == [("insert", f"of {index}")]
        assert [each.table for each in history_of(table)] == [name]


def test_each_shard_of_a_table_has_its_own_owner_in_a_group(config: SluiceConfig) -> None:
    lake = DestinationLake(config, "a")
    for name in NAMES:
        table = lake.table(name)
        assert table is not None
        with run_lock(config.destination_dir("a")):
            lake.own(table, "a-ledger")
    found = owners(deltalake.DeltaTable(f"{config.lake}/shop/orders").metadata().configuration)
    assert {name: Owner.from_text(text).table for name, text in found.items()} == {"1": NAMES[0], "2": NAMES[1]}
    assert "sluice.owner" not in deltalake.DeltaTable(f"{config.lake}/shop/orders").metadata().configuration


def test_check_names_the_shards_and_what_they_cannot_have_in_a_group(config: SluiceConfig) -> None:
    assert shards_sentence(config) == (
        "shards that become one table: shop/orders has '1' (shop_1.orders of a), '2' (shop_2.orders of a)"
    )
    assert not shards_problems(config)
    assert not shards_warnings(config)
    a = config.destinations["a"]
    given = (ShardsConfig(**{**RULE, "column": "ID"}), ShardsConfig(**{**RULE, "tables": r"shop(\d)\.orders"}))
    wrong = config.model_copy(update={"destinations": {"a": a.model_copy(update={"shards": given})}})
    assert len(shards_problems(wrong)) == 2
    assert "shop_1.orders of a has a column ID, which conf/ uses for the name of the shard" in shards_problems(wrong)[0]
    (warning,) = shards_warnings(wrong)
    assert r"'shop(\\d)\\.orders'" in warning


def test_a_consistent_snapshot_has_shards_at_the_last_version_of_their_table_in_a_group() -> None:
    """Each record is from its own merge. At the version of the first record, the table would lack the rows of the second merge."""
    first, second = TableRecord(table_id="t", version=7), TableRecord(table_id="t", version=9)
    other = TableRecord(table_id="o", version=30)
    stands = _as_they_stand({"a": ("/lake/shop", second), "b": ("/lake/shop", first), "c": ("/lake/c", other)})
    assert stands == {"a": ("/lake/shop", second), "b": ("/lake/shop", second), "c": ("/lake/c", other)}


@pytest.mark.found
@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ([{**RULE, "column": "place"}], "Set shop as the column in conf/"),
        ([{**RULE, "name": "shop {1}"}], "Restore the name '1'"),
        ([], "this table is not one of these shards"),
    ],
)
def test_a_table_that_conf_divides_otherwise_is_not_accepted_in_a_group(
    config: SluiceConfig, rules: list[dict[str, str]], sentence: str
) -> None:
    """Defect 1196: `lake accept` wrote the owner or the shard column of the changed conf/. Then all other shards stopped for ever, or
    merged with a column that their rows lack.
    """
    directory = config.destination_dir("a")
    begin = Position(epoch=1, file="binlog.000001", offset=4)
    StoredLedger(record_store(directory), "a").update(lambda ledger: ledger.set_cursor(begin))
    ledger_id = read_ledger(directory).ledger_id
    with run_lock(directory):
        DestinationLake(config, "a").take_over(ledger_id)
    before = deltalake.DeltaTable(f"{config.lake}/shop/orders").metadata().configuration
    changed = DestinationConfig(name="a", source=SourceConfig(user="u"), shards=rules, table_path="shop/{table}")
    wrong = config.model_copy(update={"destinations": {"a": changed}})
    accepting = Acceptance(destination="a", name=NAMES[0])
    with pytest.raises(SetupError, match=f"nothing was changed: .*{sentence}"):
        accept(wrong, accepting, confirm=lambda _: True, say=lambda _: None)
    with run_lock(directory):
        DestinationLake(wrong, "a").take_over(ledger_id)
    assert deltalake.DeltaTable(f"{config.lake}/shop/orders").metadata().configuration == before
    with pytest.raises(ActRefusedError, match=sentence) as refusal:
        refuse_unless_left_by_runs(wrong, "a", NAMES[0], "TABLE_OWNED")
    assert "lake accept" not in str(refusal.value)
