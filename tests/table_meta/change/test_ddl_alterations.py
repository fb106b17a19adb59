"""Tests, without a server, how each item of an ALTER TABLE changes the schema, and the schema that is followed after a stop."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sluice.batch_manifest.values import Alteration, AlterationKind
from sluice.cdc_engine.contracts import StatementSession, TableChangeKind
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.change.alteration import Altered, altered
from sluice.cdc_engine.table_meta.change.rewritten_values import NO_AUTO_VALUE_ON_ZERO, PAD_CHAR_TO_FULL_LENGTH
from sluice.cdc_engine.table_meta.ddl.reader import (
    ANSI_QUOTES,
    NO_BACKSLASH_ESCAPES,
    ORACLE,
    REAL_AS_FLOAT,
    STRICT,
    read_statement,
)
from sluice.cdc_engine.table_meta.ddl.statement import AlterTable, Unread
from sluice.cdc_engine.table_meta.history.history import TableHistory
from sluice.cdc_engine.table_meta.history.kept.known_schemas import KnownTable
from sluice.cdc_engine.table_meta.history.source.schema_snapshot import SchemaSnapshot
from sluice.cdc_engine.table_meta.schema import DdlServerFacts, DeclaredColumn, Stopped, TableSchema

COLUMNS = (
    DeclaredColumn(name="id", type="int", nullable=False),
    DeclaredColumn(name="name", type="varchar(20)", charset="latin1"),
    DeclaredColumn(name="price", type="decimal(10,2)"),
    DeclaredColumn(name="kind", type="enum('a','b')", charset="latin1"),
    DeclaredColumn(name="body", type="text", charset="latin1"),
)
T = TableSchema(database="shop", table="t", charset="latin1", columns=COLUMNS, key=("id",))


def at(offset: int) -> Position:
    return Position(epoch=1, file="mysql-bin.000007", offset=offset * 16, time_us=offset * 1000)


def alter(actions: str, schema: TableSchema = T, sql_mode: int = STRICT) -> Altered:
    statement = read_statement(f"ALTER TABLE t {actions}", "mariadb", sql_mode)
    assert isinstance(statement, AlterTable), statement
    return altered(statement, schema, "utf8mb4")


def shown(alterations: tuple[Alteration, ...]) -> list[str]:
    return [
        " ".join(filter(None, (each.kind.value, each.column, each.new_name, each.old_type, each.new_type)))
        for each in alterations
    ]


@pytest.mark.parametrize(
    ("actions", "columns", "alterations"),
    [
        ("ADD x int", "id name price kind body x", ["add x int"]),
        ("ADD (x int, y int, KEY (x))", "id name price kind body x y", ["add x int", "add y int"]),
        ("DROP name", "id price kind body", ["drop name varchar(20)"]),
        ("DROP COLUMN IF EXISTS nix, DROP IF EXISTS name", "id price kind body", ["drop name varchar(20)"]),
        ("MODIFY name varchar(30)", "id name price kind body", ["widen name varchar(20) varchar(30)"]),
        ("MODIFY COLUMN name varchar(10) FIRST", "name id price kind body", ["convert name varchar(20) varchar(10)"]),
        ("CHANGE name title varchar(20)", "id title price kind body", ["rename name title"]),
        (
            "CHANGE COLUMN name title text AFTER body",
            "id price kind body title",
            ["rename name title", "widen title varchar(20) text"],
        ),
        ("RENAME COLUMN name TO price, RENAME COLUMN price TO name", "id price name kind body", None),
        ("DROP name, ADD name int", "id price kind body name", ["drop name varchar(20)", "add name int"]),
        ("ADD name int, DROP name", "id price kind body name", ["drop name varchar(20)", "add name int"]),
        ("RENAME COLUMN name TO title, ADD x int AFTER title", "id title x price kind body", None),
        ("ADD x int FIRST, MODIFY body text AFTER x, ADD y int AFTER body", "x body y id name price kind", None),
        ("DROP PRIMARY KEY", "id name price kind body", ["key id"]),
        ("DROP PRIMARY KEY, ADD CONSTRAINT PRIMARY KEY (NAME, id)", "id name price kind body", ["key id name, id"]),
        ("DROP INDEX `PRIMARY`, ADD x int PRIMARY KEY", "id name price kind body x", ["add x int", "key id x"]),
        ("CHANGE id pk bigint", "pk name price kind body", ["rename id pk", "widen pk int bigint"]),
        ("DROP id", "name price kind body", ["drop id int", "key id"]),
        ("ENGINE=InnoDB, ALTER name SET DEFAULT 'x', ALTER COLUMN name DROP DEFAULT", "id name price kind body", []),
        ("MODIFY kind enum('a','b','c') charset latin1", "id name price kind body", None),
        (
            "ADD INDEX (name), ADD CONSTRAINT c CHECK (id > 0), ALGORITHM=INPLACE, LOCK=NONE",
            "id name price kind body",
            [],
        ),
        ("ADD COLUMN IF NOT EXISTS name int, ADD IF NOT EXISTS x int", "id name price kind body x", ["add x int"]),
        ("PARTITION BY HASH (id) PARTITIONS 4", "id name price kind body", []),
        ("ALTER COLUMN name SET INVISIBLE", "id name price kind body", []),
        ("MODIFY name varchar(20) NOT NULL", "id name price kind body", []),
    ],
)
def test_items_of_one_statement(actions: str, columns: str, alterations: list[str] | None) -> None:
    done = alter(actions)
    assert " ".join(column.name for column in done.schema.columns) == columns
    if alterations is not None:
        assert shown(done.alterations) == alterations


@pytest.mark.found
@pytest.mark.parametrize(
    ("actions", "columns"),
    [
        ("DROP COLUMN IF EXISTS name, ADD COLUMN IF NOT EXISTS name int", "id price kind body"),
        ("RENAME COLUMN name TO title, ADD COLUMN IF NOT EXISTS NAME int", "id title price kind body"),
        ("CHANGE name title text, ADD IF NOT EXISTS name int, ADD IF NOT EXISTS title int", "id title price kind body"),
    ],
)
def test_if_not_exists_looks_for_the_column_in_the_table_before_the_statement(actions: str, columns: str) -> None:
    """Defect 1070: MariaDB adds no column that the table has before the statement, even if the statement drops or renames it. The lake
    and the schema history got the column.
    """
    assert " ".join(column.name for column in alter(actions).schema.columns) == columns


@pytest.mark.found
@pytest.mark.parametrize(
    ("actions", "key"),
    [
        ("DROP PRIMARY KEY, ADD PRIMARY KEY IF NOT EXISTS (name)", ()),
        ("DROP PRIMARY KEY, ADD COLUMN IF NOT EXISTS x int PRIMARY KEY", ()),
        ("DROP PRIMARY KEY, MODIFY COLUMN IF EXISTS price int PRIMARY KEY", ()),
        ("ADD COLUMN IF NOT EXISTS x int PRIMARY KEY", ("id",)),
        ("ADD COLUMN IF NOT EXISTS (x int PRIMARY KEY, y int)", ("id",)),
        ("ADD COLUMN IF NOT EXISTS name int PRIMARY KEY", ("id",)),
        ("CHANGE COLUMN IF EXISTS price cost int PRIMARY KEY", ("id",)),
        ("MODIFY COLUMN IF EXISTS nix int PRIMARY KEY", ("id",)),
    ],
)
def test_a_key_of_if_not_exists_is_ignored_if_the_table_had_a_key(actions: str, key: tuple[str, ...]) -> None:
    """Defect 1071: MariaDB keeps or drops the old key and adds no new one. The schema history had the new key, by which rows were
    merged.
    """
    assert alter(actions).schema.key == key


@pytest.mark.found
def test_a_key_of_if_not_exists_is_added_if_the_table_had_no_key() -> None:
    """Belongs to defect 1071: a table without a key gets the key, even if it has the column already."""
    keyless = dataclasses.replace(T, key=())
    assert alter("ADD COLUMN IF NOT EXISTS price int PRIMARY KEY", keyless).schema.key == ("price",)
    assert alter("ADD PRIMARY KEY IF NOT EXISTS (name)", keyless).schema.key == ("name",)


def test_two_columns_that_swap_their_names_are_two_renames() -> None:
    done = alter("RENAME COLUMN name TO price, RENAME COLUMN price TO name")
    assert {(each.column, each.new_name) for each in done.alterations} == {("name", "price"), ("price", "name")}
    assert [column.type for column in done.schema.columns][1:3] == ["varchar(20)", "decimal(10,2)"]


@pytest.mark.found
@pytest.mark.parametrize(
    ("actions", "of_columns", "of_table"),
    [
        ("CONVERT TO CHARACTER SET utf8mb4, DEFAULT CHARACTER SET latin2, ADD x varchar(3)", "utf8mb4", "latin2"),
        ("CHARACTER SET latin2, CONVERT TO CHARACTER SET utf8mb4, ADD x varchar(3)", "utf8mb4", "latin2"),
        ("CONVERT TO CHARACTER SET latin2, COLLATE utf8mb4_bin, MODIFY name varchar(20)", "latin2", "utf8mb4"),
        ("CONVERT TO CHARACTER SET latin2, CHARACTER SET DEFAULT", "latin2", "utf8mb4"),
        ("CONVERT TO CHARACTER SET latin2", "latin2", "latin2"),
    ],
)
def test_another_default_character_set_than_that_of_convert_is_the_default_of_the_table_only(
    actions: str, of_columns: str, of_table: str
) -> None:
    """Defect 1073: the columns got the character set that the statement names last. A later table map stopped the table, or texts were
    decoded in the wrong character set.
    """
    schema = alter(actions).schema
    assert {column.charset for column in schema.columns if column.charset} == {of_columns}
    assert schema.charset == of_table


@pytest.mark.found
@pytest.mark.parametrize(
    ("actions", "fills"),
    [
        ("ADD x int DEFAULT 3, ALTER x SET DEFAULT 4", (("x", "4"),)),
        ("ADD x int NOT NULL DEFAULT 3, ALTER COLUMN X DROP DEFAULT", (("x", "0"),)),
        ("DROP price, ADD price int, ALTER price SET DEFAULT 5", (("price", "5"),)),
        ("ADD x int DEFAULT 3, ALTER COLUMN IF EXISTS x SET DEFAULT 4", (("x", "3"),)),
        ("ADD COLUMN IF NOT EXISTS price int, ALTER price SET DEFAULT 5", ()),
    ],
)
def test_an_added_column_has_the_default_that_the_same_statement_sets(
    actions: str, fills: tuple[tuple[str, str], ...]
) -> None:
    """Defect 1077: MariaDB lets one statement add a column and change its default. After such a statement, the table stopped
    (SCHEMA_MISMATCH), and the history lost its schema.
    """
    assert alter(actions).fills == fills


@pytest.mark.found
@pytest.mark.parametrize(
    ("actions", "default"),
    [
        ("MODIFY price int DEFAULT 1 FIRST, ALTER price SET DEFAULT 2", ("2",)),
        ("CHANGE price cost int DEFAULT 1 FIRST, ALTER cost SET DEFAULT 3", ("3",)),
        ("CHANGE price cost int DEFAULT 1 FIRST, ALTER cost DROP DEFAULT", (None,)),
    ],
)
def test_a_moved_column_has_the_default_that_the_same_statement_sets(actions: str, default: tuple[str | None]) -> None:
    """Belongs to defect 1077: the statement moves a column and also changes the column's default."""
    assert alter(actions).schema.columns[0].default == default


