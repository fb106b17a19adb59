"""`tables.json`: the captured tables with columns and keys, and the foreign keys that change their rows without row events.

Written by the instance, read where asset definitions are made and by the console.

Reading it opens no connection. It is replaced as a whole: written beside, synced, renamed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cdc_engine.binlog.rows.history_rows import HIDDEN
from cdc_engine.contracts import Cascade, Column, TableVersion
from cdc_engine.durable_files import keep_file
from cdc_engine.errors import MetaError

TABLES_FILE = "tables.json"  # in a destination's folder
FORMAT = 2
CARRIED_OUT = "so it is carried out in the lake"
CASCADE_WORDS = {
    "apply": CARRIED_OUT,
    "stop": "so the table stops at the first change that sets it off",
    "ignore": "so rows of the lake DIFFER from those of the source",
}


def write_tables(path: Path, tables: Iterable[TableVersion], cascades: Iterable[Cascade] = ()) -> None:
    """Replaces the file. Raises MetaError when it cannot be written; the old one is then untouched."""
    record = {
        "format": FORMAT,
        "tables": [dataclasses.asdict(_seen(table)) for table in tables],
        "cascades": [dataclasses.asdict(cascade) for cascade in cascades],
    }
    keep_file(path, json.dumps(record, indent=1))


def _seen(table: TableVersion) -> TableVersion:
    """Without the columns that are not in the lake."""
    return dataclasses.replace(table, columns=tuple(each for each in table.columns if each.generated not in HIDDEN))


def read_tables(path: Path) -> tuple[TableVersion, ...]:
    """The tables of the file; none where there is no file yet. Raises MetaError when it cannot be understood."""
    return _read(path)[0]


def read_cascades(path: Path) -> tuple[Cascade, ...]:
    """The foreign keys of the file that change captured tables' rows without row events. Raises as `read_tables`."""
    return _read(path)[1]


def cascade_sentences(cascades: Iterable[Cascade], policy: Callable[[str, str], str]) -> dict[str, list[str]]:
    """Captured table → a sentence for each foreign key that changes its rows without row events. `policy`: of (database, table), its
    `cascades`. Where the way leads through a table that is not captured, the sentence says so.
    """
    told: dict[str, list[str]] = {}
    every = tuple(cascades)
    unseen = {each.child for each in every if not each.captured}
    for each in (each for each in every if each.captured):
        actions = [
            f"ON {event} {action}"
            for event, action in (("DELETE", each.on_delete), ("UPDATE", each.on_update))
            if action
        ]
        child, parent = ".".join(each.child), ".".join(each.parent)
        what = f"{each.name}: ({', '.join(each.columns)}) follows {parent} ({', '.join(each.referenced)})"
        word = policy(*each.child)
        sentence = f"{what} {' '.join(actions) or each.doubt}, for which there are no row events; cascades: {word}, {CASCADE_WORDS[word]}"
        if word == "apply" and each.parent in unseen:
            sentence += f", but where a foreign key changed rows of {parent}, which is not captured: then the table STOPS (CASCADE_UNSEEN)"
        told.setdefault(child, []).append(sentence)
    return told


def is_carried_out(sentence: str) -> bool:
    """Whether the lake follows, always, what a sentence of `cascade_sentences` is about."""
    return sentence.endswith(CARRIED_OUT)


def _read(path: Path) -> tuple[tuple[TableVersion, ...], tuple[Cascade, ...]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return (), ()
    except (OSError, ValueError) as error:
        raise MetaError(f"the table list {path} cannot be read; delete it, the engine writes it anew") from error
    try:
        if record["format"] != FORMAT:
            raise MetaError(
                f"the table list {path} has format {record['format']}, not {FORMAT}; delete it, the engine writes it anew"
            )
        tables = tuple(_table(table) for table in record["tables"])
        return tables, tuple(_cascade(cascade) for cascade in record["cascades"])
    except (KeyError, TypeError) as error:
        raise MetaError(f"the table list {path} has another shape; delete it, the engine writes it anew") from error


def _table(record: dict[str, Any]) -> TableVersion:
    columns = tuple(_column(column) for column in record["columns"])
    cascades = tuple(_cascade(cascade) for cascade in record["cascades"])
    return TableVersion(**{**record, "columns": columns, "key": tuple(record["key"]), "cascades": cascades})


def _cascade(record: dict[str, Any]) -> Cascade:
    lists = {name: tuple(record[name]) for name in ("parent", "child", "columns", "referenced", "key")}
    return Cascade(**{**record, **lists})


def _column(record: dict[str, Any]) -> Column:
    return Column(**{**record, **{name: tuple(record.get(name, ())) for name in ("labels", "default")}})
