"""Which table a name means after RENAME TABLE, and whether that is the copy of a schema change tool. Pure; for `effects`.

gh-ost, pt-online-schema-change and Vitess build the altered table beside the old one, copy all rows over while they follow its
changes, and then swap the two names in one statement. Nothing in the binlog proves that the copy has the rows of the table.
"""

from __future__ import annotations

import re

TableKey = tuple[str, str]
NAME_CHARS_MAX = 64  # the tools cut a name that would become longer
_UUID = r"[0-9a-f]{{8}}(?:_?[0-9a-f]{{4}}){{3}}_?[0-9a-f]{{12}}"
# {t}: the table's name, or its beginning where it was cut; Vitess has names in which it is not
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
    """For each name in the pairs, executed from left to right: the name that its table had before, None where it means none now.

    Of a name that is given away twice the first was a temporary table of the session (MariaDB).
    """
    now: dict[TableKey, TableKey | None] = {}
    for place, (old, new) in enumerate(pairs):
        if _is_given_away_again(old, pairs[place + 1 :]):
            continue
        origin = now.get(old, old)
        now[old] = None
        now[new] = origin
    return now


def _is_given_away_again(name: TableKey, pairs: list[tuple[TableKey, TableKey]]) -> bool:
    """Before another table got the name."""
    for old, new in pairs:
        if name in (old, new):
            return old == name
    return False


def is_copy(name: TableKey, origin: TableKey) -> bool:
    """Whether the table that now has this name had the name (`origin`) that a schema change tool gives its copy of it."""
    return _is_named(_COPIES, origin[1], name[1])


def is_remains(name: TableKey, origin: TableKey) -> bool:
    """Whether this is the name that a schema change tool gives what it swapped out."""
    return _is_named(_REMAINS, name[1], origin[1])


def _is_named(patterns: tuple[str, ...], name: str, table: str) -> bool:
    cut = re.escape(table)
    if len(name) == NAME_CHARS_MAX:
        cut = "|".join(re.escape(table[:size]) for size in range(len(table), NAME_CHARS_MAX // 2, -1)) or cut
    return any(re.fullmatch(pattern.format(t=f"(?:{cut})"), name) for pattern in patterns)
