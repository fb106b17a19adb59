"""Makes docs/fidelity.md from the catalogue. `python -m tests.fidelity.document` writes the page. A test compares the page with the
catalogue.
"""
# ruff: noqa: E501 - rows of a page's tables are long

from __future__ import annotations

import itertools
import re
from pathlib import Path

from sluice.cdc_engine.binlog.charsets.collations import CHARSETS
from tests.fidelity import cases
from tests.fidelity.catalogue import KINDS, Kind
from tests.fidelity.pipeline import SERVERS

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
NAMES = {
    "mysql57": "MySQL 5.7.22",
    "mysql80": "MySQL 8.0.31",
    "mysql9": "MySQL 9",
    "mariadb1011": "MariaDB 10.11.5",
    "mariadb114": "MariaDB 11.4.5",
}
# Of an enum or set with more characters than this, the page shows only the first and the last label.
LABELS_SHOWN = 40
MATRIX, ORACLE = "test_matrix", "test_oracle_schemas"

HEAD = """# Fidelity: what becomes of every type

This page shows which type a column of the source gets in the lake, and which statements Sluice follows. A value in the lake equals what
`SELECT` returns in the source. If Sluice cannot guarantee this, the table stops in a named state with the reason.

`python -m tests.fidelity.document` generates this page from the lists of types and cases that the tests use.

## Types

The column of each server, and the column of snapshots, have these marks:

| mark | meaning |
|---|---|
| M | `tests/fidelity/test_matrix.py` writes corner values of the type on this server, and compares the rows after inserts, updates and deletes with `SELECT`. It does so with `binlog_row_image` FULL, MINIMAL and NOBLOB, and with `binlog_row_metadata` MINIMAL, and FULL if the server supports it. |
| - | The server has no such type. |
| S | `tests/fidelity/test_snapshot_fidelity.py` reads the same values in chunks, as a snapshot does. Every column equals the stream's value, to the byte. |
| S, by value | As S, but not to the byte: MySQL 5.7 prints a JSON double without fraction as `1` instead of `1.0`. Therefore the lake has `1` after a snapshot, and `1.0` after the next change of the row. |

"""
TAIL = """
## Settings of a table

| `conf/destinations/*.yaml`, `tables: {database.table: …}` | effect | test |
|---|---|---|
| `zero_dates: null` (default) | Zero and partial dates, days that no month has, and year 0 are NULL. | `test_matrix` |
| `zero_dates: text` | Columns of date, datetime and timestamp are strings, as `SELECT` prints them. Timestamps are in UTC. | `test_oracle_corners` |
| `zero_dates: error` | A zero or partial date, a day that no month has, or year 0 counts as a value that cannot be decoded. | `test_quarantine_fidelity` |
| `undecodable: stop` (default) | The table stops with TYPE_UNSUPPORTED. The reason names column, position and cause. | `test_quarantine_fidelity` |
| `undecodable: quarantine` | In the row, a value that cannot be decoded is NULL, and `<lake>/_sluice_quarantine/<destination>` has its bytes. A value of a key column still stops the table. | `test_quarantine_fidelity` |
| `charsets: {column: charset}` | Sluice decodes the column with this charset instead of the declared one, for columns whose bytes are in another charset than the declared one. | `test_quarantine_fidelity` |
| `rows: condition` | The lake gets only rows that match the condition ([filter and mask](guides/filter-and-mask.md)). | `test_rules_consumer`, `test_expression_consumer` |
| `masks: {column: hash, null, truncate:n}` | In the lake, the column has a digest of each value, NULL, or the beginning of each value. | `test_rules_consumer` |
| `transform` | A function of yours writes columns and may drop rows ([transform](guides/transform.md)). | `test_transform`, `test_transforms_snapshot` |

Snapshots and the stream follow these settings in the same way, because one decoder reads the values of both
(`test_snapshot_fidelity`, `test_snapshot_faults`).

## Keys by which a snapshot divides a table

A snapshot reads a table in chunks, which are ranges of its key. The key may be of any type and collation, and may be composite. Each row is
in exactly one chunk (`tests/snapshot/test_snapshot_chunks.py`).

| key | how the snapshot reads it |
|---|---|
| whole columns of the primary key | The snapshot finds the bounds of a chunk and the rows of a chunk in the index of the key, so the query of a chunk reads only its own rows. |
| a prefix index (`PRIMARY KEY (name(10))`), a `set` of more than 53 members, or a key that conf/ names and that no index has | The result is right, but to find the bound of each chunk, the server reads through the whole table. Use large chunks. |
| `uuid` of MariaDB up to 10.11.5 | The server sorts UUIDs of versions 6 and 7 in another order than it compares them. Sluice detects such a server and compares UUIDs as text, without an index. |
| no key, or a key with JSON or geometry | The whole table is one chunk. |

## Types that no test server has

| type | Delta | test |
|---|---|---|
| MySQL 9 `vector(n)`, MariaDB 11.7 `vector(n)` | binary, with the floats as `SELECT` returns them (four bytes each, little-endian) | MySQL: with a 9.x server, `tests/fidelity/test_vector_fidelity.py`. MariaDB: with hand-made images, `tests/binlog/rows/test_column_types.py` |
| MariaDB `xmltype` | none, because the table stops with TYPE_UNSUPPORTED | `tests/binlog/rows/test_column_types.py` |
| MariaDB times with `mysql56_temporal_format=OFF` | the same types as for current columns, also with fractions | `tests/binlog/oracle/test_old_formats_oracle.py` |
| MariaDB `uuid` columns made before 10.11.5 (`uuid /* old */`) | none, because the server stores these columns in another format, and their table stops. Run `ALTER TABLE … FORCE` on a newer server | `tests/fidelity/test_document_fidelity.py` |
| GTIDs with a tag (MySQL 8.3 and above) | no column, because GTIDs are in positions only | with an event of a 9.2 server and hand-made events, `tests/parser/scan/test_tagged_gtid.py` |

## JSON logged as differences

With `binlog_row_value_options=PARTIAL_JSON`, an update in the binlog does not contain the whole JSON document. It contains only the changes
that JSON_SET, JSON_REPLACE and JSON_REMOVE made.

Sluice applies these changes to the document in the before image. With `binlog_row_image` FULL and NOBLOB, the before image has the
document. If a MINIMAL before image lacks the document, the table stops in IMAGE_NOT_FULL (`tests/fidelity/rows/test_partial_json.py`).

## Values of existing rows in an added column

After `ALTER TABLE orders ADD channel varchar(10) DEFAULT 'web'`, existing rows have the value `web`, and no row event contains it. Sluice
computes such a value from the DEFAULT, or a snapshot reads it. `tests/table_meta/change/test_ddl_additions.py` compares the results with
SELECT on the servers.

| ALTER TABLE … ADD of a column | value in existing rows | who computes it |
|---|---|---|
| with a literal DEFAULT as `SHOW CREATE TABLE` prints it: numbers, strings, `x'4142'`, `b'101'`, labels, `'2020-01-02 03:04:05'`, `DATE'…'`, `('x')` | the value that the type stores for it | Sluice |
| `NOT NULL DEFAULT 0` or `'0000-00-00 00:00:00'`, or NOT NULL without DEFAULT | for dates and times, the zero date, as the table's `zero_dates` defines. For JSON, `null`. For other types, the zero of the type | Sluice |
| `DEFAULT CURRENT_TIMESTAMP`, `(now(3))`, `(curdate())` | the statement's time in the time zone of its session. For the zone `SYSTEM`, Sluice finds a zone with the server's local time (`test_system_zone_ddl.py`) | Sluice |
| any other DEFAULT: an expression, a JSON document, a number that the type rounds, a label by its number. Also a date in an unusual form or with an offset, and a time with more digits than the column has. | as in the source | a snapshot. The table is DDL_UNSUPPORTED until then: `tests/instance/ddl/test_ddl_retake.py` |
| a generated column, AUTO_INCREMENT | as in the source | a snapshot. The table is DDL_UNSUPPORTED until then |
| a time in a zone that is not in the zone database, or a local time that occurs twice or never in its zone | as in the source | a snapshot. The table is DDL_UNSUPPORTED until then |

## Foreign keys

A foreign key with CASCADE or SET NULL changes rows of a *child* table when a row of its *parent* table changes. InnoDB changes these child
rows without row events, in all versions of MariaDB and in MySQL before 9.6. With `cascades: apply`, the default, Sluice changes the child
rows in the lake. In the following cases, tests show that the child rows in the lake equal those of the source. If a case names a state,
tests show that the child table stops in this state.

| case | test |
|---|---|
| ON DELETE and ON UPDATE CASCADE and SET NULL, over all levels, of composite keys, of keys within a primary key, of self-references, of tables without a key; REPLACE and foreign_key_checks=0 | random statements on MySQL 5.7 and 8.0, and MariaDB 10.11 and 11.4, and through Spark from MySQL 8.0 and MariaDB 11.4: `tests/fidelity/tables/test_cascade.py` |
| foreign keys with row images that leave columns out (MINIMAL, NOBLOB, FULL_NODUP) | `tests/fidelity/tables/test_cascade.py`, for foreign keys that refer to the parent's primary key |
| keys of every type that a key may have, and of any string | `test_cascade.py`, with a child in the lake for each type |
| A run is interrupted: before or after the derived rows are stored, or when only children or only parents are merged. | `test_cascade.py`. If the staged files are also lost, a child table whose rows can no longer be derived stops (CASCADE_UNSEEN) |
| XA, savepoints, triggers and procedures, statements of several tables, temporary tables of the parent's name, CREATE TABLE … SELECT, system-versioned tables, circles, keys that are generated, may be NULL or are not unique | `tests/fidelity/tables/test_cascade_corners.py` |
| a child that is renamed | `tests/fidelity/tables/test_ddl_renamed_tables.py` |
| a parent whose storage engine has no foreign keys (MEMORY, MyISAM, with foreign_key_checks=0). When such a parent is renamed, the foreign keys still refer to its old name | `tests/table_meta/corpus/foreign_keys.sql`, on all five servers |
| foreign keys that DDL creates, drops and renames, inline REFERENCES on servers that apply them, and generated names | `tests/table_meta/corpus/foreign_keys.sql`, on all five servers, after each statement |
| A parent is not captured. A child whose rows Sluice cannot compute stops (CASCADE, CASCADE_UNSEEN). | `tests/staging/test_cascade_events.py` |

ON DELETE SET DEFAULT changes no row on any server.

In the following cases, Sluice cannot know which rows a foreign key changed. The child table stops in CASCADE_UNSEEN, and Sluice
re-snapshots it:

- two values of the foreign key are equal only by collation;
- two foreign keys set one column at once;
- a foreign key sets a column of a table with generated columns;
- the child table was altered in the same batch;
- the name of the foreign key is unknown, or one of its columns is not captured;
- the foreign key consists of an enum whose labels differ in parent and child;
- the column of the foreign key is a `char` in one table and a `varchar` in the other (the server also copies the blanks that fill a
  `char`);
- rows of the child refer to a zero date;
- a date of the foreign key is a string in only one of the two lake tables, because only this table has `zero_dates: text`.

With MINIMAL row images, a child table also stops in two more cases, because neither the images nor the source have the necessary values
(`tests/spark/snapshot/test_publish_partial_fidelity.py`):

- A foreign key refers to another key than the parent's primary key, and the parent's row is deleted. The parent's row image has the primary
  key and not the other key, and the source no longer has the parent's row.
- A statement changed a child's own key in the same batch as the parent's change. The child's row image lacks the columns that the foreign
  key set.

In both cases, Sluice re-snapshots the child table. The snapshot succeeds if no row of the child changes its key while the child is read.

## Statements

Sluice computes the schema of each table from the DDL statements in the binlog. Two tests check this:

- `tests/table_meta/ddl/test_ddl_corpus.py` executes some 1 300 statements. After each statement, it compares Sluice's schema with
  information_schema of the server.
- `test_ddl_mutations.py` passes some 30 000 random mutations of these statements to Sluice's parser. If Sluice cannot follow a mutated
  statement, it must stop tables, or the engine, in a named state.

If Sluice cannot parse a statement, the target tables of the statement stop in a named state, and other tables continue
(`test_ddl_mistakes.py`). If Sluice cannot determine the target tables, all tables stop whose names occur in the statement. If the
statement contains DATABASE or SCHEMA, all tables of the database also stop.

In the table below, *re-snapshotted* means: Sluice cannot compute the rows after the statement, so the captured table stops in the named
state, and a snapshot reads its rows while the stream continues. With `snapshot: never` in conf/, an operator must start the snapshot
([snapshot](guides/snapshot.md)). A table in SCHEMA_UNKNOWN or SCHEMA_MISMATCH is re-snapshotted too, after Sluice has read the table's
schema from the source.

| statement | does Sluice follow it | test |
|---|---|---|
| a client of any character set, also `SET NAMES binary` | Yes, with the same codecs as for rows. Names, labels and defaults are converted from the client's charset to the connection's and to the column's, with `?` for a character that the target charset lacks. If a name or a label contains bytes that are no character of its charset, the table stops. | `corpus/client_charsets.sql` |
| names: digits behind a point, no-break spaces, `ANSI_QUOTES`, versions of executable comments, lower_case_table_names | Yes, as the servers truncate and fold these names | `corpus/names.sql`, `test_ddl_names.py` |
| MariaDB's `sql_mode=ORACLE` | Yes, except for columns that are defined in this mode: SCHEMA_UNKNOWN | `corpus/names.sql` |
| `CONVERT TO CHARACTER SET` with ENUM or SET | Yes, if the labels' bytes are also characters of the new charset, because the servers leave the bytes unchanged. Otherwise SCHEMA_UNKNOWN | `corpus/client_charsets.sql` |
| RENAME TABLE and ALTER TABLE … RENAME TO between captured names, swaps, chains and circles in one statement, also with alterations | Yes, with the rows: under its new name, each table of the lake equals SELECT. If `include` or `exclude` in conf/ excluded the table's old name, the table is re-snapshotted (DDL_UNSUPPORTED) | random statements on MySQL 5.7 and 8.0, and MariaDB 10.11 and 11.4, and into the lake: `tests/fidelity/tables/test_ddl_renamed_tables.py`; `test_ddl_renames.py` |
| `EXCHANGE PARTITION … WITH TABLE`, MariaDB's `CONVERT PARTITION` and `CONVERT TABLE` | No: both tables are re-snapshotted (DDL_UNSUPPORTED), because rows moved from one to the other without row events | `test_ddl_statements.py`, `test_ddl_retake.py` |
| tables under a MERGE table (`UNION=(…)`), tables of ENGINE MERGE, BLACKHOLE, FEDERATED, CONNECT, SPIDER | No: the row events of these tables do not describe their rows. The tables stop in ROWS_ELSEWHERE when a statement creates them, or when the stream begins if they exist then. A table that is created with `LIKE` from such a table stops too. | `test_ddl_statements.py`, `test_statements_fidelity.py` |
| `ALTER TABLE … DISCARD` and `IMPORT TABLESPACE` | No: the table is re-snapshotted once the tablespace exists (DDL_UNSUPPORTED), because rows disappeared or appeared without row events | on MySQL 8.0: `tests/fidelity/tables/test_imported_ddl.py`; `test_ddl_statements.py` |
| MySQL's `IMPORT TABLE FROM '….sdi'` | No: no binlog event describes this statement. The imported table stops at its first row event (SCHEMA_UNKNOWN), and is re-snapshotted | `tests/fidelity/tables/test_imported_ddl.py` |
| MariaDB's `WITH SYSTEM VERSIONING` | Yes, for current rows: see [system-versioned tables](#system-versioned-tables) | `test_versioned_fidelity.py` |
| MariaDB's `PERIOD FOR name (a, b)`, `WITHOUT OVERLAPS` | Yes: the columns of the period are NOT NULL, and are in the key in the order end, begin. After an ALTER that adds a primary key with a period, the table is SCHEMA_UNKNOWN. The same applies to `ADD PERIOD IF NOT EXISTS` if it is unknown whether the table has the period | `corpus/periods.sql`, `tests/table_meta/change/test_periods.py` |
| MariaDB's `REFERENCES t` without columns | Yes: the foreign key refers to the columns of t that have the names of the child's columns, and not to t's primary key | `corpus/foreign_keys.sql` |
| MariaDB's `sql_mode=EMPTY_STRING_IS_NULL` | Yes: `DEFAULT ''` is NULL. With an expression as DEFAULT, the table is re-snapshotted (DDL_UNSUPPORTED) | `test_ddl_additions.py` |
| MariaDB's `old_mode` without UTF8_IS_UTF8MB3, by which `utf8` is utf8mb4 | No: no binlog event shows this mode. A table that was created in this mode stops at its first row event (SCHEMA_MISMATCH), and is re-snapshotted | |
| names beyond utf8mb3 (`😀x`) | Yes: the name has `?` instead of such a character, as on the server | `corpus/tricks.sql` |
| MySQL 9's JSON duality views, libraries, `SECONDARY_LOAD PARTITION`, `VECTOR` | Yes: only a `VECTOR` column changes a table, and Sluice follows it | `test_ddl_names.py` |
| statements of mysqldump, mydumper, pt-online-schema-change, gh-ost, Vitess, Django, Rails, Flyway, Liquibase, WordPress, phpMyAdmin, MySQL Workbench and sysbench | Yes: afterwards the schema equals the schema of the servers | `corpus/tools.sql` |
| rows changed in statement form (`binlog_format` STATEMENT or MIXED, also LOAD DATA) | No: see [rows changed in statement form](#rows-changed-in-statement-form) | `test_statement_format_fidelity.py`, `test_statements_fidelity.py` |
| MariaDB's `RENAME TABLE` of a temporary table that has the name of a captured table | No: MariaDB logs the statement exactly like a rename of the captured table, without the flag that marks temporary tables, also in ROW format. The captured table stops as if it had been renamed (DDL_REFUSED), and continues after a re-snapshot. Give temporary tables other names. | `test_statements_fidelity.py` |
| MariaDB's sequences, whose row events look like those of a table | Sluice ignores sequences: a sequence neither becomes a table in the lake nor stops a table. Values that tables get from sequences are in the row events of the tables. | `test_statements_fidelity.py` |
| names of columns after their table's and database's name (`DROP t.a`, `CHANGE d.t.a b int`, `MODIFY .a int`), which MySQL 5.7 and MariaDB accept | Yes | `corpus/names.sql` |
| `UPDATE` over an outer join, whose table map declares all columns nullable | Yes | `test_statements_fidelity.py` |
| MariaDB's `ALTER IGNORE` with an action that may delete rows (a key, CHECK, a changed column, CONVERT, partitions) | No: the table is re-snapshotted (DDL_UNSUPPORTED). Other actions of `ALTER IGNORE` are followed | `test_ddl_names.py` |
| ALTER TABLE that changes existing values although the column's type in the lake stays the same. Examples: a column becomes AUTO_INCREMENT; a TIMESTAMP becomes NOT NULL; generated columns are calculated again; a CHAR becomes another type in PAD_CHAR_TO_FULL_LENGTH; TIME or a long DECIMAL gets another number of digits | No: the table is re-snapshotted (DDL_UNSUPPORTED), also if a table without a key gets a key | `test_ddl_alterations.py`, `test_ddl_retake.py` |
| MariaDB's `binlog_alter_two_phase` | Yes: an ALTER counts when it commits, and not when it begins or rolls back | `corpus/keys_and_nulls.sql` |
| `CREATE DATABASE` without a charset | Yes: the database gets the charset of the session (`collation_server`), which the event contains | `corpus/client_charsets.sql` |
| `REFERENCES … MATCH …` with ON DELETE or ON UPDATE | Yes. MySQL 5.7, and MariaDB before 10.5, ignore the text after MATCH. Therefore Sluice ignores ON DELETE and ON UPDATE after MATCH for these servers | `corpus/foreign_keys.sql` |
| an ENUM or SET label with a character beyond U+FFFF | Yes: the label is known from its statement, or from a table map with `binlog_row_metadata=FULL`. A snapshot shows `?` instead of the character, as the server does in results and in SHOW CREATE TABLE. If Sluice read the schema from the server, and `binlog_row_metadata` is MINIMAL, a row with such a label, or with a label that is `?` itself, has a value that cannot be decoded. | `test_statements_fidelity.py` |

### System-versioned tables

The lake has the current rows of a table `WITH SYSTEM VERSIONING`, without the hidden columns for their times. It does not have the history
rows that the server keeps. Sluice drops history rows before it decodes their values. Therefore an undecodable value in a history row
neither stops the table nor goes to quarantine.

Two kinds of system-versioned tables stop:

- A table to which an ALTER adds named columns for the times (`… GENERATED ALWAYS AS ROW START`), because their values in existing rows are
  unknown (DDL_UNSUPPORTED).
- A table that is versioned by transaction (`bigint` columns), because the server logs its changes as statements (STATEMENT_FORMAT).

### Rows changed in statement form

With `binlog_format` STATEMENT or MIXED, the binlog may contain a statement, for example an UPDATE or a LOAD DATA, instead of row events.
Sluice re-snapshots the tables whose rows the statement may change:

| table | state |
|---|---|
| a table that the statement writes | STATEMENT_FORMAT |
| a child table, by a foreign key, of a table that the statement writes | CASCADE_UNSEEN |
| all tables of all databases, if the statement calls a stored function or a procedure | STATEMENT_FORMAT |
| a table that the statement changes through triggers or views, if Sluice's account has the privileges TRIGGER and SHOW VIEW, which MIXED requires | STATEMENT_FORMAT |
| all tables of a database, if the statement writes an unknown table of this database, which may be a view, and the account lacks TRIGGER and SHOW VIEW | STATEMENT_FORMAT |

If the account lacks TRIGGER and SHOW VIEW, Sluice does not notice the following changes. The lake lacks these changes until the changed
tables are re-snapshotted:

- writes by a trigger of the table that the statement names;
- writes by a function that such a trigger calls, or that a view in the statement calls;
- writes through a view whose table is in another database.

If a session with STATEMENT or MIXED runs a TRUNCATE or ALTER whose table may be a temporary table, the captured table with this name stops.
The reason is that the binlog does not say which of the two tables the statement changed.

## Where each case is tested

The number in the first column groups related cases. The last column names a file, and then a test or a part of a statement in this file.

The statements in the files of `tests/table_meta/corpus` are executed by `tests/table_meta/ddl/test_ddl_corpus.py`. The file `additions.txt`
has columns that are added to tables with rows.

| | case | test |
|---|---|---|
"""
CHARSETS_TAIL = """
## Character sets

Sluice decodes the text of every character set as the server itself converts it (`tests/binlog/charsets/test_charsets.py`). Bytes that are
no character of their character set cannot be decoded. The character sets are:

"""


