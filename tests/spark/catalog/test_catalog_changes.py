"""Tests the names of tables and views in a catalog, and what a run must register or remove there. The tests use an example for each rule,
and no Spark.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.cdc_engine.config.destination import DestinationConfig
from sluice.cdc_engine.config.locations import CatalogConfig
from sluice.cdc_engine.config.sluice import SluiceConfig
from sluice.cdc_engine.destination_files import LakeTables
from sluice.cdc_engine.destination_files.catalog_record import RECORD, CatalogEntry, Registered, catalog_troubles
from sluice.orchestration.run.catalog.registration import changes_of, register_after_run, wanted_tables, without_shapes
from sluice.spark_jobs.catalog import COMMENT_MAX, CatalogTable, mark_of, same_location, unregister, view_statement

pytestmark = pytest.mark.catalog

ORDERS = CatalogTable(of="shop.orders", identifier=("main", "shop", "orders"), path="/lake/shop/orders")
KNOWN = Registered(tables={ORDERS.identifier: CatalogEntry(ORDERS.of, ORDERS.path)})
VIEW = CatalogTable(
    of="shop.orders",
    identifier=("main", "shop", "orders_v"),
    path=ORDERS.path,
    over=ORDERS.identifier,
    shaped_by=ORDERS.path,
)
VIEWED = Registered(
    tables={**KNOWN.tables, VIEW.identifier: CatalogEntry(VIEW.of, VIEW.path, ORDERS.identifier, "of id")},
)
MOVED = dataclasses.replace(ORDERS, path="/lake/elsewhere/orders")


def config_of(root: Path, **destination: Any) -> SluiceConfig:
    given = {"name": "east", "source": {"host": "db", "user": "u"}, "include": ".*", **destination}
    return SluiceConfig(
        data_dir=root / "data",
        lake=str(root / "lake"),
        catalog=CatalogConfig(name="main", schema="{destination}_{database}"),
        destinations={"east": DestinationConfig.model_validate(given)},
    )


def test_what_is_registered_costs_nothing_and_what_is_new_moved_or_gone_is_due() -> None:
    assert changes_of([ORDERS], KNOWN, again=False).register == ()
    assert changes_of([ORDERS], Registered(), again=False).register == (ORDERS,)
    assert changes_of([MOVED], KNOWN, again=False).register == (dataclasses.replace(MOVED, before=ORDERS.path),)
    assert changes_of([], KNOWN, again=False).unregister == (ORDERS,)
    assert changes_of([ORDERS], KNOWN, again=False, whole=True).register == (
        dataclasses.replace(ORDERS, before=ORDERS.path),
    )


def test_what_failed_is_tried_again_later_and_does_not_delay_the_others() -> None:
    failed = Registered(failed={ORDERS.identifier: "refused"})
    other = dataclasses.replace(ORDERS, of="shop.items", identifier=("main", "shop", "items"))
    assert changes_of([ORDERS, other], failed, again=False).register == (other,)
    assert changes_of([ORDERS, other], failed, again=True).register == (ORDERS, other)
    away = Registered(error="Spark has no catalog main")
    assert changes_of([ORDERS], away, again=False).register == ()
    assert changes_of([ORDERS], away, again=True).register == (ORDERS,)


def test_two_tables_with_one_name_are_named_and_the_first_has_it() -> None:
    other = dataclasses.replace(ORDERS, of="shop.Orders", path="/lake/shop/Orders")
    todo = changes_of([ORDERS, other], Registered(), again=False)
    assert todo.register == (ORDERS,)
    assert "shop.orders and shop.Orders" in todo.clashes[ORDERS.identifier]


def test_shards_have_the_name_of_their_table_and_side_tables_that_of_theirs_with_an_ending(tmp_path: Path) -> None:
    options = {"shop.orders": {"change_log": True, "history": True}}
    shards = [{"tables": r"s\d+\.items", "into": "sales/items", "column": "shard", "name": "{database}"}]
    config = config_of(tmp_path, tables=options, shards=shards)
    tables = LakeTables(config.destination_dir("east"))
    tables.keep({"shop.orders": ("a", 1), "s1.items": ("b", 1), "s2.items": ("b", 1)})
    tables.keep_side_table("shop.orders", "log", ("c", 1))
    tables.keep_side_table("shop.orders", "history", ("d", 1))
    found = {
        each.identifier[1:]: each.path.removeprefix(f"{tmp_path}/lake/")
        for each in wanted_tables(config, "east", tables)
    }
    assert found == {
        ("east_shop", "orders"): "shop/orders",
        ("east_shop", "orders__log"): "shop/orders__log",
        ("east_shop", "orders__history"): "shop/orders__history",
        ("east_sales", "items"): "sales/items",
    }


def test_a_view_is_due_only_for_other_columns_or_another_table() -> None:
    both = [ORDERS, VIEW]
    assert changes_of(both, KNOWN, again=False).register == (VIEW,)
    assert changes_of(both, VIEWED, again=False) == changes_of([], Registered(), again=False)
    assert without_shapes(VIEWED, {ORDERS.path: "of id", "/lake/b": "of x"}, lambda _: ORDERS.path) == VIEWED
    changed = without_shapes(VIEWED, {ORDERS.path: "of id and note"}, lambda _: ORDERS.path)
    assert changes_of(both, changed, again=False).register == (dataclasses.replace(VIEW, before=VIEW.path),)
    renamed = dataclasses.replace(VIEW, over=("main", "shop", "sales"))
    assert changes_of([ORDERS, renamed], VIEWED, again=False).register == (
        dataclasses.replace(renamed, before=VIEW.path),
    )
    (gone,) = changes_of([ORDERS], VIEWED, again=False).unregister
    assert (gone.identifier, gone.over) == (VIEW.identifier, ORDERS.identifier)
    assert Registered.of(VIEWED.to_text()) == VIEWED


def test_a_table_takes_its_name_from_a_view() -> None:
    table = CatalogTable(of="shop.orders_v", identifier=VIEW.identifier, path="/lake/shop/orders_v")
    todo = changes_of([ORDERS, table, VIEW], VIEWED, again=False)
    assert (
        "shop.orders_v and the view of shop.orders have the same name in the catalog" in todo.clashes[VIEW.identifier]
    )
    assert "catalog.views" in todo.clashes[VIEW.identifier]
    assert [each.over for each in todo.unregister] == [ORDERS.identifier], "the view is dropped first"
    assert [each.of for each in todo.register] == ["shop.orders_v"]


def test_a_view_shows_the_columns_of_the_source_and_rows_that_exist_now() -> None:
    own = (("_sluice_order_key", "bigint"), ("_Sluice_Deleted", "boolean"))
    made = "CREATE OR REPLACE VIEW `main`.`shop`.`orders_v`"
    of = f"TBLPROPERTIES ('sluice.of' = '{mark_of('/lake/shop/orders')}')"
    columns = (("Id", "int"), ("a`b", "string"))
    assert view_statement(VIEW, ORDERS.identifier, (*columns, own[0])) == (
        f"{made} (`Id`, `a``b`) {of} AS SELECT `Id`, `a``b` FROM `main`.`shop`.`orders`"
    )
    assert view_statement(VIEW, ORDERS.identifier, (columns[0], *own)) == (
        f"{made} (`Id`) {of} AS SELECT `Id` FROM `main`.`shop`.`orders` WHERE NOT coalesce(`_Sluice_Deleted`, false)"
    )
    history = dataclasses.replace(VIEW, current=True)
    assert view_statement(history, ORDERS.identifier, (columns[0], ("is_current", "boolean"), own[0])) == (
        f"{made} (`Id`, `is_current`) {of} AS SELECT `Id`, `is_current` FROM `main`.`shop`.`orders` WHERE `is_current`"
    )


def test_a_view_has_the_comments_of_the_source_and_is_due_for_other_ones() -> None:
    long = "x" * (COMMENT_MAX + 1)
    described = dataclasses.replace(VIEW, comments={"": "it's all", "ID": "the key", "note": long})
    statement = view_statement(described, ORDERS.identifier, (("id", "int"), ("note", "string"), ("n", "int")))
    assert statement.startswith(
        f"CREATE OR REPLACE VIEW `main`.`shop`.`orders_v` (`id` COMMENT 'the key', `note` COMMENT '{long[:-1]}', `n`) "
        "COMMENT 'it\\'s all' TBLPROPERTIES"
    )
    (due,) = changes_of([ORDERS, described], VIEWED, again=False).register
    entry = CatalogEntry(VIEW.of, VIEW.path, ORDERS.identifier, "of id", due.comments_digest)
    now = Registered(tables={**KNOWN.tables, VIEW.identifier: entry})
    assert changes_of([ORDERS, described], now, again=False).register == ()
    assert Registered.of(now.to_text()) == now


def test_a_table_and_its_history_have_views_and_a_change_log_has_none(tmp_path: Path) -> None:
    config = config_of(tmp_path, tables={"shop.orders": {"change_log": True, "history": True}})
    tables = LakeTables(config.destination_dir("east"))
    tables.keep({"shop.orders": ("a", 1)})
    tables.keep_side_table("shop.orders", "log", ("c", 1))
    tables.keep_side_table("shop.orders", "history", ("d", 1))
    assert not [each for each in wanted_tables(config, "east", tables) if each.over]
    assert config.catalog is not None
    named = config.model_copy(update={"catalog": config.catalog.model_copy(update={"views": "now_{table}"})})
    views = [each for each in wanted_tables(named, "east", tables) if each.over]
    assert [(each.identifier[2], each.over and each.over[2], each.current) for each in views] == [
        ("now_orders", "orders", False),
        ("now_orders__history", "orders__history", True),
    ]
    assert {each.shaped_by for each in views} == {f"{tmp_path}/lake/shop/orders"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schema": "{table}"}, "placeholder"),
        ({"table": "all"}, "must contain {table}"),
        ({"views": "all"}, "must contain {table}"),
        ({"views": "{table}_{schema}"}, "placeholder"),
        ({"views": "{table}"}, "views must differ from table"),
        ({"kind": "spark"}, "was removed: a catalog is always one that the Spark session"),
    ],
)
def test_a_catalog_in_conf_that_has_no_meaning_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CatalogConfig.model_validate(given)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:/lake/a", "/lake/a"),
        ("file:///lake/a/", "/lake/a"),
        ("s3a://lake/a", "s3://lake/a"),
    ],
)
def test_a_location_is_the_same_in_each_spelling(one: str, other: str) -> None:
    assert same_location(one, other)
    assert not same_location(one, f"{other}b")


def test_a_catalog_that_does_not_answer_fails_no_run_and_is_shown(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    directory = config.destination_dir("east")
    directory.mkdir(parents=True)
    LakeTables(directory).keep({"shop.orders": ("a", 1)})
    register_after_run(
        config.model_copy(update={"spark": config.spark.model_copy(update={"remote": "sc://127.0.0.1:1"})}), "east"
    )
    (reported,) = catalog_troubles(directory)
    assert "no Spark Connect server answers" in reported
    assert "`sluice lake register` does so at once" in reported
    many = Registered(failed={("main", "shop", f"t{number}"): "refused" for number in range(8)})
    (directory / RECORD).write_text(many.to_text())
    assert len(catalog_troubles(directory)) == 6
    assert catalog_troubles(directory)[-1] == "3 more tables are not registered in the catalog"


@pytest.mark.found
def test_an_error_ends_once_nothing_is_left_to_register(tmp_path: Path) -> None:
    """A defect like 29: the error of a run that could not begin, for example without its ledger, stayed in `status` forever."""
    config = config_of(tmp_path)
    directory = config.destination_dir("east")
    directory.mkdir(parents=True)
    wanted = wanted_tables(config, "east", LakeTables(directory))
    known = {table.identifier: CatalogEntry(table.of, table.path) for table in wanted}
    (directory / RECORD).write_text(Registered(tables=known, error="it did not answer", tried_at=1.0).to_text())
    register_after_run(config, "east")
    assert catalog_troubles(directory) == ()


class Answered:
    """Imitates a Spark session whose catalog has one table. `statements` has the executed statements that change the catalog."""

    def __init__(self, name: str, kind: str, location: str) -> None:
        self.statements: list[str] = []
        self.spark = self
        self._name, self._facts = name, [("Type", kind), ("Provider", "delta"), ("Location", location)]
        self._requested = ""

    def sql(self, statement: str) -> Answered:
        self._requested = statement
        if statement.startswith(("DROP", "CREATE TABLE")):
            self.statements.append(statement)
        return self

    def collect(self) -> list[Any]:
        pattern = re.search(r"LIKE '(.*)'", self._requested)
        if pattern is None:
            return self._facts
        return [{"tableName": self._name}] if re.fullmatch(pattern[1], self._name) else []


@pytest.mark.parametrize(("kind", "dropped"), [("EXTERNAL", True), ("MANAGED", False)])
def test_a_table_that_the_catalog_manages_is_never_dropped(kind: str, *, dropped: bool) -> None:
    """DROP TABLE of this table removes its files, even if somebody created it at the path of a table of the lake."""
    session = Answered("orders", kind, "file:/lake/shop/orders")
    refused = unregister(session, [ORDERS])  # type: ignore[arg-type]
    assert bool(session.statements) == dropped
    assert ("would remove its files" in refused.get(ORDERS.identifier, "")) != dropped


def test_a_name_with_signs_of_a_pattern_is_found() -> None:
    odd = dataclasses.replace(ORDERS, identifier=("main", "shop", "a+b$c"))
    session = Answered("a+b$c", "EXTERNAL", "file:/lake/shop/orders")
    assert unregister(session, [odd]) == {}  # type: ignore[arg-type]
    assert len(session.statements) == 1


class WithoutSchema(Answered):
    """Imitates a Spark session in whose catalog the schema was dropped. Its error is Spark's."""

    def collect(self) -> list[Any]:
        raise ValueError(
            "[SCHEMA_NOT_FOUND] The schema `main`.`shop` cannot be found. Verify the spelling.\nIf you did not"
        )


