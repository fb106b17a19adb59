"""Tests `sluice sql`: it queries the lake without Spark, prints a table, JSON or CSV, and its errors name the existing tables."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
import uuid
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.console.lake import sql as lake_sql
from sluice.console.lake.sql_store import REGIONS, open_stores, s3_secret
from sluice.console.main import app
from sluice.console.toolchain.errors import SetupError

RUNNER = CliRunner()
ROWS = {
    "id": pa.array([1, 2, 3]),
    "status": pa.array(["paid", "open", None]),
    "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("3.00")]),
    "at": pa.array([dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)] * 3, pa.timestamp("us", "UTC")),
    "raw": pa.array([b"\x00\xff", b"", None]),
}


def version_of(name: str) -> TableVersion:
    database, table = name.split(".")
    return TableVersion(database=database, table=table, version="v", columns=(), key=())


def write_table(config: SluiceConfig, destination: str, *names: str) -> None:
    for name in names:
        database, table = name.split(".")
        deltalake.write_deltalake(config.table_path(destination, database, table), pa.table(ROWS), mode="overwrite")
    captured = [version_of(name) for name in (*names, "shop.unmerged")]
    directory = config.destination_dir(destination)
    directory.mkdir(parents=True, exist_ok=True)
    write_tables(directory, captured)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SluiceConfig:
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "destinations" / "a.yaml").write_text("source: {user: u}\n")
    made = load_config()
    write_table(made, "a", "shop.orders", "shop.order", "stock.items")
    return made


def test_a_table_is_queried_by_its_name_at_the_source(config: SluiceConfig) -> None:
    answer = RUNNER.invoke(app, ["sql", "SELECT status, price FROM shop.orders ORDER BY id"])
    assert answer.exit_code == 0, answer.exception
    assert "paid" in answer.stdout
    assert "1.50" in answer.stdout


def test_a_bare_name_is_found_in_any_database(config: SluiceConfig) -> None:
    assert "3" in RUNNER.invoke(app, ["sql", "SELECT count(*) FROM items", "--csv"]).stdout


def test_json_and_csv_have_every_value(config: SluiceConfig) -> None:
    question = 'SELECT id, status, price, "at", raw FROM shop.orders ORDER BY id'
    records = json.loads(RUNNER.invoke(app, ["sql", question, "--json"]).stdout)
    assert records[0] == {"id": 1, "status": "paid", "price": "1.50", "at": "2026-01-01 12:00:00+00:00", "raw": "AP8="}
    assert records[2]["status"] is None
    lines = RUNNER.invoke(app, ["sql", question, "--csv"]).stdout.splitlines()
    assert lines[0] == "id,status,price,at,raw"
    assert lines[2] == "2,open,,2026-01-01 12:00:00+00:00,"
    assert json.loads(RUNNER.invoke(app, ["sql", "SELECT 1 FROM items WHERE false", "--json"]).stdout) == []


def test_all_tables_are_listed(config: SluiceConfig) -> None:
    listed = RUNNER.invoke(
        app, ["sql", "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal", "--csv"]
    )
    assert set(listed.stdout.splitlines()[1:]) == {"shop,orders", "shop,order", "stock,items"}


def test_the_table_of_a_second_destination_has_its_name_before_it(config: SluiceConfig, tmp_path: Path) -> None:
    (tmp_path / "conf" / "destinations" / "b.yaml").write_text(
        f"source: {{user: u}}\ntables: {{shop.orders: {{path: {tmp_path}/second}}}}\n"
    )
    second = load_config()
    write_table(second, "b", "shop.orders")
    assert [table.name for table in lake_sql.lake_tables(second)][-1] == '"b_shop"."orders"'


@pytest.mark.parametrize(
    ("question", "sentence"),
    [("SELECT * FROM shop.none", "The tables are: shop.order, shop.orders, stock.items"), ("SELEC 1", "syntax error")],
)
def test_what_duckdb_refuses_is_reported_with_the_tables_there_are(
    config: SluiceConfig, question: str, sentence: str
) -> None:
    with pytest.raises(SetupError, match=sentence):
        lake_sql.run_query(config, question)


@pytest.mark.found
@pytest.mark.parametrize(
    ("question", "reported"), [("DELETE FROM shop.orders", "only reads the lake"), ("SELEC 1", "correct it")]
)
def test_only_a_name_that_is_not_found_lists_the_tables(config: SluiceConfig, question: str, reported: str) -> None:
    """Defect 29: `sql "DELETE …"` and syntax errors printed a list of all tables."""
    with pytest.raises(SetupError, match=reported) as refused:
        lake_sql.run_query(config, question)
    assert "The tables are" not in str(refused.value)


def test_an_empty_lake_and_one_elsewhere_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="has no table yet"):
        lake_sql.run_query(SluiceConfig(data_dir=tmp_path, lake=str(tmp_path)), "SELECT 1")
    with pytest.raises(SetupError, match=r"hdfs://bucket, but .* docs/readers.md"):
        lake_sql.run_query(SluiceConfig(data_dir=tmp_path, lake="hdfs://bucket"), "SELECT 1")


def test_a_table_in_a_store_that_is_not_read_does_not_prevent_queries_of_other_tables(
    config: SluiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_sql, "open_stores", lambda *_: pytest.fail("no secret of a store is needed"))
    (tmp_path / "conf" / "destinations" / "a.yaml").write_text(
        "source: {user: u}\ntables: {shop.order: {path: hdfs://bucket/order}}\n"
    )
    answer = RUNNER.invoke(app, ["sql", "SELECT count(*) FROM shop.orders", "--csv"])
    assert answer.exit_code == 0, answer.exception


def test_only_the_first_rows_are_shown(config: SluiceConfig) -> None:
    many = "SELECT a.id FROM shop.orders a, shop.orders b, shop.orders c, shop.orders d, shop.orders e"
    shown = RUNNER.invoke(app, ["sql", many]).stdout
    assert "the first 100 rows" in shown
    assert len(RUNNER.invoke(app, ["sql", many, "--csv"]).stdout.splitlines()) == 3**5 + 1


def test_what_duckdb_would_misread_is_refused_by_name(tmp_path: Path) -> None:
    log = tmp_path / "odd" / "_delta_log"
    log.mkdir(parents=True)
    schema = {
        "type": "struct",
        "fields": [
            {
                "name": "day",
                "type": "string",
                "nullable": True,
                "metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c"},
            }
        ],
    }
    actions = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {
            "metaData": {
                "id": "x",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": ["day"],
                "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"},
            }
        },
    ]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    table = lake_sql.SqlTable("shop", "odd", str(tmp_path / "odd"))
    with pytest.raises(SetupError, match=r"shop\.odd has partitions and column mapping"):
        lake_sql._refuse_misread(table, {})


@pytest.mark.found
def test_names_that_differ_by_capitals_are_different_tables(config: SluiceConfig) -> None:
    """Defect 25: `sql` failed if there were tables `Orders` and `orders`."""
    write_table(config, "a", "shop.Orders", "shop.orders", "shop.orders__1", "stock.items")
    names = [table.name for table in lake_sql.lake_tables(config)]
    assert sorted(names) == ['"shop"."Orders__2"', '"shop"."orders__1"', '"shop"."orders__3"', '"stock"."items"']
    for name in names:
        assert next(lake_sql.run_query(config, f"SELECT count(*) FROM {name}").rows()) == (3,)
    with pytest.raises(SetupError, match=r"shop\.Orders__2 \(shop\.Orders\)"):
        lake_sql.run_query(config, "SELECT count(*) FROM shop.orders")
    shown = RUNNER.invoke(app, ["sql", "SHOW ALL TABLES"])
    assert shown.exit_code == 0, shown.exception


@pytest.mark.found
def test_a_table_whose_view_cannot_be_created_is_named_and_the_others_are_queried(
    config: SluiceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 25: if the view of one table could not be made, no query worked."""
    make = lake_sql._make_view

    def broken(connection: duckdb.DuckDBPyConnection, table: lake_sql.SqlTable, options: dict[str, str]) -> None:
        if table.table == "orders":
            raise RuntimeError("this one is odd")
        make(connection, table, options)

    monkeypatch.setattr(lake_sql, "_make_view", broken)
    answer = lake_sql.run_query(config, "SHOW ALL TABLES")
    assert len(list(answer.rows())) == 2
    assert answer.left_out == ("shop.orders cannot be read: this one is odd",)
    with pytest.raises(SetupError, match=r"shop\.orders cannot be read: this one is odd"):
        lake_sql.run_query(config, "SELECT count(*) FROM shop.orders")
    shown = RUNNER.invoke(app, ["sql", "SELECT count(*) FROM stock.items, shop.order"])
    assert shown.exit_code == 0


