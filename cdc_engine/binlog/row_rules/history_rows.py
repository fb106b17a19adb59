"""Finds historical rows of MariaDB's system-versioned tables among the rows of row events, so that they are not staged. Called by
`rows.decoder`.

For a system-versioned table, MariaDB logs an update as two changes: the update, and an insert of the old version of the row with the end
time in the column ROW END. A delete is logged as an update that sets ROW END. The statement DELETE HISTORY is logged as deletes of
historical rows. In a current row, ROW END has the greatest possible time.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.contracts import Bytes, Column, Int8s, Int64s, Operation

# The values of contracts.Column.generated for the columns ROW START and ROW END. Hidden columns are not in the lake.
ROW_START, ROW_END, HIDDEN_START, HIDDEN_END = "row start", "row end", "hidden row start", "hidden row end"
HIDDEN = frozenset({HIDDEN_START, HIDDEN_END})
END_BYTES = 7  # Bytes of a TIMESTAMP(6): four for the seconds, three for the microseconds.
# The bytes of ROW END in a current row: the greatest TIMESTAMP, in the year 2038 or, since MariaDB 11.5, in the year 2106.
_NEVER = (bytes.fromhex("7fffffff0f423f"), bytes.fromhex("ffffffff0f423f"))
Mask = np.typing.NDArray[np.bool_]


def row_end(columns: tuple[Column, ...]) -> int:
    """Returns the index of the ROW END column, or -1 for a table without system versioning."""
    return next((index for index, column in enumerate(columns) if column.generated in {ROW_END, HIDDEN_END}), -1)


def current_rows(operation: Int8s, buffer: Bytes, starts: Int64s, *, keyed: bool) -> Mask:
    """Returns which images of a system-versioned table of MariaDB belong to current rows, so that the caller can drop the images of
    historical rows. `starts`: offset in `buffer` at which the column ROW END of each image begins, or a negative number if the image omits
    ROW END because the update did not change it.

    MariaDB logs a delete as an update that sets ROW END. If `keyed`, this function makes it a delete: it changes the update's entry in
    `operation`. In a table without a key, the after image of such an update is historical, and the before image removes the row.
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
