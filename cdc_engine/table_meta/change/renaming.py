"""Finds the former name of each table after RENAME TABLE, and whether a renamed table is the copy that a schema change tool made. Pure
functions; used by `effects`.

gh-ost, pt-online-schema-change and Vitess build the altered table next to the old one, copy all rows into it while they apply the old
table's changes, and then swap the two names in one statement. Nothing in the binlog proves that the copy has the table's rows.
"""

from __future__ import annotations

import re

TableKey = tuple[str, str]
NAME_CHARS_MAX = 64  # gh-ost, pt-online-schema-change and Vitess truncate longer names.
_UUID = r"[0-9a-f]{{8}}(?:_?[0-9a-f]{{4}}){{3}}_?[0-9a-f]{{12}}"
# {t} is the table's name, or the beginning of a truncated name. Some of Vitess's names do not contain the table's name.
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
    """Returns new name → former name of the table that has the new name after the renames; None for a name that no table has any more.
    `pairs`: (old, new), executed from left to right.

    If an old name occurs twice and no table got it in between, its first rename was of a temporary table of the session (MariaDB) and is
    ignored.
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
    """Returns whether a later pair renames the table with this name before another table gets the name."""
    for old, new in pairs:
        if name in (old, new):
            return old == name
    return False


def is_copy(name: TableKey, origin: TableKey) -> bool:
    """Returns whether the table that was renamed from `origin` to `name` is the copy that a schema change tool made."""
    return _is_named(_COPIES, origin[1], name[1])


def is_remains(name: TableKey, origin: TableKey) -> bool:
    """Returns whether `name` is a name that a schema change tool gives to the original table `origin` when it swaps in its copy."""
    return _is_named(_REMAINS, name[1], origin[1])


def _is_named(patterns: tuple[str, ...], name: str, table: str) -> bool:
    cut = re.escape(table)
    if len(name) == NAME_CHARS_MAX:
        cut = "|".join(re.escape(table[:size]) for size in range(len(table), NAME_CHARS_MAX // 2, -1)) or cut
    return any(re.fullmatch(pattern.format(t=f"(?:{cut})"), name) for pattern in patterns)
