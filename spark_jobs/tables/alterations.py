"""Plans how a Delta table follows a DDL statement that altered its source table, and generates the plan's SQL statements. Pure functions.
`alteration_steps` executes the statements.

The plan is made once, from the table before the first step. The plan's steps first free names (`drops`, `moves`) and then assign names. So
two columns that swap names, or a column that gets the name of a dropped one, need no special case.

A table property lists the columns that the source dropped and the table still has. Every row that is written later gets NULL in them,
however the stream is split into batches. Other rows keep their last values.
"""

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
WIDEN = "widen"  # The plan for a column whose type Delta widens in place, if it supports this change.
LOCAL_TIMES = {"delta.feature.timestampNtz": "supported"}
WIDENING = {"delta.enableTypeWidening": "true"}

Pairs = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlterationPlan:
    """The steps of an alteration, in the order of the fields. Column names are those at the time of the step.

    - `kept` are columns that the source dropped and that the table still has afterwards.
    - `moves` and `renames` are pairs (name, new name). A move frees a name for another column; a rename gives a column its final name.
      `widened` are pairs (name, type).
    - `copies` are pairs (column, SQL expression over existing columns).
    - `leftovers` are columns that are dropped after they were copied.
    - `retyped` are pairs (column, SQL expression over the columns before the first step). The pairs are set if the plan only converts
      columns: one commit can then replace all steps.
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
        """Whether the plan must be stored, because the remaining steps cannot be derived from a partly altered table."""
        return bool(self.drops or self.moves or self.copies)

    def to_json(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        return {name: value for name, value in record.items() if name != "retyped"}  # No step needs `retyped`.

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> AlterationPlan:
        """Parses a record that `to_json` returned."""
        return cls(**{name: tuple(_tuples(each) for each in values) for name, values in record.items()})


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclasses.dataclass
class _Origin:
    """The existing column that becomes a column of the altered table. `plan` says how the column's type changes, and is empty if the type
    stays.
    """

    name: str
    plan: str = ""


class _Names:
    """Finds the existing column of the table (`origins`) for each column that the source has after a DDL statement. Names are in lower
    case, except the new names in `spelling` and `copied`.

    Alterations are applied by kind. Drops and renames use the names from before the statement, so all renames happen at once. Changes of
    types use the names after the statement.
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
    """Returns the plan for a table. `columns` has the name and the Spark type of each column of the table, by lower-case name. `kept` are
    those columns that the source dropped earlier.

    Leaves out alterations of columns that the table does not have, because these alterations were already applied, or the table was created
    again.
    """
    names = _Names(columns, kept)
    names.take(segment.alterations)
    return _Steps(names, segment).plan()


class _Steps:
    """Derives the steps of a plan from the origins of the columns."""

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
        """Moves an existing column to a temporary name that no other column has."""
        temporary = f"_sluice_{self.order_key}_{len(self.moves)}"
        self.moves.append((self._actual(name), temporary))
        return temporary

    def _keep(self, name: str) -> None:
        """Keeps a column that the source dropped. If the source uses the column's name for another column, the kept column is renamed."""
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
        # Delta widens the column's type in place, after the column got its new name.
        if wanted is not None and changes:
            self.widened.append((wanted.name, wanted.type))

    def _replace(self, wanted: LakeColumn, origin: _Origin) -> None:
        """Replaces a column by one of the new type with the converted values. With the plan `new_column`, the new column stays empty, and
        the table keeps the old column under another name.
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
    """Returns the statements of the plan's first half, which drop or move columns. Leaves out steps that are already done."""
    moves = [_rename(path, old, new) for old, new in plan.moves if old.lower() in there and new.lower() not in there]
    return [*(_drop(path, name) for name in plan.drops if name.lower() in there), *moves]


def giving_statements(path: str, plan: AlterationPlan, there: Mapping[str, tuple[str, str]]) -> list[str]:
    """Returns the statements that rename and widen columns. They are executed after those of `removing_statements`, and before columns are
    added and values are copied.
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
    """Returns the statements that drop columns whose values have been copied."""
    return [_drop(path, name) for name in plan.leftovers if name.lower() in there]


def table_properties(plan: AlterationPlan, properties: Mapping[str, str], features: Collection[str]) -> dict[str, str]:
    """Returns the properties that the plan needs and that the table does not have yet. `features` are those of the table's protocol."""
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
    """Returns the columns that the source dropped and the table still has."""
    return tuple(json.loads(properties.get(KEPT_PROPERTY, "[]")))


def _rename(path: str, old: str, new: str) -> str:
    return f"ALTER TABLE {sql_text.delta_path(path)} RENAME COLUMN {sql_text.identifier(old)} TO {sql_text.identifier(new)}"


def _drop(path: str, name: str) -> str:
    return f"ALTER TABLE {sql_text.delta_path(path)} DROP COLUMN {sql_text.identifier(name)}"
