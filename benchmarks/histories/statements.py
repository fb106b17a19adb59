"""Interprets the Spark SQL of merges on the simulated lake. The interpreter accepts only statements of the forms that spark_jobs writes. A
statement of any other form is a defect of the simulation.

A statement has the effect that Delta and Spark give it. Production decides the filter by order key, the order of the fold, the position
guard and the txn versions, so all of these are read from the statement.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from benchmarks.histories.faults import Trouble
from benchmarks.histories.lake import Lake, Version
from sluice.spark_jobs.merging import merge_sql
from sluice.spark_jobs.session import TXN_APP_ID, TXN_VERSION, USER_METADATA

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 1, 2, 3, 4
OPERATIONS = {INSERT: "insert", UPDATE_BEFORE: "update_preimage", UPDATE_AFTER: "update_postimage", DELETE: "delete"}
REMOVING = (UPDATE_BEFORE, DELETE)
_VIEW = re.compile(
    r"CREATE OR REPLACE TEMPORARY VIEW `(?P<view>\w+)` .* USING parquet OPTIONS \(path '(?P<path>[^']+)'\)"
)
_TARGET = re.compile(r"delta\.`(?P<path>[^`]+)`")
_ABOVE = re.compile(r"WHERE _sluice_order_key > (\d+)L")
_FOLD = re.compile(r"row_number\(\) OVER \(PARTITION BY .+? ORDER BY (?P<order>[^)]+)\)")
_PAIR = re.compile(r"'((?:[^'\\]|\\.)*)' = '((?:[^'\\]|\\.)*)'")
_COLUMN = re.compile(r"`([^`]+)` ([a-z_]+(?:\([\d,]+\))?)")


@dataclasses.dataclass(frozen=True)
class Image:
    """A row image of a staged file."""

    operation: int
    order_key: int
    row: int
    id: int
    number: int

    def index(self, column: str) -> int:
        return {"_sluice_order_key": self.order_key, "_sluice_row": self.row}[column.strip(" `")]


def write_images(path: Path, images: list[Image]) -> int:
    """Writes a file that stands for a staged Parquet file, and returns its size."""
    text = json.dumps([dataclasses.astuple(image) for image in images])
    path.write_text(text)
    return len(text)


def read_images(path: Path) -> list[Image]:
    return [Image(*values) for values in json.loads(path.read_text())]


class PlayedSession:
    """Replaces a Spark session, keeps its settings, and executes statements at once."""

    def __init__(self, lake: Lake, trouble: Trouble) -> None:
        self._lake, self._trouble = lake, trouble
        self._settings: dict[str, str] = {}
        self._views: dict[str, Path] = {}

    @property
    def conf(self) -> PlayedSession:
        return self

    def set(self, name: str, value: str) -> None:
        self._settings[name] = value

    def unset(self, name: str) -> None:
        self._settings.pop(name, None)

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802  Spark's own name
        return dict(self._settings)

    def sql(self, statement: str) -> None:
        view = _VIEW.match(statement)
        if view:
            self._views[view["view"]] = Path(unquote(urlparse(view["path"]).path))
            return
        self._trouble.reach("lake", lambda: self._write(statement), lambda: RuntimeError("Spark refused it: played"))

    def _write(self, statement: str) -> None:
        target = _TARGET.search(statement)
        if target is None:
            raise NotImplementedError(statement)
        path, verb = target["path"], statement.split(maxsplit=1)[0]
        if verb == "CREATE":
            self._lake.create(path, _created(statement))
        elif verb == "ALTER":
            self._lake.commit(path, _altered(statement, self._lake.table(path).last))
        else:
            self._transact(path, verb, statement)

    def _transact(self, path: str, verb: str, statement: str) -> None:
        """Executes a statement by Delta's rule for txn versions: if the table already has the same or a newer txn version of the
        application id, silently skips the statement.
        """
        app_id, version = self._settings.pop(TXN_APP_ID, ""), int(self._settings.pop(TXN_VERSION, "-1"))
        before = self._lake.table(path).last
        if app_id and before.txns.get(app_id, -1) >= version:
            return
        after = {"MERGE": self._merged, "INSERT": self._appended, "DELETE": _emptied}[verb](statement, before)
        txns = {**before.txns, app_id: version} if app_id else before.txns
        metadata = self._settings.get(USER_METADATA, "")
        self._lake.commit(path, dataclasses.replace(after, operation=verb, txns=txns, metadata=metadata))

    def _images(self, statement: str) -> list[Image]:
        view = next(path for name, path in self._views.items() if f"`{name}`" in statement)
        above = _ABOVE.search(statement)
        images = read_images(view)
        return [image for image in images if image.order_key > int(above[1])] if above else images

    def _merged(self, statement: str, before: Version) -> Version:
        rows = dict(before.keyed)
        guarded = merge_sql.NEWER in statement
        for image in _folded(self._images(statement), statement):
            there = rows.get(image.id)
            if there is not None and guarded and image.order_key <= there[1]:
                continue
            if image.operation in REMOVING:
                rows.pop(image.id, None)
            else:
                rows[image.id] = (image.number, image.order_key)
        return dataclasses.replace(before, keyed=rows)

    def _appended(self, statement: str, before: Version) -> Version:
        if "WHERE false" in statement:
            return before
        images = [
            (OPERATIONS[image.operation], image.id, image.number, image.order_key) for image in self._images(statement)
        ]
        return dataclasses.replace(before, log=(*before.log, *images))


def _emptied(_: str, before: Version) -> Version:
    return dataclasses.replace(before, keyed={}, log=())


def _folded(images: list[Image], statement: str) -> list[Image]:
    """Returns one image per row: the image that is the newest in the order that the statement defines."""
    fold = _FOLD.search(statement)
    last: dict[int, Image] = {}
    if fold is None:
        for image in images:
            if image.id in last:
                raise RuntimeError("a MERGE matched several source rows with one row of the table")
            last[image.id] = image
        return list(last.values())
    order = [term.strip().removesuffix(" DESC") for term in fold["order"].split(",")]
    for image in sorted(images, key=lambda each: [each.index(column) for column in order]):
        last[image.id] = image
    return list(last.values())


def _created(statement: str) -> Version:
    columns, _, properties = statement.partition("USING delta")
    found: list[tuple[str, str]] = _COLUMN.findall(columns.partition("` (")[2])
    return Version(operation="CREATE", columns=tuple(found), properties=_pairs(properties))


def _altered(statement: str, before: Version) -> Version:
    if "SET TBLPROPERTIES" in statement:
        properties = {**before.properties, **_pairs(statement.partition("SET TBLPROPERTIES")[2])}
        return dataclasses.replace(before, operation="ALTER", properties=properties, metadata="")
    if "ADD COLUMNS" in statement:
        added = tuple(_COLUMN.findall(statement.partition("ADD COLUMNS")[2]))
        return dataclasses.replace(before, operation="ALTER", columns=(*before.columns, *added), metadata="")
    raise NotImplementedError(statement)


def _pairs(text: str) -> dict[str, str]:
    return {_unescaped(name): _unescaped(value) for name, value in _PAIR.findall(text)}


def _unescaped(text: str) -> Any:
    return re.sub(r"\\(.)", r"\1", text)
