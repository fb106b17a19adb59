"""Reads and writes `tables.json`: the captured tables with columns, keys and comments, the types that their columns have in the lake, and
the foreign keys that change their rows without row events.

The instance writes the file; the console and the code that creates asset definitions read it. Reading needs no connection. A writer
replaces the file as a whole: it writes a new file next to it, syncs and renames it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN
from sluice.cdc_engine.contracts import Column, TableVersion
from sluice.cdc_engine.durable_files import FileStamp, keep_file, stamp_of
from sluice.cdc_engine.errors import MetaError

TABLES_FILE = "tables.json"  # The file's name in a destination's folder.
FORMAT = 2
PARSED_MAX = 4  # The number of parsed files that a process caches.
CASCADE_WORDS = {
    "apply": "so Sluice makes the same changes in the lake",
    "stop": "so the table stops at the first such change",
    "ignore": "so rows of the lake DIFFER from those of the source",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignKeyNote:
    """Describes what a foreign key does to rows of the captured table "database.table" without row events.

    `followed`: whether the lake always applies it.
    """

    table: str
    sentence: str
    followed: bool


Comments = Mapping[str, Mapping[str, str]]  # "database.table" → comments, as in TableSchema.comments.
# "database.table" → the types of its columns in the lake, in the order of its columns, where no setting of the table changes them.
Types = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class TableList:
    """The content of the file."""

    tables: tuple[TableVersion, ...] = ()
    cascades: tuple[Cascade, ...] = ()
    comments: Comments = dataclasses.field(default_factory=dict)
    types: Types = dataclasses.field(default_factory=dict)


class TablesText:
    """Creates the text of the file. Caches each table's part, so that a statement costs only the tables that it changes."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[TableVersion, str, str]] = {}
        self._cascades: tuple[tuple[Cascade, ...], str] = ((), "[]")

    def of(
        self, tables: Iterable[TableVersion], cascades: Iterable[Cascade] = (), comments: Comments | None = None
    ) -> str:
        """Returns the text for a list of tables, with one line per table."""
        self._parts = {table.name: self._part(table) for table in tables}
        lines = ",\n".join(part for _, part, _ in self._parts.values())
        types = ",\n".join(part for _, _, part in self._parts.values())
        followed = tuple(cascades)
        if followed != self._cascades[0]:
            self._cascades = followed, json.dumps([dataclasses.asdict(cascade) for cascade in followed])
        described = f'"comments": {json.dumps(comments)}, ' if comments else ""
        head = f'"format": {FORMAT}, "cascades": {self._cascades[1]}, {described}'
        return f'{{{head}"tables": [\n{lines}\n], "types": {{\n{types}\n}}}}\n'

    def _part(self, table: TableVersion) -> tuple[TableVersion, str, str]:
        there = self._parts.get(table.name)
        if there is not None and there[0] is table:
            return there
        return table, _text_of(table), f"{json.dumps(table.name)}: {json.dumps(_types_of(table))}"


def write_tables(
    path: Path, tables: Iterable[TableVersion], cascades: Iterable[Cascade] = (), comments: Comments | None = None
) -> None:
    """Replaces the file. Raises MetaError if it cannot be written; the old file is then unchanged."""
    keep_file(path, TablesText().of(tables, cascades, comments))


def _text_of(table: TableVersion) -> str:
    record = dataclasses.asdict(_seen(table))
    columns = [_spoken(column, _COLUMN_DEFAULTS) for column in record["columns"]]
    return json.dumps({**_spoken(record, _TABLE_DEFAULTS), "columns": columns})


def _types_of(table: TableVersion) -> list[str]:
    """Returns the types of a table's columns in the lake; an empty list if the lake cannot have one of them."""
    from sluice.cdc_engine.binlog.column_types import TypeUnsupportedError, type_of  # noqa: PLC0415  readers import no kernels

    try:
        return [type_of(column).spark for column in _seen(table).columns]
    except TypeUnsupportedError:
        return []


def _seen(table: TableVersion) -> TableVersion:
    """Returns the table without columns that the lake does not have."""
    return dataclasses.replace(table, columns=tuple(each for each in table.columns if each.generated not in HIDDEN))


