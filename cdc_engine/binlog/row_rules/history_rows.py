"""Removes historical rows of MariaDB's system-versioned tables. Called by `rows`.

An update also writes the old version of the row with its end time. A delete is an update that ends the row. DELETE
HISTORY deletes ended rows. In a row that has not ended, the column ROW END has the greatest possible time.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.contracts import Bytes, Column, Int8s, Int64s, Operation

# The values of contracts.Column.generated for the columns with a row's times. Hidden columns are not in the lake.
ROW_START, ROW_END, HIDDEN_START, HIDDEN_END = "row start", "row end", "hidden row start", "hidden row end"
HIDDEN = frozenset({HIDDEN_START, HIDDEN_END})
END_BYTES = 7  # TIMESTAMP(6): seconds, microseconds
# The ROW END of a current row: the year 2038; since MariaDB 11.5 the year 2106.
_NEVER = (bytes.fromhex("7fffffff0f423f"), bytes.fromhex("ffffffff0f423f"))
Mask = np.typing.NDArray[np.bool_]


def row_end(columns: tuple[Column, ...]) -> int:
    """Returns the index of the ROW END column; -1 for a table without system versioning."""
    return next((index for index, column in enumerate(columns) if column.generated in {ROW_END, HIDDEN_END}), -1)


def of_now(operation: Int8s, buffer: Bytes, starts: Int64s, *, keyed: bool) -> Mask:
    """Returns which images are current. Changes `operation` in place: an update that ends a row becomes a delete.

    `starts`: offset of each image's ROW END in the buffer; negative if the image omits it, which means that it did not
    change. In a table without a key the before image precedes such an update and removes the row.
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
