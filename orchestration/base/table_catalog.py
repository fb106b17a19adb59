"""Lists the tables of a destination, for Dagster's definitions of their assets. Every run process imports the definitions. Therefore this
module only reads the list that the engine writes, and opens no connection to the source.

Runs merge a new table at once. A thread of the code server (`upkeep`) notices that the list has changed, and reloads the definitions, which
then have an asset for the new table.

The engine can write its list at any time, and a run builds its definitions later than the code server that requests the run. If only the
run or only the code server defined an asset, Dagster could not run a selection with this asset. Therefore the code server copies the lists
to files when it builds its definitions, and runs read the copies.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig
from sluice.cdc_engine.config.rows import TransformConfig
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.durable_files import make_folder, replace_file
from sluice.cdc_engine.errors import MetaError, NotSharedError
from sluice.cdc_engine.keeping.in_use import conf_in_use, tables_in_use
from sluice.cdc_engine.table_meta.table_list import reading, sentences, whole
from sluice.cdc_engine.table_meta.table_list.values import Comments, ListedTable, TableList
from sluice.orchestration.base.translation import Side, TranslatedTable, shown_key

log = logging.getLogger(__name__)

ENGINE = "engine"  # The last part of the key of an engine's asset.
# The first part of the keys of source tables. No destination has this name, because names of destinations have no capital letters.
SOURCE = "Source"
DELTA_KINDS = {"deltalake", "spark"}
# Sluice's columns in each Delta table and their types, as `spark_jobs` writes them. DELETED_COLUMN exists in tables with soft deletes.
OWN_COLUMNS = (("_sluice_order_key", "bigint"), ("_sluice_commit_time", "timestamp"), ("_sluice_operation", "string"))
DELETED_COLUMN = ("_sluice_deleted", "boolean")
# The lineage of a table shows at most this many columns. Each column adds a few hundred bytes to every materialization.
LINEAGE_COLUMNS_MAX = 200


def defined_tables(config: SluiceConfig, destination: str) -> tuple[TableVersion, ...]:
    """Returns the tables from which the definitions are built, sorted by name. If `current_tables` has copied the engine's list of tables,
    reads the copy. Raises MetaError if the list cannot be read.
    """
    return _list_of_definitions(config, destination).tables


@contextlib.contextmanager
def current_tables() -> Iterator[None]:
    """Copies the engine's current lists of tables, for the definitions that the `with` block builds and for later runs. If the block fails,
    restores the previous copies. If the store of a list does not answer, keeps the previous copy of the list.

    Does nothing in a process for which no conf/ was recorded (`tables_in_use` returns None). The code server and the runs then read the
    engine's lists. Raises OSError if the lists cannot be copied, and MetaError if one cannot be read.
    """
    folder = tables_in_use()
    if folder is None:
        yield
        return
    before, config = _lists(folder), conf_in_use().config
    lists = {name: text for name in config.destinations if (text := _copy_of(config, name, before or {}))}
    try:
        _copy(folder, lists)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            _copy(folder, before) if before is not None else shutil.rmtree(folder)
        raise


def _copy_of(config: SluiceConfig, destination: str, before: Mapping[str, bytes]) -> bytes | None:
    """Returns a destination's list of tables as JSON, for the copy that `current_tables` writes. Returns None if there is no list yet. If
    the store of the list does not answer, returns the previous copy, which is in `before`.
    """
    try:
        found = reading.read_list(config.destination_dir(destination))
    except NotSharedError as error:
        log.warning("%s", error)
        return before.get(destination)
    return whole.to_text(found).encode() if found.by_name else None


def _lists(folder: Path) -> dict[str, bytes] | None:
    return {path.stem: path.read_bytes() for path in folder.glob("*.json")} if folder.is_dir() else None


def _copy(folder: Path, lists: Mapping[str, bytes]) -> None:
    make_folder(folder)
    there = _lists(folder) or {}
    for name in there.keys() - lists.keys():
        (folder / f"{name}.json").unlink()
    for name, text in lists.items():
        if there.get(name) != text:
            replace_file(folder / f"{name}.json", text)


def _list_of_definitions(config: SluiceConfig, destination: str) -> TableList:
    """Returns the list of tables for the definitions: the copy that `current_tables` made, or the engine's list if there are no copies.
    Returns an empty list if the store of the engine's list does not answer. Raises MetaError if the list cannot be read.
    """
    folder = tables_in_use()
    if folder is not None and folder.is_dir():
        return whole.read_whole(folder / f"{destination}.json")
    try:
        return reading.read_list(config.destination_dir(destination))
    except NotSharedError as error:
        log.warning("%s", error)
        return TableList()


def foreign_keys(config: SluiceConfig, destination: str) -> dict[str, list[str]]:
    """Returns for each "database.table" one sentence per foreign key that changes rows of the table without row events. The sentence also
    says what the lake does about these changes. Returns {} if a sentence cannot be built, because such an error must not prevent the
    definition of the assets. Raises MetaError if the list of tables cannot be read.
    """
    cascades = _list_of_definitions(config, destination).cascades
    try:
        notes = sentences.foreign_key_notes(cascades, config.destinations[destination].cascade_policy)
    except Exception:  # An error of any kind must not prevent the definition of the assets.
        log.exception(
            "the foreign keys of %s cannot be described; the descriptions of its assets leave them out", destination
        )
        return {}
    return {
        table: [note.sentence for note in found] for table, found in itertools.groupby(notes, lambda note: note.table)
    }


def source_comments(config: SluiceConfig, destination: str) -> Comments:
    """Returns the comments of tables and columns in the source, for the definitions of assets. Raises MetaError if the list of tables
    cannot be read.
    """
    return _list_of_definitions(config, destination).comments


def delta_key(destination: str, name: str) -> dg.AssetKey:
    """Returns the key of the asset of the Delta table "database.table" (`name`).

    By default, the key is destination/database/table. A user's code location can choose another key. If the database has the destination's
    name, the key leaves out the database: shop/orders, not shop/shop/orders. The key of a table with the name `engine` always has three
    parts, because the engine's asset has the key destination/engine. So keys are unique. The first dot in `name` separates database and
    table, because database names have no dots in practice.
    """
    return shown_key(Side.LAKE, named(destination, name), default_key(destination, name))


def default_key(destination: str, name: str) -> dg.AssetKey:
    """Returns the key that the asset of a Delta table has unless a user's code location chooses another key (`base.translation`)."""
    database, _, table = name.partition(".")
    short = database == destination and table != ENGINE
    return dg.AssetKey([destination, table] if short else [destination, database, table])


