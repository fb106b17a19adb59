"""Makes docs/fidelity.md from the catalogue. `python -m tests.fidelity.document` writes the page. A test compares the page with the
catalogue.
"""
# ruff: noqa: E501 - rows of a page's tables are long

from __future__ import annotations

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

This page shows how Sluice stores each type and each statement of the source in the lake. A value in the lake equals what `SELECT`
returns in the source, or the table has stopped in a named state with the reason. `python -m tests.fidelity.document` generates this
page from the catalogue of the tests; `tests/fidelity/test_document_fidelity.py` fails if the page is outdated.

| mark | meaning |
|---|---|
| M | `tests/fidelity/test_matrix.py` writes this type's corner values on that server and compares inserts, updates and deletes with `SELECT`. It uses row images FULL, MINIMAL and NOBLOB, with MINIMAL metadata and, if the server has it, FULL metadata. |
| - | The server has no such type. |
| S | `tests/fidelity/test_snapshot_fidelity.py` reads rows with the same values in chunks, as a snapshot does, on each server that has the type. Every column equals the stream's value, to the byte. |
| S, by value | MySQL 5.7 prints a whole double of a JSON document without its `.0`. So a snapshot has `1` there if the stream has `1.0`, until the row changes. |

"""
TAIL = """
## Settings of a table

| `conf/destinations/*.yaml`, `tables: {database.table: …}` | effect | test |
|---|---|---|
| `zero_dates: null` (default) | Zero and partial dates, days that no month has, and year 0 are NULL. | `test_matrix` |
| `zero_dates: text` | Columns of date, datetime and timestamp are strings, as `SELECT` prints them. Timestamps are in UTC. | `test_oracle_corners` |
| `zero_dates: error` | Such a date counts as a value that cannot be decoded. | `test_quarantine_fidelity` |
| `undecodable: stop` (default) | The table stops with TYPE_UNSUPPORTED. The reason names column, position and cause. | `test_quarantine_fidelity` |
| `undecodable: quarantine` | The row has NULL, and `<lake>/_sluice_quarantine/<destination>` has the bytes. A value in a key column still stops the table. | `test_quarantine_fidelity` |
| `charsets: {column: charset}` | Sluice decodes the column with this charset, which its bytes really have. | `test_quarantine_fidelity` |
| `rows: condition` | The lake gets only rows that match the condition ([filter and mask](guides/filter-and-mask.md)). | `test_rules_consumer`, `test_expression_consumer` |
| `masks: {column: hash, null, truncate:n}` | The column shows a digest, nothing, or the beginning of its values. | `test_rules_consumer` |
| `transform` | A function of yours writes columns and may drop rows ([transform](guides/transform.md)). | `test_transform`, `test_transforms_snapshot` |

Snapshots and the stream follow these settings in the same way, because one decoder reads the values of both
(`test_snapshot_fidelity`, `test_snapshot_faults`).

## Keys by which a snapshot divides a table

A snapshot can divide a table into chunks by a key of every type, in the order and collation of the key, also by prefix indexes and
composite keys. Each row is in exactly one chunk, on all four servers (`tests/snapshot/test_snapshot_chunks.py`).

| key | |
|---|---|
| whole columns of the primary key | The index of the key gives bounds and chunks, so a chunk reads only its own rows. |
| a prefix index (`PRIMARY KEY (name(10))`), a `set` of more than 53 members, or a key that conf/ names and that no index has | The result is right, but each bound needs a search through the table. Use large chunks. |
| `uuid` of MariaDB up to 10.11.5 | The server compares UUIDs of versions 6 and 7 in another order than it sorts them. Sluice detects such a server and compares the text of UUIDs, for which there is no index. |
| no key, or a key with JSON or geometry | The whole table is one chunk. |

## Types that no test server has