@pytest.mark.found
def test_a_registration_ends_with_its_schema() -> None:
    """Defect 1188: if the schema of a table that left the lake had been dropped, or Spark's catalog in memory had forgotten it, each run
    failed to remove the registration. `status` advised forever to correct the cause.
    """
    session = WithoutSchema("orders", "EXTERNAL", "file:/lake/shop/orders")
    assert unregister(session, [ORDERS, VIEW]) == {}  # type: ignore[arg-type]
    assert session.statements == []


class Redacted(Answered):
    """Imitates a Spark session whose catalog has one view of Sluice. The session redacts the view's properties by Spark's own patterns and
    by others.
    """

    def __init__(self, view: CatalogTable) -> None:
        super().__init__(view.identifier[2], "VIEW", "")
        made = view_statement(view, ORDERS.identifier, (("id", "int"),))
        self._properties = re.findall(r"'([^']*)' = '([^']*)'", made)

    def collect(self) -> list[Any]:
        if not self._requested.startswith("SHOW TBLPROPERTIES"):
            return super().collect()
        secret = re.compile(r"url|secret|password|token|credential|access[.]?key", re.IGNORECASE)
        return [
            (key, "*********(redacted)" if secret.search(key) or secret.search(value) else value)
            for key, value in self._properties
        ]


@pytest.mark.parametrize("name", ["orders", "hourly_tokens", "secret_urls"])
def test_a_view_is_known_although_spark_redacts_what_looks_like_a_secret(name: str) -> None:
    view = dataclasses.replace(VIEW, identifier=("main", "shop", f"{name}_v"), path=f"s3a://lake/shop/{name}")
    session = Redacted(view)
    unregister(session, [dataclasses.replace(view, path="s3://lake/shop/of_others")])  # type: ignore[arg-type]
    assert session.statements == []
    unregister(session, [dataclasses.replace(view, path=f"s3://lake/shop/{name}")])  # type: ignore[arg-type]
    assert session.statements == [f"DROP VIEW `main`.`shop`.`{name}_v`"]
