"""Which tables a destination has, for the definitions: read from tables.json, which the engine writes. Opens no connection.

Every run process imports the definitions, so this reads one file a destination and nothing else. A table that is created or included
later is merged at once; `upkeep` sees that the list is another one and reloads the definitions, which gives the table its asset.

The engine writes tables.json at any time, and runs build definitions later than the code server that asks for them: a table that is in
those of one alone could never be merged. So the code server copies the lists when it builds its own, and runs read the copies.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import math
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from cdc_engine.config import DestinationConfig, SluiceConfig
from cdc_engine.contracts import Column, TableVersion
from cdc_engine.destination_files.for_runs import BROUGHT, at_hand
from cdc_engine.durable_files import make_folder, replace_file
from cdc_engine.errors import MetaError
from cdc_engine.keeping.in_use import conf_in_use, tables_in_use
from cdc_engine.table_meta.history import tables_file

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between two looks at a list that is in a store
LINEAGE_COLUMNS_MAX = 200  # each is some hundred bytes of every materialization


def read_tables(directory: Path) -> tuple[TableVersion, ...]:
    """The tables of a destination in this moment, by name; none before its sources were asked. Raises MetaError, which says what to do."""
    return _by_name(tables_file.read_tables(_list_of_now(directory)))


def digest_of_tables(directory: Path) -> str:
    """A digest of the list of a destination's tables in this moment; empty where no table is known. Raises MetaError."""
    if not read_tables(directory):
        return ""
    with contextlib.suppress(FileNotFoundError):
        return hashlib.sha256(_list_of_now(directory).read_bytes()).hexdigest()
    return ""


def defined_tables(config: SluiceConfig, destination: str) -> tuple[TableVersion, ...]:
    """As `read_tables`, of the list that definitions are built from."""
    return _by_name(tables_file.read_tables(_list_of_definitions(config, destination)))


@contextlib.contextmanager
def tables_of_now() -> Iterator[None]:
    """Definitions that are built in the block, and those that runs build from then on, are of the tables of this moment.

    Where the block fails all is as it was. Raises OSError where the lists cannot be copied. Nothing happens where no conf/ was written
    down: then runs and code server read what is there.
    """
    folder = tables_in_use()
    if folder is None:
        yield
        return
    before, lists = _lists(folder), dict[str, bytes]()
    config = conf_in_use().config
    for name in config.destinations:
        with contextlib.suppress(FileNotFoundError):
            lists[name] = _list_of_now(config.destination_dir(name)).read_bytes()
    try:
        _copy(folder, lists)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            _copy(folder, before) if before is not None else shutil.rmtree(folder)
        raise


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


def _list_of_definitions(config: SluiceConfig, destination: str) -> Path:
    """The copy, which is missing where the tables were not known; the list itself where there are no copies."""
    folder = tables_in_use()
    if folder is not None and folder.is_dir():
        return folder / f"{destination}.json"
    return _list_of_now(config.destination_dir(destination))


def _list_of_now(directory: Path) -> Path:
    """The engine's, or where this host may not see it, the one that a store has. Of a store that is away: the one that is there."""
    try:
        return at_hand(directory, tables_file.TABLES_FILE)
    except MetaError as error:
        log.warning("%s", error)
        brought = directory / BROUGHT / tables_file.TABLES_FILE
        return brought if brought.is_file() else directory / tables_file.TABLES_FILE


def _by_name(tables: Iterable[TableVersion]) -> tuple[TableVersion, ...]:
    return tuple(sorted(tables, key=lambda table: table.name))


def foreign_keys(config: SluiceConfig, destination: str) -> dict[str, list[str]]:
    """Table → what foreign keys do to its rows without row events, and what the lake makes of it; sentences. Raises MetaError."""
    cascades = tables_file.read_cascades(_list_of_definitions(config, destination))
    notes = tables_file.foreign_key_notes(cascades, config.destinations[destination].cascade_policy)
    return {
        table: [note.sentence for note in found] for table, found in itertools.groupby(notes, lambda note: note.table)
    }


def delta_key(destination: str, name: str) -> dg.AssetKey:
    """The asset of a Delta table; `name` is "database.table" (a database's name holds no dot in practice; the first one parts them)."""
    database, _, table = name.partition(".")
    return dg.AssetKey([destination, database, table])