| type | Delta | test |
|---|---|---|
| MySQL 9 `vector(n)`, MariaDB 11.7 `vector(n)` | binary, with the floats as `SELECT` returns them (four bytes each, little-endian) | MySQL: with a 9.x server, `tests/fidelity/test_vector_fidelity.py`. MariaDB: with hand-made images, `tests/binlog/rows/test_column_types.py` |
| MariaDB `xmltype` | none, because the table stops with TYPE_UNSUPPORTED | `tests/binlog/rows/test_column_types.py` |
| MariaDB times with `mysql56_temporal_format=OFF` | the same types as for current columns, also with fractions | `tests/binlog/oracle/test_old_formats_oracle.py` |
| MariaDB `uuid` columns made before 10.11.5 (`uuid /* old */`) | none, because these columns are stored differently and their table stops. Run `ALTER TABLE … FORCE` on a newer server | `tests/fidelity/test_document_fidelity.py` |
| GTIDs with a tag (MySQL 8.3 and above) | no column, because GTIDs are in positions only | with an event of a 9.2 server and hand-made events, `tests/binlog/scan/test_tagged_gtid.py` |

## JSON logged as differences

With `binlog_row_value_options=PARTIAL_JSON`, an update in the binlog contains what JSON_SET, JSON_REPLACE and JSON_REMOVE changed
in a document, not the whole document. Sluice applies these differences to the document in the before image, which FULL and NOBLOB
images contain. If a MINIMAL before image lacks the document, the table stops in IMAGE_NOT_FULL
(`tests/fidelity/rows/test_partial_json.py`).

## Values that rows get from a statement

When an ALTER adds a column, the server computes the value of existing rows from the column's DEFAULT, and no row event contains
this value. Sluice computes the value itself, or a snapshot reads it. `tests/table_meta/change/test_ddl_additions.py` compares the
results with SELECT on the four servers, also for a row that is inserted without the column.

| ALTER TABLE … ADD of a column | value in existing rows | |
|---|---|---|
| with a literal DEFAULT as `SHOW CREATE TABLE` prints it: numbers, strings, `x'4142'`, `b'101'`, labels, `'2020-01-02 03:04:05'`, `DATE'…'`, `('x')` | the value that the type stores for it | Sluice computes it |
| `NOT NULL DEFAULT 0` or `'0000-00-00 00:00:00'`, or NOT NULL without DEFAULT | the zero date, by the table's `zero_dates`. For other types the zero of the type, and `null` for JSON | Sluice computes it |
| `DEFAULT CURRENT_TIMESTAMP`, `(now(3))`, `(curdate())` | the statement's time in the time zone of its session. For the zone `SYSTEM`, Sluice finds a zone with the server's local time (`test_system_zone_ddl.py`) | Sluice computes it |
| any other DEFAULT: an expression, a JSON document, a number that the type rounds, a label by its number. Also a date in an unusual form or with an offset, and a time with more digits than the column has. | a snapshot reads it | the table is DDL_UNSUPPORTED until then: `tests/instance/ddl/test_ddl_retake.py` |
| a generated column, AUTO_INCREMENT | a snapshot reads it | the table is DDL_UNSUPPORTED until then |
| a time in a zone that is not in the zone database, or a local time that occurs twice or never in its zone | a snapshot reads it | the table is DDL_UNSUPPORTED until then |

## Foreign keys

InnoDB changes child rows without row events, in all versions of MariaDB and in MySQL before 9.6. With `cascades: apply`, the default, the
lake's rows equal `SELECT` in these cases:

| | test |
|---|---|
| ON DELETE and ON UPDATE CASCADE and SET NULL, over all levels, of composite keys, of keys within a primary key, of self-references, of tables without a key; REPLACE and foreign_key_checks=0 | random statements on all four servers, and through Spark from MySQL 8.0 and MariaDB 11.4: `tests/fidelity/tables/test_cascade.py` |
| these foreign keys, if row images leave columns out (MINIMAL, NOBLOB, FULL_NODUP) | the same test, for foreign keys that refer to the parent's primary key |
| keys of every type that a key may have, and of any string | `test_cascade.py`, with a child in the lake for each type |
| A run is interrupted: before or after the derived rows are stored, or when only children or only parents are merged. | `test_cascade.py`. If the staged files are also lost, tables below such a child stop (CASCADE_UNSEEN) |
| XA, savepoints, triggers and procedures, statements of several tables, temporary tables of the parent's name, CREATE TABLE … SELECT, system-versioned tables, circles, keys that are generated, may be NULL or are not unique | `tests/fidelity/tables/test_cascade_corners.py` |
| a child that is renamed | `tests/fidelity/tables/test_ddl_renamed_tables.py` |
| a parent of an engine without foreign keys (MEMORY, MyISAM: foreign_key_checks=0), which the foreign keys do not follow when it is renamed | `tests/table_meta/corpus/foreign_keys.sql`, on all four servers |
| foreign keys that DDL creates, drops and renames, inline REFERENCES on servers that apply them, and generated names | `tests/table_meta/corpus/foreign_keys.sql`, on all four servers, after each statement |
| A parent is not captured. A child that cannot be followed stops (CASCADE, CASCADE_UNSEEN). | `tests/staging/test_cascade_events.py` |