def rendered() -> str:
    header = "| declared | Delta | " + " | ".join(NAMES[server] for server in SERVERS) + " | snapshot | |"
    lines = [header, "|---" * (len(SERVERS) + 4) + "|"]
    lines += [_row(alike) for alike in _alike(_groups())]
    charsets = ", ".join(f"`{name}`" for name in sorted(CHARSETS))
    return f"{HEAD}{chr(10).join(lines)}\n{TAIL}{chr(10).join(cases.rows())}\n{CHARSETS_TAIL}{charsets}.\n"


def _groups() -> list[list[Kind]]:
    """Kinds that are declared alike and become the same, once."""
    groups: dict[tuple[str, str, str], list[Kind]] = {}
    for kind in KINDS:
        groups.setdefault((kind.declared, kind.delta, kind.note), []).append(kind)
    return list(groups.values())


def _alike(groups: list[list[Kind]]) -> list[list[list[Kind]]]:
    """Joins neighbors whose rows differ only in a length, such as bit(2) and bit(3)."""
    return [list(found) for _, found in itertools.groupby(groups, lambda group: (_base(group), *_cells(group)))]


def _base(group: list[Kind]) -> str:
    return re.sub(r"\(.*\)", "", group[0].declared)


def _cells(group: list[Kind]) -> tuple[str, ...]:
    """Returns the cells of a row after the declared type."""
    servers = {server for kind in group for server in kind.servers}
    cells = ("M" if server in servers else "-" for server in SERVERS)
    read = "S, by value" if any(kind.by_value for kind in group) else "S"
    return (group[0].delta, *cells, read, group[0].note)


def _row(alike: list[list[Kind]]) -> str:
    names = [_shown(group[0].declared) for group in alike]
    shown = f"{names[0]}, …, {names[-1]}" if len(names) > 2 else ", ".join(names)
    return f"| {shown} | {' | '.join(_cells(alike[0]))} |"


def _shown(declared: str) -> str:
    first, last = declared.partition(",")[0], declared.rpartition(",")[2]
    return f"`{declared}`" if len(declared) <= LABELS_SHOWN else f"`{first},…,{last}`"


if __name__ == "__main__":
    PAGE.write_text(rendered())
