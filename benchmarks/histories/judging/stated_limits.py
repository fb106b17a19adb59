"""Decides whether a limit that docs/reliability.md states explains the differences at the end of a history. `verdict` calls this module.

The limit is that two transactions got the same GTID. A server executed the first transaction before its RESET, and the engine read it. The
second transaction was executed after the RESET and replicated to another server, which then took over. Nothing that this server reports
differs from what the engine has read.

A stream that is connected to the first server after the RESET detects the RESET. The source watch ensures such a connection after two
checks. The limit does not explain differences in other rows than those of the two transactions.
"""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.histories.source import Endpoint, Server, Transaction

Row = tuple[str, int]  # (table, id)


def explains(endpoint: Endpoint, differing: Collection[Row]) -> bool:
    """Returns whether the stated limit alone explains why these rows differ."""
    giver, now = endpoint.standby, endpoint.current
    if giver is None or giver.connects_since_reset:
        return False
    touched = {row for pair in _given_twice(giver, now) for each in pair for row in rows_of(each)}
    return bool(differing) and set(differing) <= touched


def _given_twice(giver: Server, now: Server) -> list[tuple[Transaction, Transaction]]:
    """Returns the pairs of different transactions with the same GTID. The first transaction of a pair is the one that the engine read. The
    second is the one that the current server has.
    """
    return [
        (before, after)
        for after in now.applied
        for before in giver.before_reset
        if after.gtid is not None and before.gtid == after.gtid and before != after
    ]


def rows_of(transaction: Transaction) -> list[Row]:
    images = ((change.table, image) for change in transaction.changes for image in (change.before, change.after))
    return [(table, image[0]) for table, image in images if image is not None]
