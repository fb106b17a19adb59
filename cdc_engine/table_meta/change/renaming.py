"""Finds the former name of each table after a RENAME TABLE, and recognizes tables that a schema change tool has made. Pure functions.

gh-ost, pt-online-schema-change and Vitess create the altered table as a copy next to the original. These tools write all rows into the
copy, and apply the changes of the original to the copy. Then they swap the two names in one statement. After the swap, the lake may use
the rows that it has of the copy only if the stream has the copy's CREATE TABLE. Otherwise the lake may lack rows of the copy
(`renamed_tables`).
"""

from __future__ import annotations

import re

TableKey = tuple[str, str]
# The longest table name of a server. gh-ost, pt-online-schema-change and Vitess truncate longer names.
NAME_CHARS_MAX = 64
_UUID = r"[0-9a-f]{{8}}(?:_?[0-9a-f]{{4}}){{3}}_?[0-9a-f]{{12}}"
# The names that schema change tools give to the altered copy of a table (_COPIES), and to the table that the copy replaced (_REMAINS). {t}
# stands for the table's name, or for the beginning of a truncated name. Some names of Vitess do not contain the table's name.
_COPIES = (
    *(r"_+{t}_(?:gho|new)", r"__osc_(?:new|chg)_{t}", r"lhmn_{t}"),
    *(rf"_vt_(?:vrp|gho)_{_UUID}_\d{{{{14}}}}_", rf"_{_UUID}_\d{{{{14}}}}_(?:vrepl|gho|new)"),
)
_REMAINS = (
    *(r"_+{t}(?:_\d{{14}})?_(?:del|old)", r"__osc_old_{t}", r"lhma_[\d_]+_{t}"),
    *(
        rf"_vt_(?:hld|prg|evc|drp|vrp|gho|del)_{_UUID}_\d{{{{14}}}}_",
        rf"_vt_(?:HOLD|PURGE|EVAC|DROP)_{_UUID}_\d{{{{14}}}}",
    ),
    rf"_{_UUID}_\d{{{{14}}}}_(?:vrepl|del|old)",
)


def moved(pairs: list[tuple[TableKey, TableKey]]) -> dict[TableKey, TableKey | None]:
    """Returns, for each name in a RENAME TABLE statement, the former name of the table that has the name after the statement. The former
    name is None if no table has the name after the statement. `pairs` are (old, new), executed from left to right.

    If an old name occurs twice and no table gets the name in between, the session has a temporary table of this name (MariaDB). The first
    pair renames the temporary table, and is ignored.
    """
    now: dict[TableKey, TableKey | None] = {}
    for index, (old, new) in enumerate(pairs):
        if _is_given_away_again(old, pairs[index + 1 :]):
            continue
        origin = now.get(old, old)
        now[old] = None
        now[new] = origin
    return now


def _is_given_away_again(name: TableKey, pairs: list[tuple[TableKey, TableKey]]) -> bool:
    """Returns whether one of the following pairs renames a table from `name` before another pair gives a table this name."""
    for old, new in pairs:
        if name in (old, new):
            return old == name
    return False


def is_copy(name: TableKey, origin: TableKey) -> bool:
    """Returns whether a table that was renamed from `origin` to `name` is a schema change tool's altered copy of the table `name`. The
    tools give their copies names of certain forms.
    """
    return _is_named(_COPIES, origin[1], name[1])


def is_remains(name: TableKey, origin: TableKey) -> bool:
    """Returns whether a table that was renamed from `origin` to `name` is an original table that a schema change tool replaced by its copy.
    The tools give the originals names of certain forms.
    """
    return _is_named(_REMAINS, name[1], origin[1])


def _is_named(patterns: tuple[str, ...], name: str, table: str) -> bool:
    names = re.escape(table)
    if len(name) == NAME_CHARS_MAX:
        names = "|".join(re.escape(table[:size]) for size in range(len(table), NAME_CHARS_MAX // 2, -1)) or names
    return any(re.fullmatch(pattern.format(t=f"(?:{names})"), name) for pattern in patterns)
