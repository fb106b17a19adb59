"""Prevents wrong bounds in the file statistics of Delta tables, because deltalake rounds the bounds of long decimals. All code that writes
with deltalake uses this module.

deltalake converts the bounds of a decimal to a float. For a BIGINT UNSIGNED, it writes 9223372036854775807 instead of
18446744073709551615, and 4611686018427387904 instead of 4611686018427387905. A reader that trusts such a bound skips the file, and a merge
inserts the key a second time. So columns with more digits than a float can represent get no bounds, and readers read their files.

In a table with Delta's column mapping, Parquet files have physical column names, and `writer_properties` uses these names. Earlier versions
of Sluice used the logical names, which had no effect, so deltalake wrote rounded bounds. `rounded_files` finds such files, and `fix_bounds`
lets Spark rewrite them.
"""

from __future__ import annotations

import decimal
import logging
import urllib.parse
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties

from sluice.object_stores.errors import StoreError
from sluice.object_stores.files import opened
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.durable_lake import local_folder
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.session import LakeSession
from sluice.spark_jobs.staged_batch import ORDER_KEY
from sluice.spark_jobs.tables.delta_table import MAPPING_PROPERTY, DeltaTable, set_properties
from sluice.spark_jobs.tables.local_log import physical_name

logger = logging.getLogger(__name__)

DIGITS_MAX = 15  # The number of decimal digits that a float represents exactly.
COMPRESSION: Literal["SNAPPY"] = "SNAPPY"  # the default of deltalake
# A table with column mapping gets this property after all its files were checked for bounds (minimum or maximum of a column) that
# deltalake rounded. The table is not checked again, because files that are written later have correct bounds.
EXACT_PROPERTY = "sluice.exactBounds"
# Spark and pyarrow do not round bounds. The field `created_by` of their Parquet files begins with one of these words, in contrast to files
# of deltalake.
EXACT_WRITERS = ("parquet-mr", "parquet-cpp")
FOOTERS_AT_ONCE = 8
CLUSTERING = "clustering"
# Without this setting, ZORDER BY fails if the column of the order key has no statistics.
REWRITE_SETTINGS = {"spark.databricks.delta.optimize.zorder.checkStatsCollection.enabled": "false"}


def writer_properties(schema: pa.Schema) -> Any:
    """Returns `WriterProperties` that write no bounds for long decimals (`is_long`). Returns None, which is deltalake's default, if all
    bounds are exact.

    `schema` is deltalake's schema of the Delta table, because its fields have the physical names. For a new table, `schema` is the schema
    of the rows.
    """
    doubtful = [field for field in schema if is_long(field.type)]
    if not doubtful:
        return None
    nothing, bounds = ColumnProperties(statistics_enabled="NONE"), ColumnProperties(statistics_enabled="CHUNK")
    if not any(pa.types.is_nested(field.type) for field in doubtful):
        inexact = {physical_name(field): nothing for field in doubtful}
        return WriterProperties(compression=COMPRESSION, column_properties=inexact)
    # deltalake does not accept the names of nested columns, so bounds cannot be switched off for them one by one. So bounds are switched
    # off for all columns, and then on again for each column with exact bounds.
    exact = {physical_name(field): bounds for field in schema if field not in doubtful}
    return WriterProperties(compression=COMPRESSION, default_column_properties=nothing, column_properties=exact)


def without_mapping(schema: pa.Schema) -> pa.Schema:
    """Returns the schema without the physical column names, which belong to one table only."""
    return pa.schema([pa.field(field.name, _plain(field.type), field.nullable) for field in schema])


def may_be_rounded(table: DeltaTable) -> bool:
    """Returns whether the table may have files with bounds (minimum or maximum of a column) that deltalake rounded: it has column mapping
    and long decimals, and its files have not been checked yet. Reads neither the files nor the list of files.
    """
    properties = table.snapshot.properties
    mapped = properties.get(MAPPING_PROPERTY, "none") != "none"
    return mapped and properties.get(EXACT_PROPERTY) != "true" and bool(_long_columns(table.arrow_schema))


