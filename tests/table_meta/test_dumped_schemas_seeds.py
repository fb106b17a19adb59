"""Tests the schemas that are read from a dump: where statements end, to which database each table belongs, and what is not a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.ddl.declared_type import MYSQL
from sluice.cdc_engine.table_meta.dump import schemas as dumped
from sluice.cdc_engine.table_meta.dump.schemas import dumped_schemas, records_in
from sluice.cdc_engine.table_meta.dump.statements import statements_of
from sluice.cdc_engine.table_meta.history.kept.repository import RecordKind, SchemaRepository

pytestmark = pytest.mark.seeds

BEGIN = Position(epoch=1, file="b.000002", offset=4)
DUMP = """-- MySQL dump 10.13  Distrib 8.0.31, for Linux (x86_64)
--
-- Host: 127.0.0.1    Database: shop
-- ------------------------------------------------------
-- Server version\t8.0.31
/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;
/* one comment; two */
DROP TABLE IF EXISTS `orders`;
CREATE TABLE `orders` (
  `id` int unsigned NOT NULL AUTO_INCREMENT,
  `note` varchar(40) COLLATE utf8mb4_bin DEFAULT 'a;b\\'',
  `hidden` int DEFAULT NULL /*!80023 INVISIBLE */,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='it''s; one';
DELIMITER ;;
/*!50003 CREATE TRIGGER `t` BEFORE INSERT ON `orders` FOR EACH ROW BEGIN SET NEW.note = ';'; SET NEW.id = 1; END */;;
DELIMITER ;
/*!50001 CREATE VIEW `v` AS SELECT 1 AS `id`*/;
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `other` /*!40100 DEFAULT CHARACTER SET latin1 */;

USE `other`;
CREATE TABLE `left_out` (`id` int);
CREATE TABLE `items` (`id` int NOT NULL, `name` char(3), PRIMARY KEY (`id`));
CREATE TABLE `many` (`id` int NOT NULL, PRIMARY KEY (`id`)) ENGINE=MRG_MyISAM UNION=(`items`)
"""


def captured(_database: str, table: str) -> bool:
    return table != "left_out"


def test_a_dump_has_the_schemas_of_its_tables() -> None:
    found = dumped_schemas(DUMP, captured, MYSQL)
    tables = {(each.database, each.table): each for each in found.tables}
    assert sorted(tables) == [("other", "items"), ("other", "many"), ("shop", "orders")]
    orders = tables["shop", "orders"]
    assert orders.key == ("id",)
    assert [(each.name, each.type, each.charset, each.nullable, each.visible) for each in orders.columns] == [
        ("id", "int unsigned", "", False, True),
        ("note", "varchar(40)", "utf8mb4", True, True),
        ("hidden", "int", "", True, False),
    ]
    assert [each.charset for each in tables["other", "items"].columns] == ["", "latin1"]
    assert [each[:2] for each in found.elsewhere] == [("other", "many")]


def test_statements_end_where_the_dump_says() -> None:
    found = [each.split("(")[0].split("BEGIN")[0].strip() for each in statements_of(DUMP)]
    assert len(found) == 11
    assert found[3] == "CREATE TABLE `orders`"
    assert "CREATE TRIGGER" in found[4]
    assert found[-1].startswith("CREATE TABLE `many`")
    assert list(statements_of("")) == []
    assert list(statements_of("-- nothing\n/* else */")) == []


@pytest.mark.found
@pytest.mark.parametrize(("other", "column"), [("t", "second"), ("a.t", "first")])
def test_a_table_like_another_one_has_the_columns_of_the_table_in_the_named_database(other: str, column: str) -> None:
    """Defect 92: CREATE TABLE … LIKE used the columns of the first table with this name in the dump, even if that table was in another
    database.
    """
    dump = f"""
        CREATE DATABASE `a`;
        USE `a`;
        CREATE TABLE t (id int PRIMARY KEY, first int);
        CREATE DATABASE `b`;
        USE `b`;
        CREATE TABLE t (id int PRIMARY KEY, second int);
        CREATE TABLE x LIKE {other};
    """
    tables = {(each.database, each.table): each for each in dumped_schemas(dump, captured, MYSQL).tables}
    assert [each.name for each in tables["b", "x"].columns] == ["id", column]


def test_a_table_without_a_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="which database lonely belongs to: dump with --databases"):
        dumped_schemas("CREATE TABLE `lonely` (`id` int);", captured, MYSQL)


def test_a_file_is_a_dump_or_a_saved_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump, saved = tmp_path / "dump.sql", tmp_path / "schema.jsonl"
    dump.write_text(DUMP)
    records = records_in(dump, BEGIN, captured, MYSQL)
    assert {each.position for each in records} == {BEGIN}
    assert [each.table for each in records if each.kind is RecordKind.SNAPSHOT] == ["orders", "items"]
    SchemaRepository(saved).append(records)
    assert records_in(saved, BEGIN, captured, MYSQL) == records
    with pytest.raises(ConfigurationError, match="cannot be read"):
        records_in(tmp_path / "gone.sql", BEGIN, captured, MYSQL)
    saved.write_text("{}\n")
    with pytest.raises(ConfigurationError, match="is not a schema history"):
        records_in(saved, BEGIN, captured, MYSQL)
    monkeypatch.setattr(dumped, "DUMP_BYTES_MAX", 10)
    with pytest.raises(ConfigurationError, match="create the dump with `mysqldump --no-data`"):
        records_in(dump, BEGIN, captured, MYSQL)
