"""Plans how a Delta table follows a statement that altered its source table, and generates the SQL statements that execute the plan. Pure
functions.

`alteration_steps` runs them. A plan is made once, from the table before the first step. Steps first remove names (`drops`, `moves`) and
then give names. Two columns that swap their names, or a column that takes the name of a dropped one, therefore need no special case.

Columns that are kept after the source dropped them are listed in a property of the table. A row that is written afterwards has NULL in
them, however the stream is split into batches; a row that is not written keeps its last value."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from typing import Any

from sluice.batch_manifest.values import Alteration, AlterationKind, LakeColumn, SchemaSegment
from sluice.spark_jobs import sql_text
from sluice.spark_jobs.targets.casting import converted, widens

KEPT_PROPERTY = "sluice.droppedColumns"
PLAN_PROPERTY = "sluice.altering"
MAPPING = {"delta.columnMapping.mode": "name"}
WIDEN = "widen"  # A plan: the column is widened in place if Delta supports it.
LOCAL_TIMES = {"delta.feature.timestampNtz": "supported"}
WIDENING = {"delta.enableTypeWidening": "true"}

Pairs = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlterationPlan:
    """The steps of an alteration in the order of the fields. Names are those that the table has when the step is executed.

    `kept`: dropped columns that the table has afterwards. `moves` and `renames`: (name, new name). `widened`: (name, type). `copies`:
    (column, SQL expression over existing columns). `leftovers`: columns that are dropped once they are copied. `retyped`: (column, SQL
    expression over the columns before the first step), if the plan does nothing but convert columns; the steps are then not needed.
    """

    kept: tuple[str, ...]
    drops: tuple[str, ...] = ()
    moves: Pairs = ()
    renames: Pairs = ()
    widened: Pairs = ()
    copies: Pairs = ()
    leftovers: tuple[str, ...] = ()
    retyped: Pairs = ()

    @property
    def is_kept_in_table(self) -> bool:
        """Whether the remaining steps cannot be derived from a table in which some of them were executed."""
        return bool(self.drops or self.moves or self.copies)

    def to_json(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        return {name: value for name, value in record.items() if name != "retyped"}  # Steps do not need it.

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> AlterationPlan:
        """Parses the plan in a record of `to_json`."""
        return cls(**{name: tuple(_tuples(each) for each in values) for name, values in record.items()})


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclasses.dataclass
class _Origin:
    """The existing column from which a column of the altered table is made. `plan`: how, if the type changes."""

    name: str
    plan: str = ""


class _Names:
    """Tracks the names of the table's columns that the source has through the alterations of one statement. Names are in lower case, except
    in the plan.

    The alterations are ordered by kind. Drops and renames use the names before the statement, so all renames happen at once; changes of
    type use the names after it.
    """

    def __init__(self, columns: Mapping[str, tuple[str, str]], kept: tuple[str, ...]) -> None:
        self.columns = columns
        self.kept = [name.lower() for name in kept if name.lower() in columns]
        self.origins = {name: _Origin(name) for name in columns if name not in self.kept}
        self.spelling: dict[str, str] = {}
        self.drops: list[str] = []
        self.copied: list[tuple[str, str]] = []

    def take(self, alterations: tuple[Alteration, ...]) -> None:
        for alteration in alterations:
            if alteration.kind is AlterationKind.DROP and (origin := self.origins.pop(alteration.column.lower(), None)):
                (self.drops if alteration.plan == "apply" else self.kept).append(origin.name)
        renames = [alteration for alteration in alterations if alteration.kind is AlterationKind.RENAME]
        origins = [self.origins.pop(alteration.column.lower(), None) for alteration in renames]
        for alteration, origin in zip(renames, origins, strict=True):
            if origin is not None:
                self._rename(origin, alteration)
        for alteration in alterations:
            widens_it = alteration.kind is AlterationKind.WIDEN
            changes_type = widens_it or alteration.kind is AlterationKind.CONVERT
            if changes_type and (origin := self.origins.get(alteration.column.lower())):
                origin.plan = WIDEN if widens_it and alteration.plan == "apply" else alteration.plan

    def _rename(self, origin: _Origin, alteration: Alteration) -> None:
        if alteration.plan == "new_column":
            self.kept.append(origin.name)
            self.copied.append((alteration.new_name, origin.name))
        else:
            self.origins[alteration.new_name.lower()] = origin
            self.spelling[alteration.new_name.lower()] = alteration.new_name


def plan_of(columns: Mapping[str, tuple[str, str]], kept: tuple[str, ...], segment: SchemaSegment) -> AlterationPlan:
    """Returns the plan for a table with `columns` (lower-case name → (name, Spark type)). `kept`: those that the source dropped before.

    Alterations of a column that the table does not have are left out: they were applied already, or the table was created again.
    """
    names = _Names(columns, kept)
    names.take(segment.alterations)
    return _Steps(names, segment).plan()


class _Steps:
    """Turns the origins of the columns into steps."""

    def __init__(self, names: _Names, segment: SchemaSegment) -> None:
        self.names, self.order_key = names, segment.order_key
        self.wanted = {column.name.lower(): column for column in segment.columns}
        self.moves: list[tuple[str, str]] = []
        self.renames: list[tuple[str, str]] = []
        self.widened: list[tuple[str, str]] = []
        self.copies: list[tuple[str, str]] = []
        self.leftovers: list[str] = []
        self.retyped: list[tuple[str, str]] = []
        self.kept: dict[str, str] = {}

    def plan(self) -> AlterationPlan:
        for name in self.names.kept:
            self._keep(name)
        for name, origin in self.names.origins.items():
            self._move(name, origin)
        for name, source in self.names.copied:
            self._copy(self.wanted.get(name.lower()), sql_text.identifier(self.kept[source]), source)
        return AlterationPlan(
            kept=tuple(self.kept.values()),
            drops=tuple(self._actual(name) for name in self.names.drops),
            moves=tuple(self.moves),
            renames=tuple(self.renames),
            widened=tuple(self.widened),
            copies=tuple(self.copies),
            leftovers=tuple(self.leftovers),
            retyped=tuple(self.retyped) if self._only_retypes() else (),
        )

    def _only_retypes(self) -> bool:
        others = self.names.drops or self.renames or self.widened
        return not others and len(self.moves) == len(self.copies) == len(self.retyped)

    def _actual(self, name: str) -> str:
        return self.names.columns[name][0]

    def _away(self, name: str) -> str:
        """Moves an existing column to a name that no other column has."""
        temporary = f"_sluice_{self.order_key}_{len(self.moves)}"
        self.moves.append((self._actual(name), temporary))
        return temporary

    def _keep(self, name: str) -> None:
        """Keeps a dropped column, under another name if the source uses its name again."""
        self.kept[name] = self._actual(name)
        if name in self.wanted:
            self._set_aside(name)

    def _set_aside(self, name: str) -> None:
        self.kept[name] = f"{self._actual(name)}_until_{self.order_key}"
        self.moves.append((self._actual(name), self.kept[name]))

    def _move(self, name: str, origin: _Origin) -> None:
        wanted, old_type = self.wanted.get(name), self.names.columns[origin.name][1]
        changes = bool(origin.plan) and wanted is not None and wanted.type != old_type
        if wanted is not None and changes and not (origin.plan == WIDEN and widens(old_type, wanted.type)):
            self._replace(wanted, origin)
            return
        if name != origin.name or name in self.names.spelling:
            self.renames.append((self._away(origin.name), self.names.spelling[name]))
        if wanted is not None and changes:  # It is widened in place, under the new name.
            self.widened.append((wanted.name, wanted.type))

    def _replace(self, wanted: LakeColumn, origin: _Origin) -> None:
        """Adds a column of the new type with the converted values of the old one. With plan `new_column`, the new column is empty, and the
        old one is kept under another name.
        """
        if origin.plan == "new_column":
            self._set_aside(origin.name)
            return
        temporary = self._away(origin.name)
        self._copy(wanted, sql_text.identifier(temporary), origin.name)
        if wanted.name.lower() == origin.name:
            old_type = self.names.columns[origin.name][1]
            before = sql_text.identifier(self._actual(origin.name))
            self.retyped.append((wanted.name, converted(before, old_type, wanted.type)))
        self.leftovers.append(temporary)

    def _copy(self, wanted: LakeColumn | None, expression: str, source: str) -> None:
        old_type = self.names.columns[source][1]
        if wanted is not None:
            same = wanted.type == old_type
            self.copies.append((wanted.name, expression if same else converted(expression, old_type, wanted.type)))


# ── SQL statements ──


def removing_statements(path: str, plan: AlterationPlan, there: Mapping[str, tuple[str, str]]) -> list[str]:
    """Returns the first half of the plan: statements that drop or move columns. Steps that were executed already are left out."""
    moves = [_rename(path, old, new) for old, new in plan.moves if old.lower() in there and new.lower() not in there]
    return [*(_drop(path, name) for name in plan.drops if name.lower() in there), *moves]


def giving_statements(path: str, plan: AlterationPlan, there: Mapping[str, tuple[str, str]]) -> list[str]:
    """Returns the second half of the plan: statements that rename and widen columns. Adding columns and copying values are not among
    them.
    """
    renames = [_rename(path, old, new) for old, new in plan.renames if old.lower() in there]
    table = sql_text.delta_path(path)
    alters = [
        f"ALTER TABLE {table} ALTER COLUMN {sql_text.identifier(name)} TYPE {new}"
        for name, new in plan.widened
        if there.get(name.lower(), ("", ""))[1] != new
    ]
    return [*renames, *alters]


def closing_statements(path: str, plan: AlterationPlan, there: Mapping[str, tuple[str, str]]) -> list[str]:
    """Returns the statements that drop columns after they were copied."""
    return [_drop(path, name) for name in plan.leftovers if name.lower() in there]


def table_properties(plan: AlterationPlan, properties: Mapping[str, str], features: Collection[str]) -> dict[str, str]:
    """Returns the properties that the plan needs and the table lacks. `features`: the table's protocol features."""
    wanted: dict[str, str] = {}
    if plan.drops or plan.moves or plan.renames:
        wanted |= MAPPING
    if plan.widened:
        wanted |= WIDENING
    if any(new == "timestamp_ntz" for _, new in plan.widened) and "timestampNtz" not in features:
        wanted |= LOCAL_TIMES
    if plan.kept or KEPT_PROPERTY in properties:
        wanted[KEPT_PROPERTY] = json.dumps(plan.kept)
    return {name: value for name, value in wanted.items() if properties.get(name) != value}


def kept_columns(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the columns that the source dropped and the table keeps."""
    return tuple(json.loads(properties.get(KEPT_PROPERTY, "[]")))


def _rename(path: str, old: str, new: str) -> str:
    return f"ALTER TABLE {sql_text.delta_path(path)} RENAME COLUMN {sql_text.identifier(old)} TO {sql_text.identifier(new)}"


def _drop(path: str, name: str) -> str:
    return f"ALTER TABLE {sql_text.delta_path(path)} DROP COLUMN {sql_text.identifier(name)}"
