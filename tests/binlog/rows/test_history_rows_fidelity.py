"""Tests which images of a system-versioned table of MariaDB belong to current rows. The other images belong to historical rows, which are
not staged.
"""

from __future__ import annotations

import numpy as np
import pytest

from sluice.cdc_engine.binlog.row_rules.history_rows import current_rows
from sluice.cdc_engine.contracts import Operation

NEVER, LATER, ENDED = "7fffffff0f423f", "ffffffff0f423f", "6b028b02085b29"


def shown(images: list[tuple[Operation, str]], *, keyed: bool) -> list[tuple[int, Operation]]:
    """Returns the number and the operation of each image of a current row. `images` has the operation and the ROW END of each image. ROW
    END is empty if the image omits this column.
    """
    buffer = np.frombuffer(bytes.fromhex("00" * 7 + "".join(time for _, time in images)), np.uint8)
    starts = np.cumsum([7, *(len(time) // 2 for _, time in images[:-1])]).astype(np.int64)
    starts[[not time for _, time in images]] = -1
    operation = np.array([operation for operation, _ in images], np.int8)
    now = current_rows(operation, buffer, starts, keyed=keyed)
    return [(number, Operation(operation[number])) for number in np.flatnonzero(now).tolist()]


@pytest.mark.parametrize("never", [NEVER, LATER])
def test_what_ended_is_left_out_and_an_update_that_ends_a_row_deletes_it_fidelity(never: str) -> None:
    images = [
        (Operation.INSERT, never),
        (Operation.INSERT, ENDED),  # An update wrote this image.
        (Operation.UPDATE_AFTER, never),
        (Operation.UPDATE_AFTER, ENDED),
        (Operation.DELETE, ENDED),  # DELETE HISTORY
        (Operation.DELETE, never),
        (Operation.UPDATE_AFTER, ""),
    ]
    assert shown(images, keyed=True) == [
        (0, Operation.INSERT),
        (2, Operation.UPDATE_AFTER),
        (3, Operation.DELETE),
        (5, Operation.DELETE),
        (6, Operation.UPDATE_AFTER),
    ]


def test_without_a_key_the_preimage_takes_the_row_away_fidelity() -> None:
    images = [
        (Operation.UPDATE_BEFORE, NEVER),
        (Operation.UPDATE_AFTER, ENDED),
        (Operation.UPDATE_BEFORE, NEVER),
        (Operation.UPDATE_AFTER, NEVER),
    ]
    assert [number for number, _ in shown(images, keyed=False)] == [0, 2, 3]