@pytest.mark.found
def test_a_bit_of_length_0_has_one_bit() -> None:
    """Defect 1076: the schema history had bit(0), and the next table map stopped the table (SCHEMA_MISMATCH)."""
    column = alter("ADD x bit(0) NOT NULL").schema.columns[-1]
    assert (column.type, column.column().metadata) == ("bit(1)", 1)


def test_converting_the_character_set_keeps_the_number_of_characters() -> None:
    done = alter("CONVERT TO CHARACTER SET utf8mb4")
    assert [column.type for column in done.schema.columns] == [
        *("int", "varchar(20)", "decimal(10,2)", "enum('a','b')", "mediumtext"),
    ]
    assert {column.charset for column in done.schema.columns} == {"", "utf8mb4"}
    assert {each.kind for each in done.alterations} == {AlterationKind.WIDEN}
    assert alter("CONVERT TO CHARACTER SET DEFAULT").schema == done.schema
    back = alter("CONVERT TO CHARSET latin1", done.schema)
    assert {each.kind for each in back.alterations} == {AlterationKind.CONVERT}
    later = alter("DEFAULT CHARSET utf8mb4, ADD x text").schema
    assert [column.charset for column in later.columns][-2:] == ["latin1", "utf8mb4"]


def test_key_columns_are_not_null() -> None:
    schema = alter("ADD x int, DROP PRIMARY KEY, ADD PRIMARY KEY (x, name)").schema
    assert [column.name for column in schema.columns if not column.nullable] == ["id", "name", "x"]