ON DELETE SET DEFAULT changes no row on any server.

If Sluice cannot know which rows a foreign key changed, the child table stops in CASCADE_UNSEEN and Sluice re-snapshots it, in these
cases:

- two values of the key are equal only by collation;
- two foreign keys set one column at once;
- a foreign key sets a column of a table with generated columns;
- the table was altered in the same batch;
- the name of the foreign key is unknown, or one of its columns is not captured;
- enums have other labels in the parent;
- one column is a `char` and the other a `varchar` (the server copies the blanks that fill a `char`);
- children refer to a zero date;
- dates are strings in only one of the two tables, because of `zero_dates: text`.

With MINIMAL row images, a child table stops in two more cases, because neither the images nor the source have the necessary values.
Sluice re-snapshots the child automatically, if no row changes its key while the child is read:

- A foreign key refers to another key than the parent's primary key, and the parent's row is deleted. The row image has the primary
  key and not the other key, and the row is gone from the source.
- A statement changed a child's own key in the batch of the parent's change. The row image lacks the columns that the foreign key
  set.

`tests/spark/snapshot/test_publish_partial_fidelity.py` tests these two cases of MINIMAL row images.

## Statements

For each of some 600 statements, a test compares the schema that Sluice computes with information_schema of all four servers
(`tests/table_meta/ddl/test_ddl_corpus.py`). Another test shows that some 30 000 mutations of these statements stop a table in a
named state, or have no effect (`test_ddl_mutations.py`).

If Sluice cannot read a statement, the tables that the statement may concern stop in a named state, and other tables continue. These
are the target tables of the statement, or all tables whose names occur in it, or all tables of its database
(`test_ddl_mistakes.py`).

*Re-snapshotted* in the table below means that Sluice cannot compute the rows after a statement. The table stops in the named state,
and a snapshot reads its rows automatically while the stream continues, unless conf/ has `snapshot: never`
([snapshot](guides/snapshot.md)). A table that a statement leaves in SCHEMA_UNKNOWN or SCHEMA_MISMATCH is re-snapshotted too, after
the source has reported its schema.

