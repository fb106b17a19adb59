"""Maps the source's columns to columns of a change log or history. Pure functions, which `change_log` and `history` use.

A schema change never renames, converts or drops existing columns of a change log or history. A column that the source dropped stays, and is
NULL in later rows. A renamed column continues in a column with the new name, and a column whose type changed continues in a new column
`<name>__<type>`. If the source has a column of this name, the new column is `<name>__<type>_2`, and so on. The metadata of the new column
records the column of the source (SOURCE). If the source later adds a column with the name of the new column, its values therefore get
another column.

Rows of a change log and closed versions of a history keep their values. In the current rows of a history, the new column gets the values of
the old one, converted if possible. Merges find a current row by the newest columns of its key, and queries read these columns.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sluice.batch_manifest.values import Alteration, AlterationKind, LakeColumn
from sluice.spark_jobs.errors import TableError

SOURCE = "sluice.source"  # The metadata of a column has the name of the source's column under this key, if the two names differ.
WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
DECIMAL = re.compile(r"decimal\(\d+, ?(\d+)\)")
ALTERS_TYPE = frozenset({"widen", "convert"})
# Delta accepts these characters in a column name only if the table maps columns by name, which change logs and histories do not.
UNPLAIN = re.compile(r"[ ,;{}()\n\t=\"`]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MappedColumns:
    """How the source's columns map to columns of a change log or history. `names` has the column of the change log or history for each
    column of the source, in the source's order. `added` are the columns that must be added to the change log or history. `sources` has the
    column of the source for each column with another name whose metadata does not record it yet (SOURCE): a column in `added`, or a column
    that an earlier version of Sluice added.
    """

    names: Mapping[str, str]
    added: tuple[LakeColumn, ...]
    sources: Mapping[str, str]


def map_columns(
    name: str,
    columns: Sequence[LakeColumn],
    there: Mapping[str, str],
    sources: Mapping[str, str],
    taken: Sequence[str] = (),
) -> MappedColumns:
    """Maps the columns of the source table `name` ("database.table") to columns of the change log or history. `there` has the existing
    columns with Spark's names of their types, and `sources` their recorded columns of the source. `taken` are the names of Sluice's own
    columns.

    Raises TableError if a column of the source has the name of one of Sluice's columns, or a name that Delta refuses.
    """
    for column in columns:
        _refuse_name(name, column.name, taken)
    return mapping_of(columns, there, sources)


def mapping_of(
    columns: Sequence[LakeColumn], there: Mapping[str, str], sources: Mapping[str, str] = MappingProxyType({})
) -> MappedColumns:
    """Maps columns of a source table as `map_columns` does, and refuses no name. Uses an existing column only if it has the type of the
    source's column and stores no other column of the source. The same arguments always give the same result.
    """
    known = {column.lower(): (column, kind) for column, kind in there.items()}
    owners = {ours.lower(): theirs.lower() for ours, theirs in sources.items()}
    every = {column.name.lower() for column in columns}
    names: dict[str, str] = {}
    added: list[LakeColumn] = []
    for column in columns:
        own = column.name.lower()
        for wanted in _candidates(column):
            lowered = wanted.lower()
            # Without a record, a column stores the column of the source that has its name.
            owner = owners.get(lowered, lowered if lowered in every else own)
            spelled, kind = known.get(lowered, (wanted, column.type))
            if owner == own and kind == column.type:
                break
        names[column.name] = spelled
        if spelled.lower() not in known:
            added.append(LakeColumn(name=spelled, type=column.type))
    unrecorded = {
        ours: name for name, ours in names.items() if ours.lower() != name.lower() and ours.lower() not in owners
    }
    return MappedColumns(names=names, added=tuple(added), sources=unrecorded)


def _candidates(column: LakeColumn) -> Iterator[str]:
    """Yields the names that a column of the source may have in a change log or history, in the order in which they are tried."""
    typed = typed_name(column.name, column.type)
    return itertools.chain((column.name, typed), (f"{typed}_{number}" for number in itertools.count(2)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenOver:
    """A column of a history into which values of other columns are copied, in the current rows only. For example, after the source renamed
    a column, the column with the new name gets the values of the column with the old name. `origins` has the names and types of the other
    columns.

    - If `renamed`, the values of `origins` replace the column's own values. If not, they replace only NULL.
    - If `required`, the values must be copied, because a DDL statement renamed the column or changed its type, or because the column is
      new. If not, an earlier attempt may have copied the values, and the caller first checks whether values are missing.
    """

    column: str
    type: str
    origins: tuple[tuple[str, str], ...]
    renamed: bool
    required: bool

    def value(self, quote: Callable[[str], str]) -> str:
        """Returns the SQL expression of the column's new value, which both Spark and deltalake understand. Returns "" if no origin has a
        type that can be converted.
        """
        sources = [_as_type(quote(name), kind, self.type) for name, kind in self.origins if _casts(kind, self.type)]
        if not sources:
            return ""
        return f"coalesce({', '.join(sources if self.renamed else [quote(self.column), *sources])})"


def taken_over(
    mapped: MappedColumns,
    columns: Sequence[LakeColumn],
    there: Mapping[str, str],
    sources: Mapping[str, str],
    alterations: Sequence[Alteration] = (),
) -> tuple[TakenOver, ...]:
    """Returns the columns of a history that take values from other columns, because the source renamed a column or changed its type.
    `there` has the history's columns and types before `mapped.added` were added, and `sources` their recorded columns of the source.
    """
    # The recorded column of the source takes precedence over the present mapping.
    owners = {ours.lower(): name.lower() for name, ours in mapped.names.items()}
    owners |= {ours.lower(): name.lower() for ours, name in sources.items()}
    renames = {each.new_name.lower(): each.column for each in alterations if each.kind is AlterationKind.RENAME}
    begin = {each.column.lower() for each in alterations if each.kind is AlterationKind.ADD}
    altered = {each.column.lower() for each in alterations if each.kind in ALTERS_TYPE}
    added = {each.name for each in mapped.added}
    found = []
    for column in columns:
        name, ours = column.name.lower(), mapped.names[column.name]
        if name in begin:
            continue
        others = {ours} if name in renames else set(mapped.names.values())
        known = _variants(renames.get(name, name).lower(), there, owners, column.type if name in renames else "")
        origins = tuple(each for each in known if each[0] not in others)
        if origins:
            altered_there = name in renames or name in altered or ours in added
            kind = column.type
            found.append(
                TakenOver(column=ours, type=kind, origins=origins, renamed=name in renames, required=altered_there)
            )
    return tuple(found)


def _variants(
    name: str, there: Mapping[str, str], owners: Mapping[str, str], wanted: str
) -> tuple[tuple[str, str], ...]:
    """Returns all columns of the history that have ever stored the source's column `name`, as (column, type). If one of them has the type
    `wanted`, returns only that column. `owners` has the column of the source for columns of the history, as far as it is known.
    """
    known = [
        (ours, kind)
        for ours, kind in there.items()
        if owners.get(ours.lower(), name if ours.lower() in {name, typed_name(name, kind).lower()} else "") == name
    ]
    return tuple([each for each in known if each[1] == wanted] or known)


def sources_of(fields: Any) -> dict[str, str]:
    """Returns field name → the column of the source that the field's metadata records (SOURCE). Leaves out fields of deltalake without this
    record.
    """
    return {field.name: str(field.metadata[SOURCE]) for field in fields if SOURCE in (field.metadata or {})}


def typed_name(name: str, kind: str) -> str:
    """Returns the name of the column in which a column of the source continues after its type has changed."""
    return f"{name}__{re.sub(r'[^a-z0-9]+', '_', kind).strip('_')}"


def _casts(kind: str, wanted: str) -> bool:
    """Returns whether values of the type `kind` can be converted to the type `wanted` without rounding. A value outside the range of
    `wanted` becomes NULL.
    """
    return kind == wanted or (kind, wanted) == ("float", "double") or 0 <= _scale(kind) <= _scale(wanted)


def _scale(kind: str) -> int:
    """Returns the number of decimal places of an exact numeric type, or -1 for other types."""
    found = DECIMAL.fullmatch(kind)
    return 0 if kind in WHOLE else int(found[1]) if found else -1


def _as_type(text: str, kind: str, wanted: str) -> str:
    return text if kind == wanted else f"try_cast({text} AS {wanted})"


def _refuse_name(name: str, column: str, taken: Sequence[str]) -> None:
    ways = "exclude the column, or remove change_log and history of this table from conf/"
    if column.lower() in {each.lower() for each in taken}:
        raise TableError(
            name,
            f"the table has a column {column}, and the history needs a column of its own with this name; {ways}",
            for_good=True,
        )
    if UNPLAIN.search(column):
        raise TableError(
            name, f"Delta accepts the column name {column!r} only in current-state tables; {ways}", for_good=True
        )