def test_outside_of_strict_mode_null_becomes_a_value() -> None:
    done = alter("MODIFY name varchar(20) NOT NULL", sql_mode=0)
    assert shown(done.alterations) == ["convert name varchar(20) null varchar(20) not null"]


def test_the_mode_of_the_session_decides_how_a_statement_is_read() -> None:
    done = alter('ADD "a""b" int DEFAULT 1, DROP "name"', sql_mode=ANSI_QUOTES)
    assert [column.name for column in done.schema.columns] == ["id", "price", "kind", "body", 'a"b']
    done = alter(r"ADD e enum('a\','b'), ADD f int", sql_mode=NO_BACKSLASH_ESCAPES)
    assert [column.type for column in done.schema.columns[-2:]] == [r"enum('a\\','b')", "int"]
    assert alter("ADD x REAL, ADD `real` REAL", sql_mode=REAL_AS_FLOAT).schema.columns[-1].type == "float"
    assert alter("ADD x REAL").schema.columns[-1].type == "double"
    assert isinstance(read_statement("ALTER TABLE t ADD x DATE", "mariadb", ORACLE), Unread)
    assert isinstance(read_statement("ALTER TABLE t ADD x DATE", "mysql", ORACLE), AlterTable)


WIDENINGS = [
    ("tinyint", "smallint"),
    ("int unsigned", "bigint"),
    ("int unsigned", "bigint unsigned"),
    ("smallint", "decimal(5,0)"),
    ("mediumint unsigned", "float"),
    ("int", "double"),
    ("decimal(10,2)", "decimal(12,4)"),
    ("float", "double"),
    ("char(3)", "varchar(3)"),
    ("varchar(20)", "text"),
    ("text", "longtext"),
    ("varbinary(3)", "blob"),
    ("binary(3)", "varbinary(3)"),
    ("enum('a')", "enum('a','b')"),
    ("set('a')", "set('a','b')"),
    ("datetime", "datetime(6)"),
    ("time(1)", "time(2)"),
    ("timestamp", "timestamp(3)"),
    ("point", "geometry"),
    ("bit(2)", "bit(9)"),
    ("float(7,3)", "double"),
]
CONVERSIONS = [
    *((new, old) for old, new in WIDENINGS if (old, new) != ("point", "geometry")),
    ("int", "int unsigned"),
    ("int unsigned", "int"),
    ("int", "bigint unsigned"),
    ("bigint", "double"),
    ("bigint", "decimal(18,0)"),
    ("decimal(10,2)", "decimal(10,4)"),
    ("decimal(10,2)", "decimal(10,2) unsigned"),
    ("binary(2)", "binary(3)"),
    ("enum('a','b')", "enum('b','a')"),
    ("enum('a','b')", "enum('b','a','c')"),
    ("enum('a')", "set('a')"),
    ("date", "datetime"),
    ("datetime", "timestamp"),
    ("bit(1)", "bit(2)"),
    ("json", "longtext"),
    ("varchar(3)", "varbinary(3)"),
    ("int", "varchar(20)"),
    ("double", "double(7,2)"),
    ("geometry", "point"),
    ("uuid", "binary(16)"),
]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [(old, new, AlterationKind.WIDEN) for old, new in WIDENINGS]
    + [(old, new, AlterationKind.CONVERT) for old, new in CONVERSIONS],
)
def test_a_type_that_holds_every_value_is_wider(old: str, new: str, kind: AlterationKind) -> None:
    table = alter(f"ADD c {old}").schema
    assert [each.kind for each in alter(f"MODIFY c {new}", table).alterations] == [kind]