| statement | does Sluice follow it | test |
|---|---|---|
| a client of any character set, also `SET NAMES binary` | Yes, with the same codecs as for rows. Names, labels and defaults are converted from the client's charset to the connection's and to the column's, with `?` for a character that the next charset lacks. Bytes that are no character stop the table if they are in a name or a label. | `corpus/client_charsets.sql` |
| names: digits behind a point, no-break spaces, `ANSI_QUOTES`, versions of executable comments, lower_case_table_names | Yes, as the servers truncate and fold these names | `corpus/names.sql`, `test_ddl_names.py` |
| MariaDB's `sql_mode=ORACLE` | Yes, except for columns that are defined in this mode: SCHEMA_UNKNOWN | `corpus/names.sql` |
| `CONVERT TO CHARACTER SET` with ENUM or SET | Yes, if the labels' bytes are also characters of the new charset, because the servers leave the bytes unchanged. Otherwise SCHEMA_UNKNOWN | `corpus/client_charsets.sql` |
| RENAME TABLE and ALTER TABLE … RENAME TO between captured names, swaps, chains and circles in one statement, also with alterations | Yes, with the rows: each table of the lake equals SELECT under its new name. A table that the filter excluded before is re-snapshotted (DDL_UNSUPPORTED) | random statements on all four servers, and into the lake: `tests/fidelity/tables/test_ddl_renamed_tables.py`; `test_ddl_renames.py` |
| `EXCHANGE PARTITION … WITH TABLE`, MariaDB's `CONVERT PARTITION` and `CONVERT TABLE` | No: both tables are re-snapshotted (DDL_UNSUPPORTED), because rows moved from one to the other without row events | `test_ddl_statements.py`, `test_ddl_retake.py` |
| tables under a MERGE table (`UNION=(…)`), tables of ENGINE MERGE, BLACKHOLE, FEDERATED, CONNECT, SPIDER | No: these tables stop in ROWS_ELSEWHERE when a statement creates them, or at the beginning if they existed before. Their row events do not describe their rows. A table that is created with `LIKE` from such a table stops too. | `test_ddl_statements.py`, `test_statements_fidelity.py` |
| `ALTER TABLE … DISCARD` and `IMPORT TABLESPACE` | No: the table is re-snapshotted once the tablespace exists (DDL_UNSUPPORTED), because rows disappeared or appeared without row events | on MySQL 8.0: `tests/fidelity/tables/test_imported_ddl.py`; `test_ddl_statements.py` |
| MySQL's `IMPORT TABLE FROM '….sdi'` | No event describes it. So the table stops at its first row event (SCHEMA_UNKNOWN), and is re-snapshotted | `tests/fidelity/tables/test_imported_ddl.py` |
| MariaDB's `WITH SYSTEM VERSIONING` | Yes: the current rows are in the lake, without the unnamed columns. The history that the server keeps is not in the lake. The test has UPDATE, DELETE, REPLACE, `DELETE HISTORY`, `ADD` and `DROP SYSTEM VERSIONING`, with images FULL, NOBLOB and MINIMAL. Values of history rows neither stop the table nor go to quarantine. If an ALTER adds named columns for the times (`… GENERATED ALWAYS AS ROW START`), their values in existing rows are unknown, and the table is DDL_UNSUPPORTED. Tables versioned by transaction (`bigint` columns) are logged as statements, so they stop in STATEMENT_FORMAT. | `test_versioned_fidelity.py` |
| MariaDB's `PERIOD FOR name (a, b)`, `WITHOUT OVERLAPS` | Yes: the columns of the period are NOT NULL, and are in the key in the order end, begin. After an ALTER that adds a primary key with a period, the table is SCHEMA_UNKNOWN | `corpus/periods.sql` |
| MariaDB's `REFERENCES t` without columns | Yes: it refers to the columns of t with the names of the child's columns, and not to t's primary key | `corpus/foreign_keys.sql` |
| MariaDB's `sql_mode=EMPTY_STRING_IS_NULL` | Yes: `DEFAULT ''` is NULL. With an expression as DEFAULT, the table is re-snapshotted (DDL_UNSUPPORTED) | `test_ddl_additions.py` |
| MariaDB's `old_mode` without UTF8_IS_UTF8MB3, by which `utf8` is utf8mb4 | No event shows this mode. So a table that was created in it stops at its first row (SCHEMA_MISMATCH), and is re-snapshotted | |
| names beyond utf8mb3 (`😀x`) | Yes: the name has `?` instead of such a character, as on the server | `corpus/tricks.sql` |
| MySQL 9's JSON duality views, libraries, `SECONDARY_LOAD PARTITION`, `VECTOR` | Yes: only a `VECTOR` column changes a table, and Sluice follows it | `test_ddl_names.py` |
| statements of mysqldump, mydumper, pt-online-schema-change, gh-ost, Vitess, Django, Rails, Flyway, Liquibase, WordPress, phpMyAdmin, MySQL Workbench and sysbench | Yes: afterwards the schema equals the schema of the servers | `corpus/tools.sql` |
| rows changed in statement form (`binlog_format` STATEMENT or MIXED, also LOAD DATA) | No: the tables that the statement writes are re-snapshotted (STATEMENT_FORMAT), and so are the children of their foreign keys (CASCADE_UNSEEN). If the statement calls a stored function or a procedure, all tables of all databases are re-snapshotted. If the account has TRIGGER and SHOW VIEW, as MIXED requires, the tables that triggers and views change are re-snapshotted too. Without these privileges, all tables of an unknown table's database are re-snapshotted, because this table may be a view. Two effects on other tables are then not noticed. One is a write by a trigger of the table, or by a function that the trigger or the view calls. The other is a write through a view whose table is in another database. Such a table continues without these changes, until it is re-snapshotted. If a TRUNCATE or ALTER in such a session may mean a temporary table, the table with this name stops. | `test_statement_format_fidelity.py`, `test_statements_fidelity.py` |
| MariaDB's `RENAME TABLE` of a temporary table that has the name of a captured table | No: MariaDB logs it exactly as it logs a rename of the captured table, without the flag that marks temporary tables, also in ROW format. The captured table stops as if it had been renamed (DDL_REFUSED), and a re-snapshot resumes it. Give temporary tables other names. | `test_statements_fidelity.py` |
| MariaDB's sequences, whose row events look like those of a table | Sluice ignores them: sequences make no tables in the lake and stop nothing. Values that tables get from sequences are in the rows of the tables. | `test_statements_fidelity.py` |
| names of columns after their table's and database's name (`DROP t.a`, `CHANGE d.t.a b int`, `MODIFY .a int`), which MySQL 5.7 and MariaDB accept | Yes | `corpus/names.sql` |
| `UPDATE` over an outer join, whose table map declares all columns nullable | Yes | `test_statements_fidelity.py` |
| MariaDB's `ALTER IGNORE` with an action that may delete rows (a key, CHECK, a changed column, CONVERT, partitions) | No: the table is re-snapshotted (DDL_UNSUPPORTED). Other actions of `ALTER IGNORE` are followed | `test_ddl_names.py` |
| MariaDB's `binlog_alter_two_phase` | Yes: an ALTER counts when it commits, and not when it begins or rolls back | `corpus/keys_and_nulls.sql` |
| `CREATE DATABASE` without a charset | Yes: the database gets the charset of the session (`collation_server`), which the event contains | `corpus/client_charsets.sql` |
| `REFERENCES … MATCH …` with ON DELETE or ON UPDATE | Yes. MySQL 5.7, and MariaDB before 10.5, do not read what follows MATCH, so it has no effect there | `corpus/foreign_keys.sql` |
| an ENUM or SET label with a character beyond U+FFFF | Yes: the label is known from its statement, or from a table map with `binlog_row_metadata=FULL`. A snapshot shows `?` instead of it, as the servers do, also in SHOW CREATE TABLE. A row with such a label, or with a label that is `?` itself, then has a value that cannot be decoded. | `test_statements_fidelity.py` |