def source_key(destination: str, name: str) -> dg.AssetKey:
    """Returns the key of the external asset of a table in the source."""
    return shown_key(Side.SOURCE, named(destination, name), default_source_key(destination, name))


def default_source_key(destination: str, name: str) -> dg.AssetKey:
    """Returns the key that the asset of a source table has unless a user's code location chooses another key (`base.translation`)."""
    return dg.AssetKey([SOURCE, *default_key(destination, name).path])


def named(destination: str, name: str) -> TranslatedTable:
    """Converts a "database.table" of a destination to the type that translations receive."""
    database, _, table = name.partition(".")
    return TranslatedTable(destination, database, table)


def engine_key(destination: str) -> dg.AssetKey:
    """Returns the key of the engine's asset, which the sensor observes once a minute."""
    return dg.AssetKey([destination, ENGINE])


def owners_of(settings: DestinationConfig, table: str = "") -> tuple[str, ...]:
    """Returns the owners of the asset of a "database.table": those in the table's settings, otherwise those of the destination. If `table`
    is empty, returns those of the destination, which the engine's asset has.
    """
    own = settings.table(*table.split(".", 1)).owners if table else ()
    return own or settings.owners


def group_of(settings: DestinationConfig, table: str = "") -> str:
    """Returns the asset group of a "database.table" in the lake: the group in the table's settings, otherwise the destination's group,
    otherwise the destination's name. If `table` is empty, returns the group of the engine's asset, to which the settings of tables do not
    apply.
    """
    own = settings.table(*table.split(".", 1)).group if table else ""
    return own or settings.group or settings.name


