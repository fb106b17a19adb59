"""Lists the numbered cases of what real sources do, with the test of each case. The last table of docs/fidelity.md shows them.

A row is (number, case, file, part). If the file is a test, the part is the name of a test in it. If it is a corpus, the part is a part of
a statement. `test_document_fidelity` checks that each part exists.
"""
# ruff: noqa: E501 - rows of a page's table are long

from __future__ import annotations

CORPUS = "table_meta/corpus"
# In these rows, the part is a piece of a column's definition. `table_meta/change/test_ddl_additions.py` executes the definitions.
ADDITIONS = f"{CORPUS}/additions.txt"
_CLIENTS, _KEYS, _NAMES = (f"{CORPUS}/{name}.sql" for name in ("client_charsets", "keys_and_nulls", "names"))
_ALTERS, _TOOLS, _FOREIGN = (f"{CORPUS}/{name}.sql" for name in ("alter_charset", "tools", "foreign_keys"))
_READ = "table_meta/ddl/test_ddl_names.py"
_MEANT = "table_meta/history/test_ddl_statements.py"
_MISTAKES = "table_meta/history/test_ddl_mistakes.py"
_RENAMES = "table_meta/history/test_ddl_renames.py"
_RETAKE = "instance/ddl/test_ddl_retake.py"
_CASCADE, _CORNERS = "fidelity/tables/test_cascade.py", "fidelity/tables/test_cascade_corners.py"
_STATEMENTS = "fidelity/test_statements_fidelity.py"
_CATALOGUE = "fidelity/catalogue.py"  # `fidelity/test_matrix.py` writes and reads each value.
_ODD = "test_cascades_in_odd_company_are_followed_or_stop_by_name"
_TREES = "test_random_cascades_are_in_the_staged_images"
_STOPS = "test_every_captured_table_of_a_statement_stops"
_RETAKEN = "test_ddl_tables_whose_values_need_their_rows_are_re_snapshotted_and_equal_select"

