"""docs/fidelity.md as the catalogue has it. `python -m tests.fidelity.document` writes the page; a test holds it to what is there."""
# ruff: noqa: E501 - rows of a page's tables are long

from __future__ import annotations

from pathlib import Path

from cdc_engine.binlog.charsets.collations import CHARSETS
from tests.fidelity import cases
from tests.fidelity.catalogue import KINDS, Kind
from tests.fidelity.pipeline import SERVERS

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
NAMES = {
    "mysql57": "MySQL 5.7.22",
    "mysql80": "MySQL 8.0.31",
    "mariadb1011": "MariaDB 10.11.5",
    "mariadb114": "MariaDB 11.4.5",
}
LABELS_SHOWN = 40  # characters of a long enum or set
MATRIX, ORACLE = "test_matrix", "test_oracle_schemas"

HEAD = """# Fidelity: what becomes of every type

What is read in Delta is what `SELECT` returns in the source, or the table has stopped in a named state that says why. Made by
`python -m tests.fidelity.document` from the catalogue of the tests; `tests/fidelity/test_document_fidelity.py` fails where it is stale.

M: `tests/fidelity/test_matrix.py` writes this type's corner values on that server with row images FULL, MINIMAL and NOBLOB, with MINIMAL and
(where the server has it) FULL metadata, and compares inserts, updates and deletes with `SELECT`. -: the server has no such type.

S: `tests/fidelity/test_snapshot_fidelity.py` reads rows with the same values by chunks, as a snapshot does, on each server that has the type:
every column equals, to the byte, what the stream brought of the same rows. S, by value: MySQL 5.7 prints a whole double of a document without
its `.0`, so there a snapshot has `1` where the stream has `1.0`, until the row changes.

"""
TAIL = """
## Choices of a table

| `conf/destinations/*.yaml`, `tables: {database.table: …}` | what it does | test |
|---|---|---|
| `zero_dates: null` (default) | zero and partial dates, days that no month has and year 0 are NULL | `test_matrix` |
| `zero_dates: text` | date, datetime and timestamp columns are strings as `SELECT` prints them; timestamps in UTC | `test_oracle_corners` |
| `zero_dates: error` | such a date is a value that cannot be decoded | `test_quarantine_fidelity` |
| `undecodable: stop` (default) | the table stops with TYPE_UNSUPPORTED, naming column, position and reason | `test_quarantine_fidelity` |
| `undecodable: quarantine` | NULL in the row, the bytes in `<lake>/_sluice_quarantine/<destination>`; a key column still stops the table | `test_quarantine_fidelity` |
| `charsets: {column: charset}` | decodes a column by the charset its bytes really have | `test_quarantine_fidelity` |
| `rows: condition` | only rows that meet it ([filter and mask](guides/filter-and-mask.md)) | `test_rules_consumer`, `test_expression_consumer` |
| `masks: {column: hash, null, truncate:n}` | the column shows a digest, nothing, or the beginning of its values | `test_rules_consumer` |

A snapshot keeps to the same choices: its values go through the same decoder (`test_snapshot_fidelity`, `test_snapshot_faults`).

## Keys by which a snapshot cuts a table

Every type that can be a key, in its own order and collation, prefix indexes and composite keys too: each row is in exactly one chunk, at any
moment, on all four servers (`tests/snapshot/test_snapshot_chunks.py`).

| key | |
|---|---|
| whole columns of the primary key | bounds are found and chunks are read over its index: a chunk touches its own rows |
| a prefix index (`PRIMARY KEY (name(10))`), a `set` of more than 53 members, a key that conf/ names and no index has | right, but each bound is a search through the table: take large chunks |
| `uuid` of MariaDB up to 10.11.5 | the server compares versions 6 and 7 otherwise than it sorts them: it is asked, and then compared by text, which no index has |
| none, or JSON or geometry in it | one chunk |

## What no server here can show

| type | Delta | tested by |
|---|---|---|
| MySQL 9 `vector(n)`, MariaDB 11.7 `vector(n)` | binary: the floats as `SELECT` returns them, four bytes each, little-endian | MySQL: a 9.x server, `tests/fidelity/test_vector_fidelity.py`; MariaDB: hand-made images, `tests/binlog/rows/test_column_types.py` |
| MariaDB `xmltype` | none: the table stops with TYPE_UNSUPPORTED | `tests/binlog/rows/test_column_types.py` |
| MariaDB times with `mysql56_temporal_format=OFF` | as the types of today, fractions too | `tests/binlog/oracle/test_old_formats_oracle.py` |
| MariaDB `uuid` columns made before 10.11.5 (`uuid /* old */`) | none: the table stops, since they are stored otherwise; `ALTER TABLE … FORCE` on a newer server | `tests/fidelity/test_document_fidelity.py` |
| GTIDs with a tag (MySQL 8.3 and above) | no column: the position follows them | an event of a 9.2 server and others by hand, `tests/binlog/scan/test_tagged_gtid.py` |

## Documents logged as differences

With `binlog_row_value_options=PARTIAL_JSON` an update has what JSON_SET, JSON_REPLACE and JSON_REMOVE changed in a document (PARTIAL_UPDATE_ROWS).
The differences are applied to the document of the before image, which NOBLOB has too; a table whose image (MINIMAL) leaves the document out
stops with IMAGE_NOT_FULL: `tests/fidelity/rows/test_partial_json.py`.

## Values that rows get from a statement

Rows that are there when a column is added hold what the server made of its DEFAULT; no row event tells it. Held against SELECT on the four
servers, also for a row that is inserted without the column: `tests/table_meta/change/test_ddl_additions.py`.

| ADD of a column | its rows have | |
|---|---|---|
| with a literal DEFAULT as `SHOW CREATE TABLE` prints it: numbers, texts, `x'4142'`, `b'101'`, labels, `'2020-01-02 03:04:05'`, `DATE'…'`, `('x')` | what the type stores of it | followed |
| `NOT NULL DEFAULT 0` or `'0000-00-00 00:00:00'`, or NOT NULL without DEFAULT | the zero date, by the table's `zero_dates`; else the type's zero, of JSON `null` | followed |
| `DEFAULT CURRENT_TIMESTAMP`, `(now(3))`, `(curdate())` | the statement's time in its session's zone, also a named one, and `SYSTEM`: the zone that shows what the server's clocks show (`test_system_zone_ddl.py`) | followed |
| any other DEFAULT: an expression, a JSON document, a number that the type rounds, a label by its number, a date in an unusual form or with an offset, more digits of a second than the column has | the table is re-snapshotted | DDL_UNSUPPORTED until then: `tests/instance/ddl/test_ddl_retake.py` |
| a generated column, AUTO_INCREMENT | the table is re-snapshotted | DDL_UNSUPPORTED until then |
| a time in a zone that is not in the zone database, or that its clocks show twice or never | the table is re-snapshotted | DDL_UNSUPPORTED until then |

## Foreign keys

InnoDB changes child rows without row events (all MariaDB, MySQL before 9.6). With `cascades: apply`, the default, the lake's rows are those of
`SELECT` after:

| | test |
|---|---|
| ON DELETE and ON UPDATE CASCADE and SET NULL, over all levels, of composite keys, of keys within a primary key, of self-references, of tables without a key; REPLACE and foreign_key_checks=0 | random statements on all four servers, and through Spark from MySQL 8.0 and MariaDB 11.4: `tests/fidelity/tables/test_cascade.py` |
| the same with images that leave columns out (MINIMAL, NOBLOB, FULL_NODUP) | the same test, of keys that are the parent's primary key |
| keys of every type that may be one, and of any text | a child in the lake for each, `test_cascade.py` |
| a run that is cut off: before what was derived is kept, after it, with children merged and not their parents, and the other way round | `test_cascade.py`; where the staged files are lost then, what is below such a child stops (CASCADE_UNSEEN) |
| XA, savepoints, triggers and procedures, statements of several tables, temporary tables of the parent's name, CREATE TABLE … SELECT, system-versioned tables, circles, keys that are generated, may be NULL or are not unique | `tests/fidelity/tables/test_cascade_corners.py` |
| a child that is renamed | `tests/fidelity/tables/test_ddl_renamed_tables.py` |
| a parent of an engine without foreign keys (MEMORY, MyISAM: foreign_key_checks=0), which the foreign keys do not follow when it is renamed | all four servers, `tests/table_meta/corpus/foreign_keys.sql` |
| foreign keys made, dropped and renamed by DDL, inline REFERENCES where the server honours them, generated names | all four servers after each statement, `tests/table_meta/corpus/foreign_keys.sql` |
| a parent that is not captured; a child that cannot be followed, which stops (CASCADE, CASCADE_UNSEEN) | `tests/staging/test_cascade_events.py` |

ON DELETE SET DEFAULT changes no row on any server. A table stops where it cannot be told what a foreign key did: values that are equal by
collation alone, two foreign keys that set one column at once, generated columns beside a column that is set, a table that was altered in the
same batch, a foreign key whose name is not known, one of a column that is not captured, enums whose labels are others in the parent, a `char`
and a `varchar` (the server copies the blanks that fill a `char` up), a zero date that children point at, dates that `zero_dates: text` makes
texts in one of both. Such a child is taken anew, CASCADE_UNSEEN.

With MINIMAL images two cases stop in addition, for what would be needed is nowhere: the row of a parent goes to which a foreign key points by
another key than the primary one (the image has the primary key alone, and the source's row is gone), and a statement changed a child's own
key in the same batch (the image lacks the columns that the foreign key then set). Such a child is taken anew by itself, as long
as no row changes its key while it is read: `tests/spark/snapshot/test_publish_partial_fidelity.py`.

## Statements

What a statement makes of a table is held against information_schema of all four servers, after each statement of a corpus of some 600
(`tests/table_meta/ddl/test_ddl_corpus.py`); some 30 000 mutations of all of it give a named stop or nothing (`test_ddl_mutations.py`). A statement that
cannot be read, or that Sluice makes a mistake with, stops the tables that it may concern, by name: those it names, or all that are named
anywhere in it, or all of the database that it is about (`test_ddl_mistakes.py`). The rest goes on.

Taken anew: no rule tells the rows, so the table stops in the state that is named, and its rows are read beside the stream by themselves, unless
conf/ says `snapshot: never`; then it equals SELECT ([snapshot](guides/snapshot.md)). So is every table that a
statement leaves in SCHEMA_UNKNOWN or SCHEMA_MISMATCH, once the source says what it looks like.

| what | followed | test |
|---|---|---|
| a client of any character set, also `SET NAMES binary` | yes, by the codecs that rows have; names, labels and defaults go from the client's charset to the connection's to the column's, with `?` for what the next one lacks; bytes that are no character stop the table where they are in a name or a label | `corpus/client_charsets.sql` |
| names: digits behind a point, no-break spaces, `ANSI_QUOTES`, versions of executable comments, lower_case_table_names | yes, as the servers cut and fold them | `corpus/names.sql`, `test_ddl_names.py` |
| MariaDB's `sql_mode=ORACLE` | yes, but for columns that are defined in it: SCHEMA_UNKNOWN | `corpus/names.sql` |
| `CONVERT TO CHARACTER SET` with ENUM or SET | where the labels' bytes are characters of the new charset too: the servers leave them as they are. Else SCHEMA_UNKNOWN | `corpus/client_charsets.sql` |
| RENAME TABLE and ALTER TABLE … RENAME TO between captured names, swaps, chains and circles in one statement, also with alterations | yes, with the rows: the lake's tables are those of SELECT under each name. From outside the filter it is taken anew, DDL_UNSUPPORTED | random statements on all four servers, and into the lake: `tests/fidelity/tables/test_ddl_renamed_tables.py`; `test_ddl_renames.py` |
| `EXCHANGE PARTITION … WITH TABLE`, MariaDB's `CONVERT PARTITION` and `CONVERT TABLE` | both tables are taken anew, DDL_UNSUPPORTED: rows went from one to the other without row events | `test_ddl_statements.py`, `test_ddl_retake.py` |
| tables under a MERGE table (`UNION=(…)`), tables of ENGINE MERGE, BLACKHOLE, FEDERATED, CONNECT, SPIDER | stop, ROWS_ELSEWHERE, when a statement says so, and from the beginning where they were there before: their rows are not what row events say. So does `CREATE TABLE … LIKE` of one | `test_ddl_statements.py`, `test_statements_fidelity.py` |
| `ALTER TABLE … DISCARD` and `IMPORT TABLESPACE` | taken anew, DDL_UNSUPPORTED, once the tablespace is there: rows went or came without row events | on MySQL 8.0: `tests/fidelity/tables/test_imported_ddl.py`; `test_ddl_statements.py` |
| MySQL's `IMPORT TABLE FROM '….sdi'` | no event tells of it: the table stops at its first row event, SCHEMA_UNKNOWN, and is taken anew | `tests/fidelity/tables/test_imported_ddl.py` |
| MariaDB's `WITH SYSTEM VERSIONING` | the rows of now are in the lake, without the columns that nobody named. What the server keeps as history is not: UPDATE, DELETE, REPLACE, `DELETE HISTORY`, `ADD` and `DROP SYSTEM VERSIONING`, with images FULL, NOBLOB and MINIMAL; values of rows that are history neither stop the table nor go to quarantine. Where an ALTER adds named columns for the times (`… GENERATED ALWAYS AS ROW START`), what rows already there have in them is not told: DDL_UNSUPPORTED. Tables versioned by transaction (`bigint` columns) are logged as statements: STATEMENT_FORMAT | `test_versioned_fidelity.py` |
| MariaDB's `PERIOD FOR name (a, b)`, `WITHOUT OVERLAPS` | its columns are NOT NULL, and in the key as end and begin; ADD PRIMARY KEY with one, by ALTER, is SCHEMA_UNKNOWN | `corpus/periods.sql` |
| MariaDB's `REFERENCES t` without columns | those of t that are called as the columns of the child, and not its primary key | `corpus/foreign_keys.sql` |
| MariaDB's `sql_mode=EMPTY_STRING_IS_NULL` | `DEFAULT ''` is NULL; of an expression as DEFAULT the table is taken anew, DDL_UNSUPPORTED | `test_ddl_additions.py` |
| MariaDB's `old_mode` without UTF8_IS_UTF8MB3, by which `utf8` is utf8mb4 | no event tells it: a table made so stops at its first row, SCHEMA_MISMATCH, and is taken anew | |
| names beyond utf8mb3 (`😀x`) | have `?` there, as on the server | `corpus/tricks.sql` |
| MySQL 9's JSON duality views, libraries, `SECONDARY_LOAD PARTITION`, `VECTOR` | they change no table, but a `VECTOR` column, which is followed | `test_ddl_names.py` |
| what mysqldump, mydumper, pt-online-schema-change, gh-ost, Vitess, Django, Rails, Flyway, Liquibase, WordPress, phpMyAdmin, MySQL Workbench and sysbench send | as the servers have it afterwards | `corpus/tools.sql` |
| rows changed in statement form (`binlog_format` STATEMENT or MIXED, also LOAD DATA) | no: the tables that the statement writes to are taken anew, STATEMENT_FORMAT, and the children of their foreign keys, CASCADE_UNSEEN. Where it names a view, or calls a function, all tables of the database do. What triggers did to other tables is not known. A TRUNCATE in such a session that may mean a temporary table stops the table of its name | `test_statement_format_fidelity.py`, `test_statements_fidelity.py` |
| MariaDB's sequences, whose row events look like those of a table | no tables of the lake, and no stops; the values that tables get from them are in their rows | `test_statements_fidelity.py` |
| names of columns with their table's and database's before them (`DROP t.a`, `CHANGE d.t.a b int`, `MODIFY .a int`), which MySQL 5.7 and MariaDB take | yes | `corpus/names.sql` |
| `UPDATE` over an outer join, whose table map says that all columns may be NULL | yes | `test_statements_fidelity.py` |
| MariaDB's `ALTER IGNORE` with an action that may delete rows (a key, CHECK, a changed column, CONVERT, partitions) | taken anew, DDL_UNSUPPORTED; other actions are followed | `test_ddl_names.py` |
| MariaDB's `binlog_alter_two_phase` | an ALTER counts where it commits, not where it begins or rolls back | `corpus/keys_and_nulls.sql` |
| `CREATE DATABASE` without a charset | has that of the session (collation_server), which its event tells | `corpus/client_charsets.sql` |
| `REFERENCES … MATCH …` with ON DELETE or ON UPDATE | yes; MySQL 5.7 (and MariaDB before 10.5) does not read what stands after MATCH, so there it acts on nothing | `corpus/foreign_keys.sql` |
| an ENUM or SET label with a character beyond U+FFFF | from its statement, or a table map with `binlog_row_metadata=FULL`; a snapshot shows `?` for it, as the servers do, also in SHOW CREATE TABLE: a row with such a label, or one that is `?` itself, is a value that cannot be decoded then | `test_statements_fidelity.py` |

## Where each case is tested

Numbers are those of the list of what real sources do around the rows. A corpus (`tests/table_meta/corpus`) holds statements, each followed by a
look at information_schema on the servers (`tests/table_meta/ddl/test_ddl_corpus.py`), and mutated (`test_ddl_mutations.py`); `additions.txt`, the
columns that are added to rows that are there. Next to a file is the test in it, or a piece of the statement.

| | case | test |
|---|---|---|
"""
CHARSETS_TAIL = """
## Character sets

Every character set of the four servers is decoded as the server converts it, held against the servers by `tests/binlog/charsets/test_charsets.py`, and in
row images by `tests/fidelity/test_matrix.py`;
bytes that are no character of theirs are values that cannot be decoded:
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
    shown = declared if len(declared) <= LABELS_SHOWN else f"{declared[:LABELS_SHOWN]}…"
    cells = " | ".join("M" if server in servers else "-" for server in SERVERS)
    read = "S, by value" if any(kind.by_value for kind in group) else "S"
    return f"| `{shown}` | {group[0].delta} | {cells} | {read} | {group[0].note} |"


if __name__ == "__main__":
    PAGE.write_text(rendered())