def test_types_that_are_the_same_in_the_lake_are_no_alteration() -> None:
    table = alter("ADD c tinyint(1), ADD d int(11) zerofill, ADD e varchar(5) COMPRESSED").schema
    assert alter("MODIFY c tinyint, MODIFY d int(5) unsigned, MODIFY e varchar(5)", table).alterations == ()


DERIVED = "ADD g varchar(40) AS (upper(name))"
REWRITING = [
    ("ADD n int NOT NULL DEFAULT 0", "MODIFY n int AUTO_INCREMENT, ADD UNIQUE (n)", STRICT, "numbers rows"),
    ("ADD n int", "MODIFY n int AUTO_INCREMENT, ADD UNIQUE (n)", NO_AUTO_VALUE_ON_ZERO, "numbers rows"),
    ("ADD n int NOT NULL", "MODIFY n int AUTO_INCREMENT, ADD UNIQUE (n)", NO_AUTO_VALUE_ON_ZERO, ""),
    ("ADD n int AUTO_INCREMENT UNIQUE", "MODIFY n bigint AUTO_INCREMENT", STRICT, ""),
    ("ADD s timestamp NULL", "MODIFY s timestamp NOT NULL", STRICT, "current time"),
    ("ADD s timestamp NULL", "DROP PRIMARY KEY, ADD PRIMARY KEY (s)", STRICT, "current time"),
    ("ADD s timestamp NOT NULL", "MODIFY s timestamp NOT NULL DEFAULT '2020-01-01'", STRICT, ""),
    (DERIVED, "MODIFY g varchar(40) AS (lower(name))", STRICT, "calculates"),
    (DERIVED, "MODIFY name varchar(20) CHARACTER SET latin1 COLLATE latin1_bin", STRICT, "calculates"),
    (DERIVED, "MODIFY price decimal(12,4)", STRICT, "calculates"),
    (DERIVED, "CONVERT TO CHARACTER SET latin1 COLLATE latin1_bin", STRICT, "calculates"),
    (DERIVED, "MODIFY price decimal(10,2) DEFAULT 1, ADD x int, RENAME COLUMN g TO h", STRICT, ""),
    (DERIVED, "DROP g, MODIFY name varchar(30)", STRICT, ""),
    ("ADD c char(3)", "MODIFY c varchar(3)", PAD_CHAR_TO_FULL_LENGTH, "padded"),
    ("ADD c char(3)", "MODIFY c varchar(3)", STRICT, ""),
    ("ADD c char(3)", "MODIFY c char(4)", PAD_CHAR_TO_FULL_LENGTH, ""),
]


