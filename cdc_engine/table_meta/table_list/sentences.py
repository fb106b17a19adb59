"""Describes in sentences what the lake does with foreign keys that change rows without row events, and with tables without a key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from sluice.batch_manifest.values import Cascade
from sluice.cdc_engine.contracts import TableVersion

CASCADE_CLAUSES = {
    "apply": "so Sluice makes the same changes in the lake",
    "stop": "so the table stops at the first such change",
    "ignore": "so rows of the lake DIFFER from those of the source",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignKeyNote:
    """A sentence about the changes that a foreign key makes, without row events, to rows of a captured table. `followed` tells whether the
    lake applies these changes in all cases.
    """

    table: str
    sentence: str
    followed: bool


def foreign_key_notes(cascades: Iterable[Cascade], policy: Callable[[str, str], str]) -> tuple[ForeignKeyNote, ...]:
    """Returns one note for each foreign key that changes rows of a captured table without row events. The notes are ordered by table.
    `policy(database, table)` returns the table's setting `cascades`.

    A parent that is not captured may itself be the child of another foreign key, which changes the parent's rows without row events. If the
    setting `cascades` of the captured table is `apply`, the note warns that such a change of the parent stops the captured table.
    """
    every = tuple(cascades)
    unseen = {each.child for each in every if not each.captured}
    notes = [_note(each, policy(*each.child), each.parent in unseen) for each in every if each.captured]
    return tuple(sorted(notes, key=lambda note: note.table))


def keyless_names(tables: Iterable[TableVersion], declared: Callable[[str, str], Sequence[str]]) -> tuple[str, ...]:
    """Returns the names of the tables without a key. `declared(database, table)` returns the key that conf/ declares for a table, or an
    empty sequence.
    """
    return tuple(sorted(each.name for each in tables if not each.key and not declared(each.database, each.table)))


def keyless_sentence(destination: str, names: Sequence[str], *, verbose: bool = False) -> str:
    """Returns a sentence that describes how the lake stores tables without a key. The sentence names the first three tables, or with
    `verbose` all tables.
    """
    shown = names if verbose else names[:3]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return (
        f"{len(names)} table(s) of {destination} have no primary key ({', '.join(shown)}{more}): the lake "
        "keeps each as a change log, one row per row image, so its number of rows is not the source's. "
        "Declare a key in conf/ with `tables: {DATABASE.TABLE: {key: [COLUMN, …]}}`"
    )


def _note(found: Cascade, setting: str, parent_unseen: bool) -> ForeignKeyNote:
    events = (("DELETE", found.on_delete), ("UPDATE", found.on_update))
    actions = " ".join(f"ON {event} {action}" for event, action in events if action)
    parent = ".".join(found.parent)
    what = f"{found.name}: ({', '.join(found.columns)}) refers to {parent} ({', '.join(found.referenced)})"
    done = CASCADE_CLAUSES["stop" if found.doubt and setting == "apply" else setting]
    does = f"{what} {actions}, which changes rows" if actions else f"{what}, but {found.doubt}, so it may change rows"
    sentence = f"{does} without row events. conf/ has cascades: {setting}, {done}"
    stops = setting == "apply" and parent_unseen
    if stops:
        sentence += (
            f". If a foreign key changes rows of {parent}, which is not captured, the table STOPS (CASCADE_UNSEEN)"
        )
    return ForeignKeyNote(
        table=".".join(found.child), sentence=sentence, followed=setting == "apply" and not stops and not found.doubt
    )