def source_key(destination: str, name: str) -> dg.AssetKey:
    """The external asset of a MySQL table."""
    return dg.AssetKey(["mysql", *delta_key(destination, name).path])


def engine_key(destination: str) -> dg.AssetKey:
    """The external asset of the engine itself, which is observed once a minute."""
    return dg.AssetKey([destination, "engine"])


def owners_of(settings: DestinationConfig, table: str = "") -> tuple[str, ...]:
    """Of the asset of a "database.table", or of the engine's."""
    own = settings.table(*table.split(".", 1)).owners if table else ()
    return own or settings.owners


def group_of(settings: DestinationConfig, table: str = "") -> str:
    """The asset group of a "database.table", or of the engine."""
    own = settings.table(*table.split(".", 1)).group if table else ""
    return own or settings.group or settings.name


def source_schema(columns: Iterable[Column]) -> dg.TableSchema:
    """What Dagster shows as a MySQL table's columns."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=column.mysql_type or "unknown",
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in columns
        ]
    )


def checkable(destination: str, names: Iterable[str]) -> list[str]:
    """The tables that can have a check of their own: Dagster makes the check's name from letters, digits and underscores of the
    table's, so a table with other characters, or one that would get another one's name, has none. The engine's own check names it.
    """
    identifiers = {name: delta_key(destination, name).to_python_identifier() for name in names}
    counts = Counter(identifiers.values())
    return [
        name
        for name, identifier in identifiers.items()
        if re.fullmatch(r"\w+", identifier, re.ASCII) and counts[identifier] == 1
    ]


def size_metadata(rows: int | None, size_bytes: int | None) -> dict[str, dg.MetadataValue[Any]]:
    """Of a materialization or an observation: what Dagster shows as a table's row count and storage; nothing of what is not known.

    It shows the last materialization's, else the last observation's.
    """
    told = {"dagster/row_count": rows, "dagster/size_bytes": size_bytes}
    return {name: dg.MetadataValue.int(int(number)) for name, number in told.items() if number is not None}


class SourceColumns:
    """Which columns of the source's tables those of the lake are; looked up as tables.json has them now. For one run."""

    def __init__(self, config: SluiceConfig, destination: str) -> None:
        self._directory, self._destination = config.destination_dir(destination), destination
        self._written_ns, self._columns = -1, dict[str, dict[str, str]]()
        self._path, self._looked = Path(), -math.inf

    def metadata(self, table: str, columns: Sequence[tuple[str, str]]) -> dict[str, dg.MetadataValue[Any]]:
        """Of a materialization: the columns (name, type) of a "database.table", and which of the source's columns each of them is.

        A column that the source has no more, and what Sluice adds, is none of its; the others are described by the source's own type.
        """
        there = self._known().get(table, {})
        schema = dg.TableSchema(
            [dg.TableColumn(name=name, type=kind, description=there.get(name) or None) for name, kind in columns]
        )
        return {"dagster/column_schema": dg.MetadataValue.table_schema(schema), **self._lineage(table, columns)}

    def _lineage(self, table: str, columns: Sequence[tuple[str, str]]) -> dict[str, dg.MetadataValue[Any]]:
        there, key = self._known().get(table, {}), source_key(self._destination, table)
        told = {
            name: [dg.TableColumnDep(asset_key=key, column_name=name)]
            for name, _ in columns[:LINEAGE_COLUMNS_MAX]
            if name in there
        }
        return {"dagster/column_lineage": dg.MetadataValue.column_lineage(dg.TableColumnLineage(told))} if told else {}

    def _known(self) -> dict[str, dict[str, str]]:
        """Table → column → its type. A batch may have changed tables; a run that drains merges many."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._path, self._looked = _list_of_now(self._directory), time.monotonic()
        try:
            written_ns = self._path.stat().st_mtime_ns
            if written_ns != self._written_ns:
                self._columns = {
                    each.name: {column.name: column.mysql_type for column in each.columns}
                    for each in tables_file.read_tables(self._path)
                }
                self._written_ns = written_ns
        except (OSError, MetaError):  # what only adorns fails no merge
            return {}
        return self._columns