def unknown_of(before: str, actions: str, sql_mode: int) -> str:
    statement = read_statement(f"ALTER TABLE t {actions}", "mysql", sql_mode)
    assert isinstance(statement, AlterTable), statement
    return altered(statement, alter(before).schema, "utf8mb4", StatementSession(sql_mode=sql_mode)).unknown


@pytest.mark.found
@pytest.mark.parametrize(("before", "actions", "sql_mode", "why"), REWRITING)
def test_ddl_values_that_a_statement_changes_without_row_events_are_unknown(
    before: str, actions: str, sql_mode: int, why: str
) -> None:
    """Defect 45: the lake kept the old values where a server numbered rows of a new AUTO_INCREMENT column, calculated generated columns
    again, replaced NULL in a TIMESTAMP by the current time, or padded values of a CHAR.
    """
    found = unknown_of(before, actions, sql_mode)
    assert why in found
    assert bool(why) == bool(found)


@pytest.mark.found
def test_ddl_a_column_without_its_default_was_not_auto_increment() -> None:
    """Defect 52: after DROP DEFAULT, a NOT NULL column looked as if it were AUTO_INCREMENT already, so the lake kept 0 in numbered rows."""
    dropped = alter("ALTER n DROP DEFAULT", alter("ADD n int NOT NULL DEFAULT 5").schema).schema
    assert dropped == alter("ADD n int NOT NULL").schema
    assert alter("MODIFY n int AUTO_INCREMENT, ADD UNIQUE (n)", dropped).unknown