@pytest.mark.servers
@pytest.mark.store
def test_store_a_lake_in_s3_is_queried_by_names(
    tmp_path: Path, s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    (tmp_path / "conf" / "destinations").mkdir(parents=True)
    (tmp_path / "conf" / "destinations" / "a.yaml").write_text("source: {user: u}\n")
    options = {**s3_store.options, "aws_access_key_id": "$LAKE_KEY", "aws_secret_access_key": "$LAKE_SECRET"}
    lake = f"s3://{s3_store.bucket}/{uuid.uuid4().hex[:12]}"
    conf = {"data_dir": str(tmp_path / "data"), "lake": lake, "storage_options": options}
    (tmp_path / "conf" / "sluice.yaml").write_text(json.dumps(conf))
    config = load_config()
    path = config.table_path("a", "shop", "orders")
    deltalake.write_deltalake(path, pa.table(ROWS), storage_options=s3_store.options)
    (directory := config.destination_dir("a")).mkdir(parents=True)
    write_tables(directory, [version_of("shop.orders"), version_of("shop.unmerged")])

    def requested(question: str) -> Result:
        return RUNNER.invoke(app, ["sql", question, "--json"])

    refused = requested("SELECT id FROM shop.orders")
    assert refused.exit_code == 1
    assert "LAKE_KEY" in str(refused.exception)
    monkeypatch.setenv("LAKE_KEY", ACCESS_KEY)
    assert json.loads(requested("SELECT id FROM shop.orders ORDER BY id").stdout) == [{"id": 1}, {"id": 2}, {"id": 3}]
    lacking = requested("SELECT id FROM shop.unmerged")
    assert lacking.exit_code == 1
    assert "shop.unmerged cannot be read" in str(lacking.exception)
    assert SECRET_KEY not in str(lacking.exception)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, "TYPE s3, PROVIDER credential_chain"),
        ({"region": "eu-1"}, "TYPE s3, PROVIDER credential_chain, REGION 'eu-1'"),
        (
            {"AWS_ACCESS_KEY_ID": "a", "aws_secret_access_key": "b'c", "token": "t", "endpoint": "https://s:9"},
            "TYPE s3, KEY_ID 'a', SECRET 'b''c', SESSION_TOKEN 't', ENDPOINT 's:9', USE_SSL true, URL_STYLE 'path'",
        ),
    ],
)
def test_storage_options_become_a_secret_of_duckdb(
    options: dict[str, str], settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in REGIONS:
        monkeypatch.delenv(name, raising=False)
    assert ", ".join(f"{name} {value}" for name, value in s3_secret(options).items()) == settings
    if "region" not in options:
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-2")
        assert s3_secret(options)["REGION"] == "'eu-2'"


@pytest.mark.found
def test_azure_a_table_of_another_account_does_not_take_the_key_from_the_account_of_the_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 65: the account of the last table got the key, so that `sluice sql` could read no table of the lake's account."""
    lake, other = (f"abfss://c@{account}.dfs.core.windows.net/x" for account in ("first", "second"))
    conf = tmp_path / "azure"
    (conf / "destinations").mkdir(parents=True)
    (conf / "sluice.yaml").write_text(f"data_dir: {tmp_path}\nlake: {lake}\nstorage_options: {{account_key: $KEY}}\n")
    (conf / "destinations" / "shop.yaml").write_text(
        f"source: {{user: u}}\ntables: {{shop.other: {{path: '{other}'}}}}\n"
    )
    config = load_config(conf)
    directory = config.destination_dir("shop")
    directory.mkdir(parents=True)
    write_tables(directory, [version_of("shop.other")])
    monkeypatch.setenv("KEY", "a2V5")
    connection = duckdb.connect()
    monkeypatch.setattr(lake_sql, "_connect", lambda: connection)
    monkeypatch.setattr(lake_sql, "_make_view", lambda *_: None)
    lake_sql.run_query(config, "SELECT 1")
    with connection, pytest.raises(duckdb.Error, match="does not match the storage account named second"):
        connection.execute(f"SELECT * FROM read_parquet('{other}/a.parquet')")


def test_an_error_about_credentials_has_none_of_them() -> None:
    options = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "clear\0text"}
    with contextlib.closing(duckdb.connect()) as connection, pytest.raises(SetupError) as raised:
        open_stores(connection, ["s3://lake/t"], options)
    assert "storage_options" in str(raised.value)
    assert "clear" not in str(raised.value)