def _spoken(record: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Removes the values that equal their defaults; `_read` adds them again."""
    return {name: value for name, value in record.items() if name not in defaults or value != defaults[name]}


def _defaults(kind: type[Column | TableVersion]) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING}


_COLUMN_DEFAULTS = _defaults(Column)
_TABLE_DEFAULTS = {name: value for name, value in _defaults(TableVersion).items() if name not in {"key", "cascades"}}


def read_tables(path: Path) -> tuple[TableVersion, ...]:
    """Returns the tables in the file; none if there is no file yet. Raises MetaError if it cannot be read."""
    return _read(path).tables


def read_cascades(path: Path) -> tuple[Cascade, ...]:
    """Returns the foreign keys in the file that change rows of captured tables without row events. Raises MetaError if the file cannot be
    read.
    """
    return _read(path).cascades


def read_comments(path: Path) -> Comments:
    """Returns the comments of the source's tables and columns in the file. Raises MetaError if the file cannot be read."""
    return _read(path).comments


def read_types(path: Path) -> Types:
    """Returns the types of the tables' columns in the lake, for tables in which the lake can have all columns. Raises MetaError if the
    file cannot be read.
    """
    return _read(path).types


def foreign_key_notes(cascades: Iterable[Cascade], policy: Callable[[str, str], str]) -> tuple[ForeignKeyNote, ...]:
    """Returns one note per foreign key that changes rows of a captured table without row events, ordered by table. `policy`: (database,
    table) → its setting `cascades`. A note warns if another foreign key can change the parent's rows and the parent is not captured.
    """
    every = tuple(cascades)
    unseen = {each.child for each in every if not each.captured}
    notes = [_note(each, policy(*each.child), each.parent in unseen) for each in every if each.captured]
    return tuple(sorted(notes, key=lambda note: note.table))


def keyless_names(tables: Iterable[TableVersion], declared: Callable[[str, str], Sequence[str]]) -> tuple[str, ...]:
    """Returns the names of the tables without a key. `declared`: (database, table) → the key that conf/ declares, or an empty one."""
    return tuple(sorted(each.name for each in tables if not each.key and not declared(each.database, each.table)))


def keyless_sentence(destination: str, names: Sequence[str], *, verbose: bool = False) -> str:
    """Returns a sentence that describes how the lake stores tables without a key. `verbose`: name all tables; otherwise only the first
    three.
    """
    shown = names if verbose else names[:3]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return (
        f"{len(names)} table(s) of {destination} have no primary key ({', '.join(shown)}{more}): the lake "
        "keeps each as a change log, one row per row image, so its number of rows is not the source's. "
        "Declare a key in conf/ with `tables: {DATABASE.TABLE: {key: [COLUMN, …]}}`"
    )


def _note(found: Cascade, word: str, parent_unseen: bool) -> ForeignKeyNote:
    events = (("DELETE", found.on_delete), ("UPDATE", found.on_update))
    actions = " ".join(f"ON {event} {action}" for event, action in events if action)
    parent = ".".join(found.parent)
    what = f"{found.name}: ({', '.join(found.columns)}) follows {parent} ({', '.join(found.referenced)})"
    done = CASCADE_WORDS["stop" if found.doubt and word == "apply" else word]
    does = f"{what} {actions}, which changes rows" if actions else f"{what}, but {found.doubt}, so it may change rows"
    sentence = f"{does} without row events. conf/ has cascades: {word}, {done}"
    stops = word == "apply" and parent_unseen
    if stops:
        sentence += (
            f". If a foreign key changes rows of {parent}, which is not captured, the table STOPS (CASCADE_UNSEEN)"
        )
    return ForeignKeyNote(
        table=".".join(found.child), sentence=sentence, followed=word == "apply" and not stops and not found.doubt
    )


def _read(path: Path) -> TableList:
    """Returns the content of the file. Parses the file again only after it was replaced."""
    stamp = stamp_of(path)
    return _parsed(path) if stamp is None else _parsed_at(path, stamp)


@functools.lru_cache(maxsize=PARSED_MAX)
def _parsed_at(path: Path, stamp: FileStamp) -> TableList:  # noqa: ARG001  only part of the cache's key
    return _parsed(path)


def _parsed(path: Path) -> TableList:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return TableList()
    except (OSError, ValueError) as error:
        raise MetaError(
            f"the table list {path} cannot be read; delete this file, and the engine writes it again"
        ) from error
    try:
        if record["format"] != FORMAT:
            raise MetaError(
                f"the table list {path} has format {record['format']}, not {FORMAT}; delete this file, and "
                "the engine writes it again"
            )
        tables = tuple(_table(table) for table in record["tables"])
        cascades = tuple(_cascade(cascade) for cascade in record["cascades"])
        return TableList(tables, cascades, record.get("comments", {}), record.get("types", {}))
    except (KeyError, TypeError) as error:
        raise MetaError(
            f"the table list {path} does not have the form that Sluice writes; delete this file, and the "
            "engine writes it again"
        ) from error


def _table(record: dict[str, Any]) -> TableVersion:
    columns = tuple(_column(column) for column in record["columns"])
    cascades = tuple(_cascade(cascade) for cascade in record["cascades"])
    return TableVersion(**{**record, "columns": columns, "key": tuple(record["key"]), "cascades": cascades})


def _cascade(record: dict[str, Any]) -> Cascade:
    lists = {name: tuple(record[name]) for name in ("parent", "child", "columns", "referenced", "key")}
    return Cascade(**{**record, **lists})


def _column(record: dict[str, Any]) -> Column:
    return Column(**{**record, **{name: tuple(record.get(name, ())) for name in ("labels", "default")}})