@pytest.mark.found
@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("time", "time(3)", True),
        ("time(3)", "time", True),
        ("time(3)", "time(3)", False),
        ("decimal(40,2)", "decimal(42,4)", True),
        ("decimal(10,2)", "decimal(40,3)", True),
        ("int", "decimal(40,1)", True),
        ("int", "decimal(40,0)", False),
        ("decimal(40,2)", "decimal(42,2)", False),
        ("decimal(10,2)", "decimal(12,4)", False),
    ],
)
def test_ddl_values_that_the_lake_stores_as_text_get_other_digits(old: str, new: str, differs: bool) -> None:
    """Defect 46: after MODIFY of TIME to TIME(3), rows in the lake kept 12:00:00 where SELECT shows 12:00:00.000."""
    assert ("number of fraction digits" in unknown_of(f"ADD c {old}", f"MODIFY c {new}", STRICT)) == differs


@pytest.mark.found
def test_ddl_a_table_without_a_key_that_gets_a_key_is_unknown() -> None:
    """Defect 47: without a key, the lake table has one row per row image. When the table got a key, these rows stayed. So the lake had
    several rows of an updated row, and still had deleted rows.
    """
    assert "row per row image" in unknown_of("DROP PRIMARY KEY", "ADD PRIMARY KEY (id)", STRICT)
    assert unknown_of("ADD x int", "DROP PRIMARY KEY", STRICT) == ""


@pytest.fixture
def history(tmp_path: Path) -> TableHistory:
    made = TableHistory(tmp_path / "schema.jsonl", lambda _, table: not table.startswith("skip_"))
    made.seed(SchemaSnapshot(DdlServerFacts(flavour="mysql", charset="latin1"), (("shop", "latin1"),), (T,)), at(100))
    return made


def names(state: KnownTable) -> list[str]:
    schema = state.schema if isinstance(state, Stopped) else state
    assert isinstance(schema, TableSchema)
    return [column.name for column in schema.columns]


def test_a_stopped_table_names_what_altered_and_its_schema_is_followed(history: TableHistory) -> None:
    (change,) = history.apply("ALTER TABLE t DROP name, MODIFY price decimal(12,2), ADD x int", "shop", at(200))
    assert change.kind is TableChangeKind.STOPPED
    assert "(drop name varchar(20), widen price decimal(10,2) to decimal(12,2), add x int), because" in change.reason
    assert [each.kind.value for each in change.alterations] == ["drop", "widen", "add"]
    assert history.apply("ALTER TABLE t ADD y int FIRST", "shop", at(300)) == ()
    assert names(history.state("shop", "t", at(199))) == ["id", "name", "price", "kind", "body"]
    assert names(history.state("shop", "t", at(299))) == ["id", "price", "kind", "body", "x"]
    assert names(history.state("shop", "t", at(300))) == ["y", "id", "price", "kind", "body", "x"]