def source_group_of(settings: DestinationConfig, table: str) -> str:
    """Returns the asset group of a "database.table" in the source. The group in the source differs from the group in the lake: Dagster's
    sidebar shows only the last part of each key, so in one group each name would appear twice.
    """
    return f"{group_of(settings, table)}_source"


def source_schema(columns: Iterable[Column], comments: Mapping[str, str]) -> dg.TableSchema:
    """Converts the columns of a source table to Dagster's schema. `comments` has the comments by column name."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=column.mysql_type or "unknown",
                description=comments.get(column.name),
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in columns
        ]
    )


def checkable(destination: str, names: Iterable[str]) -> list[str]:
    """Returns the tables that can have a check of their own (`checkable_keys`). The engine's check `tables_flowing` covers all tables, also
    those without a check of their own.
    """
    return checkable_keys({name: delta_key(destination, name) for name in names})


def checkable_keys(keys: Mapping[str, dg.AssetKey]) -> list[str]:
    """Returns the names of the tables that can have a check of their own. Dagster builds a check's name from the asset key: the name must
    consist of letters, digits and underscores, and no other key may give the same name.
    """
    identifiers = {name: key.to_python_identifier() for name, key in keys.items()}
    counts = Counter(identifiers.values())
    return [
        name
        for name, identifier in identifiers.items()
        if re.fullmatch(r"\w+", identifier, re.ASCII) and counts[identifier] == 1
    ]


def size_metadata(rows: int | None, size_bytes: int | None) -> dict[str, dg.MetadataValue[Any]]:
    """Returns metadata that Dagster shows as a table's row count and storage. Leaves out unknown values. Dagster shows the values of the
    last materialization. If there is no materialization, Dagster shows the values of the last observation.
    """
    sizes = {"dagster/row_count": rows, "dagster/size_bytes": size_bytes}
    return {name: dg.MetadataValue.int(int(number)) for name, number in sizes.items() if number is not None}


def _names(columns: Iterable[str], name: str) -> bool:
    """Returns whether a list of column names in conf/ contains `name`, regardless of case."""
    return name.lower() in {column.lower() for column in columns}


class SourceColumns:
    """Maps columns in the lake to columns in the source. Each run has an instance, and the definitions of each destination have one.

    `find` returns the entry of a "database.table" in a list of tables. By default, `find` reads the engine's current list at each call,
    because schema changes can alter tables between two batches of a draining run.
    """

    def __init__(
        self, config: SluiceConfig, destination: str, find: Callable[[str], ListedTable | None] | None = None
    ) -> None:
        self._settings = config.destinations[destination].tables
        directory, self._destination = config.destination_dir(destination), destination
        self._find = find or (lambda name: reading.read_table(directory, name))

    def metadata(self, table: str, columns: Sequence[tuple[str, str]]) -> dict[str, dg.MetadataValue[Any]]:
        """Returns the metadata of a materialization: the columns (name, type) of a "database.table", and the source columns from which
        each of them comes.

        The description of a column is its comment and type in the source. A column that the source does not have gets no source column. If
        a transform writes a column, its source columns are those that the transform reads, and the description names the transform's
        function.
        """
        there, comments = self._known(table)
        described = {
            name: f"{comments[name]} ({kind})" if name in comments else kind for name, kind in there.items() if kind
        }
        if (transform := self._transform(table)) is not None:
            described |= {
                name: f"written by {transform.function} from {', '.join(transform.reads)}"
                for name, _ in columns
                if _names(transform.writes, name)
            }
        schema = dg.TableSchema(
            [dg.TableColumn(name=name, type=kind, description=described.get(name)) for name, kind in columns]
        )
        lineage = self._lineage(table, columns, there)
        return {"dagster/column_schema": dg.MetadataValue.table_schema(schema), **lineage}

    def _lineage(
        self, table: str, columns: Sequence[tuple[str, str]], there: Collection[str]
    ) -> dict[str, dg.MetadataValue[Any]]:
        """Returns metadata with the source columns from which each column of the lake's table comes, for the first LINEAGE_COLUMNS_MAX
        columns. `columns` has the (name, type) of each column in the lake, and `there` the names of the columns in the source.
        """
        key, transform = source_key(self._destination, table), self._transform(table)
        dependencies = dict[str, list[dg.TableColumnDep]]()
        for name, _ in columns[:LINEAGE_COLUMNS_MAX]:
            if transform is not None and _names(transform.writes, name):
                read = [each for each in there if _names(transform.reads, each)]
                dependencies[name] = [dg.TableColumnDep(asset_key=key, column_name=each) for each in read]
            elif name in there:
                dependencies[name] = [dg.TableColumnDep(asset_key=key, column_name=name)]
        return (
            {"dagster/column_lineage": dg.MetadataValue.column_lineage(dg.TableColumnLineage(dependencies))}
            if dependencies
            else {}
        )

    def _transform(self, table: str) -> TransformConfig | None:
        settings = self._settings.get(table)
        return settings.transform if settings is not None else None

    def _known(self, table: str) -> tuple[dict[str, str], Mapping[str, str]]:
        """Returns the type of each column in the source, and the comments of the table and its columns. Both are empty if the table is not
        in the list of tables, or if this list cannot be read.
        """
        try:
            found = self._find(table)
        except MetaError:  # Missing metadata must not fail a merge.
            return {}, {}
        if found is None or found.version is None:
            return {}, {}
        return {column.name: column.mysql_type for column in found.version.columns}, found.comments


class DefinedColumns:
    """Computes the columns that the definition of a lake table's asset shows, with their source columns. While the Delta table has the same
    columns, a materialization need not repeat the columns for each batch.

    The Delta table can have other columns than the definition shows: if the list of tables does not have the table's types, or if the
    table's settings change types. The materializations of such a table have the columns.
    """

    def __init__(self, config: SluiceConfig, destination: str) -> None:
        self._config, self._destination = config, destination
        self._settings = config.destinations[destination]
        self._sources = SourceColumns(config, destination, self._defined)

    def _now(self) -> Mapping[str, ListedTable]:
        return _list_of_definitions(self._config, self._destination).by_name

    @functools.cached_property
    def _built(self) -> Mapping[str, ListedTable]:
        """The tables that were listed when the definitions were built."""
        return self._now()

    def _defined(self, name: str) -> ListedTable | None:
        return self._built.get(name)

    def metadata(self, table: TableVersion) -> dict[str, dg.MetadataValue[Any]]:
        """Returns the metadata for the definition of a table's asset. Returns {} if the types of its columns are not known."""
        columns = self._columns(self._defined(table.name))
        return self._sources.metadata(table.name, columns) if columns else {}

    def shows(self, name: str, columns: Iterable[tuple[str, str]]) -> bool:
        """Returns True if the definition of the asset of "database.table" shows exactly these columns, in any order. Returns False if it
        does not, or if the list of tables cannot be read.
        """
        try:
            found = self._now().get(name)
        except MetaError:  # Missing metadata must not fail a merge.
            return False
        return found is not None and set(self._columns(found)) == set(columns)

    def _columns(self, listed: ListedTable | None) -> tuple[tuple[str, str], ...]:
        table = listed.version if listed is not None else None
        if listed is None or table is None or not listed.types or len(listed.types) != len(table.columns):
            return ()
        deletes = self._settings.table(table.database, table.table).deletes
        named = zip((column.name for column in table.columns), listed.types, strict=True)
        return (*named, *OWN_COLUMNS, *((DELETED_COLUMN,) if deletes == "soft" else ()))
