"""Which column of a table beside the mirror a column of the source goes to. Pure; `change_log` and `history` ask.

What was written stays as it is: a column that left the source stays, NULL from then on, and one whose type changed goes on in a column of
its own, `<name>__<type>`. So neither table is ever written anew for a statement. What is open in a history takes its values along into such
a column: versions are closed by their key, and what is current is asked for by the name of now.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from spark_jobs.errors import TableError
from spark_jobs.staged_batch import Alteration, Column

WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
DECIMAL = re.compile(r"decimal\(\d+, ?(\d+)\)")
ALTERS_TYPE = frozenset({"widen", "convert"})
UNPLAIN = re.compile(r"[ ,;{}()\n\t=\"`]")  # Delta refuses them where columns are not mapped by name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """`names`: column of the source → column of the table, in the order of the source. `added`: those that the table lacks."""

    names: Mapping[str, str]
    added: tuple[Column, ...]


def placed(name: str, columns: Sequence[Column], there: Mapping[str, str], taken: Sequence[str] = ()) -> Placed:
    """`name`: "database.table". `there`: columns of the table → Spark's names of their types. `taken`: names that are ours.

    Raises TableError where the source has a column with one of our names, or with one that Delta refuses.
    """
    known = {column.lower(): (column, kind) for column, kind in there.items()}
    names: dict[str, str] = {}
    added: list[Column] = []
    for column in columns:
        _refuse_name(name, column.name, taken)
        wanted = column.name
        spelled, kind = known.get(wanted.lower(), (wanted, column.type))
        if kind != column.type:
            wanted = typed_name(column.name, column.type)
            spelled, kind = known.get(wanted.lower(), (wanted, column.type))
        if kind != column.type:
            why = f"its column {column.name} is {column.type} by now, and {spelled} is a column of another type"
            raise TableError(name, f"{why}; move the table beside it away: it begins anew", for_good=True)
        names[column.name] = spelled
        if spelled.lower() not in known:
            added.append(Column(name=spelled, type=column.type))
    return Placed(names=names, added=tuple(added))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taken:
    """A column of a history takes over what open rows have in others: `origins`, (name, type). `renamed`: whatever it has itself.

    `told`: the statement says so, or the column is new; else it is only a doubt.
    """

    column: str
    type: str
    origins: tuple[tuple[str, str], ...]
    renamed: bool
    told: bool

    def value(self, quote: Callable[[str], str]) -> str:
        """What the column becomes, as Spark and deltalake both read it; empty where its values cannot be had from the others."""
        sources = [_as_type(quote(name), kind, self.type) for name, kind in self.origins if _casts(kind, self.type)]
        if not sources:
            return ""
        return f"coalesce({', '.join(sources if self.renamed else [quote(self.column), *sources])})"


def taken_over(
    place: Placed, columns: Sequence[Column], there: Mapping[str, str], alterations: Sequence[Alteration] = ()
) -> tuple[Taken, ...]:
    """Which columns of a history take over what others have. `there`: its columns before `place.added` came, as in `placed`."""
    renames = {each.new_name.lower(): each.column for each in alterations if each.kind == "rename"}
    begin = {each.column.lower() for each in alterations if each.kind == "add"}
    altered = {each.column.lower() for each in alterations if each.kind in ALTERS_TYPE}
    added = {each.name for each in place.added}
    found = []
    for column in columns:
        name, ours = column.name.lower(), place.names[column.name]
        if name in begin:
            continue
        others = {ours} if name in renames else set(place.names.values())
        known = _variants(renames.get(name, name), there, column.type if name in renames else "")
        origins = tuple(each for each in known if each[0] not in others)
        if origins:
            told = name in renames or name in altered or ours in added
            kind = column.type
            found.append(Taken(column=ours, type=kind, origins=origins, renamed=name in renames, told=told))
    return tuple(found)


def _variants(name: str, there: Mapping[str, str], wanted: str) -> tuple[tuple[str, str], ...]:
    """Columns of the history in which a column of the source was. `wanted`: where one has this type it is that one."""
    known = [
        (ours, kind) for ours, kind in there.items() if ours.lower() in {name.lower(), typed_name(name, kind).lower()}
    ]
    return tuple([each for each in known if each[1] == wanted] or known)


def typed_name(name: str, kind: str) -> str:
    """Of the column that goes on for one whose type became this one."""
    return f"{name}__{re.sub(r'[^a-z0-9]+', '_', kind).strip('_')}"


def _casts(kind: str, wanted: str) -> bool:
    """Whether each value of a type is the same in the other, or no value there."""
    return kind == wanted or (kind, wanted) == ("float", "double") or 0 <= _scale(kind) <= _scale(wanted)


def _scale(kind: str) -> int:
    """Of an exact number; -1 of other types."""
    found = DECIMAL.fullmatch(kind)
    return 0 if kind in WHOLE else int(found[1]) if found else -1


def _as_type(text: str, kind: str, wanted: str) -> str:
    return text if kind == wanted else f"try_cast({text} AS {wanted})"


def _refuse_name(name: str, column: str, taken: Sequence[str]) -> None:
    ways = "exclude the column, or take change_log and history of this table out of conf/"
    if column.lower() in {each.lower() for each in taken}:
        raise TableError(name, f"its history has a column {column} of its own; {ways}", for_good=True)
    if UNPLAIN.search(column):
        raise TableError(name, f"Delta takes the name of its column {column!r} in mirrors alone; {ways}", for_good=True)