CASES: tuple[tuple[str, str, str, str], ...] = (
    ("1", "DDL after `SET NAMES binary`", _CLIENTS, "SET NAMES binary"),
    ("1", "FLUSH after `SET NAMES binary`", _CLIENTS, "FLUSH TABLES"),
    ("1", "CREATE USER or any other statement after `SET NAMES binary`", _MISTAKES, "test_ddl_a_client_of_any_charset_is_read"),
    *(("1", f"DDL of a client with the character set {name}", _CLIENTS, f"--@client {name}") for name in ("dec8", "hp8", "swe7", "armscii8", "keybcs2", "macce", "geostd8", "eucjpms")),
    ("1", "the longest text, `text(4294967295)`", _KEYS, "text(4294967295)"),
    ("1", "a text whose length in characters is 4 GiB in bytes", _KEYS, "text(1073741824) CHARSET utf8mb4"),
    ("1", "a text of 4 GiB in a table that conf/ excludes", _MISTAKES, "test_ddl_a_text_beyond_all_lengths_is_a_longtext"),
    ("1", "the parser of DDL statements raises exceptions at random: the tables of the statement stop, and other tables continue", _MISTAKES, "test_ddl_a_mistake_anywhere_stops_the_table_by_name_and_the_rest_continues"),
    ("1", "the parser of DDL statements raises an exception for a statement about a database", _MISTAKES, "test_ddl_a_mistake_about_a_database_stops_what_is_in_it"),
    ("1", "the processing of a table map raises an exception", _MISTAKES, "test_ddl_a_mistake_at_a_table_map_stops_its_table"),
    ("2", "Sluice finds foreign keys that cascade in the schema, on each server", "table_meta/history/test_ddl_foreign_keys_cascade.py", "test_an_account_that_may_only_read_sees_what_cascades"),
    ("2", "`check` and `status` name foreign keys that cascade", "console/test_cascade_commands.py", "test_cascade_of_children_is_named_by_check_and_status"),
    ("2", "the asset of a table and its check name foreign keys that cascade", "orchestration/test_checks.py", "test_cascade_of_children_is_named_by_asset_and_check"),
    ("2", "the setting `cascades` stops the children of foreign keys that cascade", "staging/test_cascade_events.py", "test_cascade_policies_stop_a_table_at_the_first_event_or_leave_it"),
    ("2", "`cascades: apply`: random DML on trees of foreign keys (several levels, self-references, SET NULL, key updates) against SELECT, four servers", _CASCADE, _TREES),
    ("2", "random DML on trees of foreign keys over several batches, compared in the lake", _CASCADE, "test_random_cascades_over_several_batches_are_in_the_lake"),
    ("2", "foreign keys on columns of every type", _CASCADE, "test_cascades_of_keys_of_every_type_find_their_rows_in_the_lake_fidelity"),
    ("2", "foreign keys with XA, savepoints, triggers, temporary tables, circles, and keys that may be NULL", _CORNERS, _ODD),
    ("2", "a run is interrupted between the merges of children and parents", _CASCADE, "test_fault_a_run_killed_between_the_tables_that_cascades_change_is_finished_by_the_next"),
    ("2", "a child that is not captured is reported, and the tables below it stop", "staging/test_cascade_events.py", "test_a_cascade_reaches_through_a_table_that_is_not_captured_and_stops_what_is_below"),
    ("2", "a parent with the engine MEMORY or MyISAM is renamed", _FOREIGN, "RENAME TABLE mem TO mem2"),
    ("2", "DDL creates and drops foreign keys", _FOREIGN, "ON DELETE CASCADE"),
    ("3", "EXCHANGE PARTITION stops both tables", _MEANT, _STOPS),
    ("3", "after EXCHANGE PARTITION, both tables are re-snapshotted", _RETAKE, _RETAKEN),
    ("3", "the schemas of both tables after EXCHANGE PARTITION", _KEYS, "EXCHANGE PARTITION p0 WITH TABLE p2"),
    ("3", "RENAME exchanges the names of two tables", _RENAMES, "test_ddl_two_captured_tables_that_swap_names_take_their_rows_along"),
    ("3", "RENAME of tables with rows in chains and circles of names, on four servers", "fidelity/tables/test_ddl_renamed_tables.py", "test_ddl_random_renames_are_in_the_staged_batches"),
    ("3", "a MERGE table is created over captured tables", _MEANT, "ENGINE=MERGE UNION=(shop.orders, items)"),
    ("3", "a BLACKHOLE table, and a table that is created LIKE it", _MEANT, "ENGINE=BLACKHOLE"),
    ("3", "MERGE and BLACKHOLE tables that exist when the stream begins", _STATEMENTS, "test_tables_of_engines_without_rows_of_their_own_stop_from_the_beginning_ddl"),
    ("3", "CREATE TABLE … LIKE", f"{CORPUS}/create_forms.sql", "LIKE"),
    ("3", "MariaDB's CONVERT PARTITION and CONVERT TABLE", _MEANT, "CONVERT TABLE items TO PARTITION"),
    ("3", "a statement renames a temporary table, and then the table that the temporary table hid", f"{CORPUS}/renames.sql", "hidden TO passing, hidden TO seen"),
    ("3", "MariaDB's sequences become no table of the lake", _STATEMENTS, "test_ddl_of_sequences_makes_no_table"),
    *(("4", f"the unquoted name `db.{name}`", _READ, f"db.{name}") for name in ("20151214", "1e5", "0x12")),
    ("4", "a column's name with its table's name before it", _NAMES, "DROP q.b"),
    ("4", "the unquoted name `db.1e5` on the servers", _NAMES, "ALTER TABLE ddl_names.1e5"),
    ("4", "the quoted name `` `order-items` `` in sql_mode=ORACLE", _NAMES, "TRUNCATE TABLE `order-items`"),
    ("4", "a name that begins with a no-break space", _NAMES, "CREATE TABLE \u00a0nb"),
    ("4", "names with a backslash in ANSI_QUOTES", _NAMES, 'CREATE TABLE "a\\b"'),
    ("4", "lower_case_table_names=1 with Σ, İ, ẞ and every other character", _READ, "test_ddl_names_are_folded_as_the_server_folds_them"),
    ("4", "an executable comment whose text begins with digits", _NAMES, "/*!500011"),
    ("5", "every byte of every charset, also 81, 8D, 8F, 90 and 9D of latin1", "binlog/charsets/test_charsets.py", "test_every_charset_of_every_server_has_a_codec_fidelity"),
    *(("5", f"DDL of a client with the character set {name}", _CLIENTS, f"--@client {name}") for name in ("euckr", "cp866", "greek", "sjis", "ujis")),
    ("5", "a label with a character that the column's charset lacks becomes `?`", _CLIENTS, "enum('😀', 'y') CHARSET utf8mb3"),
    ("5", "CONVERT TO leaves the bytes of labels unchanged", _CLIENTS, "ALTER TABLE c1 CONVERT TO CHARACTER SET latin1"),
    ("6", "the default of an ENUM is a number: `enum('2','1') DEFAULT 1`", ADDITIONS, "enum('2','1') DEFAULT 1"),
    ("6", "the default of a SET is a number: `set('2','1') DEFAULT 3`", ADDITIONS, "set('2','1') DEFAULT 3"),
    *(("6", f"the default of a varchar is the number `{text}`", ADDITIONS, f"varchar(20) DEFAULT {text}") for text in ("1e3", "007", "00.50", "1.")),
    ("6", "a DEFAULT with zero bytes that exists when the stream begins", f"{CORPUS}/create_strings.sql", "CREATE TABLE zero_bytes"),
    ("6", "a DEFAULT date without a day in a session with NO_ZERO_IN_DATE, and `text DEFAULT ''` in a session that is not strict", f"{CORPUS}/session_modes.sql", "CREATE TABLE zd"),
    ("6", "`float(7,3) DEFAULT 1.23456`", ADDITIONS, "float(7,3) DEFAULT 1.23456"),
    ("7", "CREATE DATABASE without a charset", _CLIENTS, "SET collation_server = cp1251_general_ci"),
    ("7", "MariaDB's ALTER IGNORE … ADD UNIQUE", _READ, "test_ddl_alter_ignore_may_delete_rows"),
    ("7", "ALTER IGNORE … MODIFY … NOT NULL", _KEYS, "ALTER IGNORE TABLE s2 ADD UNIQUE (a), MODIFY b int NOT NULL"),
    ("7", "ALTER in two phases (`binlog_alter_two_phase`): START, COMMIT, ROLLBACK", _READ, "test_ddl_an_alter_in_two_phases_counts_where_it_commits"),
    ("7", "`binlog_alter_two_phase` on the servers, also with an ALTER that fails", _KEYS, "SET binlog_alter_two_phase = 1"),
    ("8", "AUTO_INCREMENT on a key that is not the primary key", _KEYS, "CREATE TABLE a1 (a int, b int AUTO_INCREMENT, KEY (b))"),
    ("8", "ALTER with `ADD (…, CONSTRAINT c PRIMARY KEY (a))`", _KEYS, "CONSTRAINT cc PRIMARY KEY (a)"),
    ("8", "ALTER with `DROP a, ADD a` for a column of a key", _KEYS, "ALTER TABLE k3 DROP a, ADD a int"),
    ("8", "`SERIAL NULL`", _KEYS, "serial NULL"),
    ("8", "CREATE TABLE IF NOT EXISTS after a DROP that stopped the table", "table_meta/change/test_ddl_policy.py", "test_ddl_a_table_that_is_created_again_loses_the_rows_of_the_one_before"),
    ("9", "ADD of `datetime NOT NULL DEFAULT '0000-00-00 00:00:00'`", ADDITIONS, "datetime NOT NULL DEFAULT '0000-00-00 00:00:00'"),
    ("9", "ADD of `datetime NOT NULL DEFAULT 0`", ADDITIONS, "datetime NOT NULL DEFAULT 0"),
    ("9", "ADD with `DEFAULT CURRENT_TIMESTAMP` in a named time zone", "table_meta/change/test_ddl_added_values.py", "test_ddl_a_named_zone_has_the_rules_of_the_zone_database"),
    ("9", "ADD with `DEFAULT CURRENT_TIMESTAMP` in the time zone `SYSTEM`", "table_meta/history/test_system_zone_ddl.py", "test_rows_there_get_the_time_of_the_system_zone_ddl"),
    ("9", "ADD of a generated column with a constant value re-snapshots the table", ADDITIONS, "varchar(20) AS ('x')"),
    ("9", "ADD of a column that is generated from other columns re-snapshots the table", _RETAKE, _RETAKEN),
    ("9", "ADD of a JSON column that is NOT NULL", ADDITIONS, "json NOT NULL"),
    ("9", "ADD with a constant expression as DEFAULT re-snapshots the table", ADDITIONS, "bigint DEFAULT (60*60*24)"),
    ("9", "ADD with any other expression as DEFAULT re-snapshots the table", ADDITIONS, "varchar(36) DEFAULT (uuid())"),
    ("9", "ALTER with `ADD (…, PRIMARY KEY (x))`", _ALTERS, "ADD (h int NOT NULL, PRIMARY KEY (h))"),
    ("9", "MariaDB's system versioning", "fidelity/tables/test_versioned_fidelity.py", "test_rows_that_the_server_keeps_as_history_are_left_out_fidelity"),
    ("9", "`DEFAULT DATE '…'`", ADDITIONS, "date DEFAULT DATE '2020-01-02'"),
    ("9", "`DEFAULT TIMESTAMP'…'`", ADDITIONS, "datetime DEFAULT TIMESTAMP'2020-01-02 03:04:05'"),
    ("9", "labels in hexadecimal and binary form", f"{CORPUS}/server_suites.sql", "enum(0x41, x'42', b'1000011')"),
    ("9", "`DEFAULT _utf8mb4 x'41'`", ADDITIONS, "varchar(20) DEFAULT _utf8mb4 x'41'"),
    ("9", "`CHARACTER SET = DEFAULT`", _ALTERS, "CHARACTER SET = DEFAULT"),
    ("9", "the type `decimal(19.5)`, with a point instead of a comma", ADDITIONS, "decimal(19.5) DEFAULT 1.5"),
    ("9", "Vitess swaps two tables through one of Vitess' own table names", _RENAMES, "test_ddl_vitess_swaps_over_a_name_of_its_own"),
    ("9", "the names that Vitess uses for swaps, on the servers", _TOOLS, "_vt_HOLD_"),
    ("10", "SET of 8 to 63 members", _CATALOGUE, "set(\" + \",\".join(f\"'m{n}'\""),
    ("10", "ENUM of 255, 256 and 257 labels", _CATALOGUE, "(255, 256, 257)"),
    ("10", "every `bit(n)`", _CATALOGUE, "range(1, 65)"),
    ("10", "decimals whose digits leave every possible remainder when divided into groups of nine", _CATALOGUE, "remainders ="),
    ("10", "denormal doubles", _CATALOGUE, "4.9e-324"),
    ("10", "negative times with fractions of a second", _CATALOGUE, "-838:59:59"),
    ("10", "text in every charset", "fidelity/test_matrix.py", "test_every_type_is_what_select_returns_fidelity"),
    ("10", "JSON with duplicate keys", _CATALOGUE, '{"a": 1, "a": 2'),
    ("10", "values of YEAR, BIT and ENUM in a JSON document", _CATALOGUE, "JSON_ARRAY(y, b, e, s)"),
    ("10", "a JSON object with 3 000 keys", _CATALOGUE, "range(3000)"),
    ("10", "a JSON document with 99 levels", _CATALOGUE, '"[" * 99'),
    ("10", "an empty geometry", _CATALOGUE, "010700000000000000"),
    ("11", "every statement of the corpus on all five servers", "table_meta/ddl/test_ddl_corpus.py", "test_every_statement_gives_the_schema_that_the_server_has"),
    ("11", "random mutations of every statement of the corpus", "table_meta/ddl/test_ddl_mutations.py", "test_ddl_mutations_give_a_named_stop_or_nothing"),
    ("11", "damaged binlog events", "fidelity/oracle/test_fuzz.py", "test_damaged_events_end_in_rows_or_named_errors_fidelity"),
)  # fmt: skip


def rows() -> list[str]:
    """Returns the cases as rows of a Markdown table."""
    return [f"| {number} | {case} | {_shown(file, piece)} |" for number, case, file, piece in CASES]


def _shown(file: str, piece: str) -> str:
    fence = "``" if "`" in piece else "`"
    space = " " if "`" in piece else ""
    return f"`tests/{file}`: {fence}{space}{piece.removeprefix('--@')}{space}{fence}"