## Where each case is tested

The table in this section names the test of each numbered case. The last column names a file, and then a test in this file or a part
of a statement. Files of `tests/table_meta/corpus` contain statements, which `tests/table_meta/ddl/test_ddl_corpus.py` executes.
After each statement, it compares information_schema of the servers. `additions.txt` has columns that are added to tables with rows.

| | case | test |
|---|---|---|
"""
CHARSETS_TAIL = """
## Character sets

Sluice decodes the text of every character set of the four servers as the server itself converts it.
`tests/binlog/charsets/test_charsets.py` compares the results with the servers, and `tests/fidelity/test_matrix.py` compares text in
row images. Bytes that are no character of their character set cannot be decoded.

"""


def rendered() -> str:
    header = "| declared | Delta | " + " | ".join(NAMES[server] for server in SERVERS) + " | snapshot | |"
    lines = [header, "|---" * (len(SERVERS) + 4) + "|"]
    lines += [_row(group) for group in _groups()]
    charsets = ", ".join(f"`{name}`" for name in sorted(CHARSETS))
    return f"{HEAD}{chr(10).join(lines)}\n{TAIL}{chr(10).join(cases.rows())}\n{CHARSETS_TAIL}{charsets}.\n"


def _groups() -> list[list[Kind]]:
    """Kinds that are declared alike and become the same, once."""
    groups: dict[tuple[str, str, str], list[Kind]] = {}
    for kind in KINDS:
        groups.setdefault((kind.declared, kind.delta, kind.note), []).append(kind)
    return list(groups.values())


def _row(group: list[Kind]) -> str:
    servers = {server for kind in group for server in kind.servers}
    declared = group[0].declared
    first, last = declared.partition(",")[0], declared.rpartition(",")[2]
    shown = declared if len(declared) <= LABELS_SHOWN else f"{first},…,{last}"
    cells = " | ".join("M" if server in servers else "-" for server in SERVERS)
    read = "S, by value" if any(kind.by_value for kind in group) else "S"
    return f"| `{shown}` | {group[0].delta} | {cells} | {read} | {group[0].note} |"


if __name__ == "__main__":
    PAGE.write_text(rendered())
