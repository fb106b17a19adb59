"""Removes historical rows of MariaDB's system-versioned tables from the rows of a batch. Called by `rows`.

MariaDB logs more row events for such a table: an update also inserts the old version of the row, with its end time in the column ROW END.
A delete is an update that sets ROW END. DELETE HISTORY deletes historical rows. In a current row, ROW END has the greatest possible time.
"""

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.contracts import Bytes, Column, Int8s, Int64s, Operation

# The values of contracts.Column.generated for the columns ROW START and ROW END. The lake has no hidden columns.
ROW_START, ROW_END, HIDDEN_START, HIDDEN_END = "row start", "row end", "hidden row start", "hidden row end"
HIDDEN = frozenset({HIDDEN_START, HIDDEN_END})
END_BYTES = 7  # Bytes of a TIMESTAMP(6): four for the seconds, three for the microseconds.
# ROW END of a current row: in the year 2038, or since MariaDB 11.5 in the year 2106.
_NEVER = (bytes.fromhex("7fffffff0f423f"), bytes.fromhex("ffffffff0f423f"))
Mask = np.typing.NDArray[np.bool_]


def row_end(columns: tuple[Column, ...]) -> int:
    """Returns the index of the ROW END column; -1 for a table without system versioning."""
    return next((index for index, column in enumerate(columns) if column.generated in {ROW_END, HIDDEN_END}), -1)


def current_rows(operation: Int8s, buffer: Bytes, starts: Int64s, *, keyed: bool) -> Mask:
    """Returns which images belong to current rows. `starts`: offset of each image's ROW END in `buffer`, or negative if the image omits it
    because it did not change.

    If `keyed`, changes `operation` in place: an update that sets ROW END becomes a delete. In a table without a key, its after image is
    dropped, and its before image removes the row.
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
