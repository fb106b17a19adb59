"""Rows of MariaDB's system-versioned tables as they are now: what the server keeps of them as history is left out. Called by `rows`.

An update writes the row as it was once more, with the time at which it ended; a delete is an update that ends the row; DELETE HISTORY
deletes rows that ended. The column that says when a row ended (ROW END) has the greatest time there is in a row that has not.
"""

from __future__ import annotations

import numpy as np

from cdc_engine.contracts import Bytes, Column, Int8s, Int64s, Operation

# contracts.Column.generated of the columns with a row's times; the hidden ones have no name in the statement, and are not in the lake
ROW_START, ROW_END, HIDDEN_START, HIDDEN_END = "row start", "row end", "hidden row start", "hidden row end"
HIDDEN = frozenset({HIDDEN_START, HIDDEN_END})
END_BYTES = 7  # of a TIMESTAMP(6): seconds, microseconds
_NEVER = (bytes.fromhex("7fffffff0f423f"), bytes.fromhex("ffffffff0f423f"))  # 2038; 2106 from MariaDB 11.5 on
Mask = np.typing.NDArray[np.bool_]


def row_end(columns: tuple[Column, ...]) -> int:
    """Index of the column that says when a row ended; -1 in a table that is not versioned."""
    return next((index for index, column in enumerate(columns) if column.generated in {ROW_END, HIDDEN_END}), -1)


def of_now(operation: Int8s, buffer: Bytes, starts: Int64s, *, keyed: bool) -> Mask:
    """Which images count. `operation` is changed in place: an update that ends a row becomes a delete.

    `starts`: where the images' ROW END begins in the buffer; below 0 where an image leaves it out, which then was not changed. In a table
    without a key the preimage stands before such an update, and takes the row away.
    """
    there = starts >= 0
    found = buffer[np.where(there, starts, 0)[:, None] + np.arange(END_BYTES)]
    now: Mask = ~there
    for never in _NEVER:
        now |= (found == np.frombuffer(never, np.uint8)).all(axis=1)
    if keyed:
        ends = ~now & (operation == Operation.UPDATE_AFTER)
        operation[ends] = Operation.DELETE
        now |= ends
    return now
