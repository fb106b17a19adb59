"""Decides whether the limit that docs/reliability.md states explains why a history ended unequal. Used by `verdict`.

The limit: a GTID was given to two transactions. One was executed by a server before its RESET, and the engine read it. The other was
executed after the RESET, and replicated by another server that then took over. Nothing that this server reports differs from what was
read. A stream that was connected to the first server in between detects it, which the watch ensures after two looks. If more rows differ
than the two transactions touch, something else is wrong.
"""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.histories.source import Endpoint, Server, Transaction

Row = tuple[str, int]  # (table, id)


def explains(endpoint: Endpoint, differing: Collection[Row]) -> bool:
    """Returns whether the stated limit alone explains the difference of these rows."""
    giver, now = endpoint.standby, endpoint.current
    if giver is None or giver.connects_since_reset:
        return False
    touched = {row for pair in _given_twice(giver, now) for each in pair for row in rows_of(each)}
    return bool(differing) and set(differing) <= touched


def _given_twice(giver: Server, now: Server) -> list[tuple[Transaction, Transaction]]:
    """Returns the pairs of different transactions with one GTID: the one that was read, and the current server's."""
    return [
        (before, after)
        for after in now.applied
        for before in giver.before_reset
        if after.gtid is not None and before.gtid == after.gtid and before != after
    ]


def rows_of(transaction: Transaction) -> list[Row]:
    images = ((change.table, image) for change in transaction.changes for image in (change.before, change.after))
    return [(table, image[0]) for table, image in images if image is not None]
