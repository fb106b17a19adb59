"""What docs/reliability.md says is not noticed, as a question about a history that ended unequal: `verdict` asks it.

A number (GTID) was given twice: by a server before its RESET, which the engine read, and after it, which another server executed that
then took over. Nothing that this one can be asked differs from what was read. A stream that was connected to the first server in between
notices it, which the watch sees to after two looks; and where more differs than what the two transactions touch, something else is wrong.
"""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.histories.source import Endpoint, Server, Transaction

Row = tuple[str, int]  # (table, id)


def explains(endpoint: Endpoint, differing: Collection[Row]) -> bool:
    """Whether the stated limit, and nothing else, makes these rows differ."""
    giver, now = endpoint.standby, endpoint.current
    if giver is None or giver.connects_since_reset:
        return False
    touched = {row for pair in _given_twice(giver, now) for each in pair for row in rows_of(each)}
    return bool(differing) and set(differing) <= touched


def _given_twice(giver: Server, now: Server) -> list[tuple[Transaction, Transaction]]:
    """What was read under a number, and what the server of now has under it."""
    return [
        (before, after)
        for after in now.applied
        for before in giver.before_reset
        if after.gtid is not None and before.gtid == after.gtid and before != after
    ]


def rows_of(transaction: Transaction) -> list[Row]:
    images = ((change.table, image) for change in transaction.changes for image in (change.before, change.after))
    return [(table, image[0]) for table, image in images if image is not None]