def rounded_files(name: str, log: Any, path: str, storage_options: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the files of a table whose bounds (minimum or maximum of a column) deltalake may have rounded, as paths in the log. `name` is
    the "database.table" for errors. `log` is the table, opened with deltalake.

    Reads only footers, and only those of files that have a bound with more than DIGITS_MAX digits. Raises TableError if a file cannot be
    read.
    """
    properties = log.metadata().configuration
    if properties.get(MAPPING_PROPERTY, "none") == "none" or properties.get(EXACT_PROPERTY) == "true":
        return ()
    files: Any = pa.table(log.get_add_actions(flatten=True))
    unsure: Any = pa.array([False] * files.num_rows, pa.bool_())
    for column, kind in _long_columns(_schema(log)):
        limit = pa.scalar(
            decimal.Decimal(1).scaleb(DIGITS_MAX - kind.scale), pa.decimal256(DIGITS_MAX + 61, kind.scale)
        )
        for bound in (f"min.{column}", f"max.{column}"):
            if bound in files.column_names:
                size = pc.abs(pc.cast(files[bound], pa.decimal256(DIGITS_MAX + 61, kind.scale)))
                unsure = pc.or_(unsure, pc.fill_null(pc.greater_equal(size, limit), pa.scalar(value=False)))
    chosen = files.filter(unsure)["path"].to_pylist()
    try:
        with ThreadPoolExecutor(FOOTERS_AT_ONCE, thread_name_prefix="footers") as pool:
            by_deltalake = list(pool.map(lambda each: _is_of_deltalake(path, each, storage_options), chosen))
    except (OSError, pa.ArrowException, StoreError) as error:
        why = (
            f"a file of the Delta table {path} cannot be read ({error}), so Sluice does not know whether the minimum and "
            "maximum of its columns are exact; check the disk or object store of the table"
        )
        raise TableError(name, why, own=False) from error
    return tuple(each for each, inexact in zip(chosen, by_deltalake, strict=True) if inexact)


def fix_bounds(
    session: LakeSession, table: DeltaTable, storage_options: Mapping[str, str], user_metadata: str, key: str = ""
) -> int:
    """Checks a table for files with bounds (minimum or maximum of a column) that deltalake rounded. If there are any, lets Spark rewrite
    all files of the table, ordered by `key`, or by order key if `key` is not a suitable column. Then marks the table as checked. Returns
    the number of files with rounded bounds. Does nothing if the table was checked before or cannot have such files.

    Each step is one Delta commit that changes no row, so readers always see a complete table, and the next run continues after a killed
    one. No other writer may write the table meanwhile. Raises TableError, or Spark's exceptions.
    """
    if not may_be_rounded(table):
        return 0
    found = rounded_files(table.name, table.log, table.path, storage_options)
    session.commit_without_version(user_metadata)
    if found:
        logger.warning(
            "%s: the minimum and maximum of %s files of %s were rounded, so Sluice rewrites all files of the "
            "table; earlier merges may have missed rows: compare the table with `sluice equal`",
            *(table.name, len(found), table.path),
        )
        session.expect(table.row_count)
        session.configure(REWRITE_SETTINGS)
        session.commit(table.name, rewrite_statement(table, key))
    session.commit(table.name, set_properties(table.path, {EXACT_PROPERTY: "true"}))
    before = table.snapshot.version
    table.refresh()
    table.own_commit(before, user_metadata)
    return len(found)


def rewrite_statement(table: DeltaTable, key: str = "") -> str:
    """Returns the OPTIMIZE statement that rewrites all files of a table. Rows are ordered by `key`, or by order key if `key` is not a
    column or is a partition column. A clustered table keeps its own order.
    """
    optimize = f"OPTIMIZE {sql_text.delta_path(table.path)}"
    if CLUSTERING in table.snapshot.features:
        return f"{optimize} FULL"
    partitions = {name.lower() for name in table.snapshot.partitions}
    fits = key.lower() in table.snapshot.columns.keys() - partitions
    by = table.snapshot.columns[key.lower()][0] if fits else ORDER_KEY
    return f"{optimize} ZORDER BY ({sql_text.identifier(by)})"


def _schema(log: Any) -> pa.Schema:
    return pa.schema(log.schema().to_arrow())


def _plain(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, _plain(each.type), each.nullable) for each in fields])
    return kind


def _long_columns(fields: Any, above: str = "") -> list[tuple[str, Any]]:
    """Returns the physical path and type of long decimals (`is_long`) that may have statistics. Decimals in lists and maps have none."""
    return list(_longs(fields, above))


def _longs(fields: Any, above: str) -> Iterator[tuple[str, Any]]:
    for field in fields:
        path = f"{above}{physical_name(field)}"
        if pa.types.is_struct(field.type):
            yield from _longs([field.type.field(number) for number in range(field.type.num_fields)], f"{path}.")
        elif pa.types.is_decimal(field.type) and is_long(field.type):
            yield path, field.type


def is_long(kind: Any) -> bool:
    """Returns whether a type is, or contains, a decimal with more digits than a float can represent."""
    if pa.types.is_nested(kind):
        return any(is_long(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind)) and kind.precision > DIGITS_MAX


def _is_of_deltalake(table_path: str, file: str, storage_options: Mapping[str, str]) -> bool:
    """Returns whether deltalake wrote a data file. Reads this from the file's footer, because the log may no longer name the writer."""
    try:
        footer = _footer(table_path, urllib.parse.unquote(file), storage_options)
    except FileNotFoundError:
        footer = _footer(table_path, file, storage_options)  # The file's name itself has a percent sign.
    return not str(footer.created_by or "").startswith(EXACT_WRITERS)


def _footer(table_path: str, file: str, storage_options: Mapping[str, str]) -> pq.FileMetaData:
    folder = local_folder(table_path)
    if folder is not None and "://" not in file:
        return pq.read_metadata(folder / file)
    with opened(file if "://" in file else f"{table_path.rstrip('/')}/{file}", storage_options) as source:
        return pq.read_metadata(source)
