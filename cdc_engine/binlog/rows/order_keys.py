"""The order keys of row images: pure, called by `rows` for each chunk of located images.

An image of an event that lies in the file as it is has the key of its own first byte. A compressed event has fewer bytes than its images,
so those are counted: from the place of their row event on (which `unpack` put between the two ends of the compressed one), each image of
a table has the key after that of the table's image before, and all of them lie below the end of the compressed event. Four steps a byte
are room for it: a million rows of a table with a key took one step a byte at the most densely compressed that was measured. Only rows
that are all alike, of a table without a key, are denser.
"""

from __future__ import annotations

import numpy as np

from cdc_engine.contracts import Int32s, Int64s
from cdc_engine.position import STEP_BITS


def image_places(position: Int64s, limit: Int64s, begin: Int64s, event: Int32s, image_at: Int64s) -> Int64s:
    """File offset of each image (n), or of its row event where that was compressed. One an event: `position`, `limit`, `begin` (its offset
    in the buffer); one an image: `event` (an index into them) and `image_at` (its offset in the buffer).
    """
    places: Int64s = position[event] + np.where(limit[event] > 0, 0, image_at - begin[event])
    return places


def image_steps(places: Int64s, limit: Int64s, last: int) -> Int64s | None:
    """Places of the images (n) in steps, ascending; None where a compressed event has not as many steps as images.

    `limit` (n): end of the compressed event, 0 without one. `last`: step of the table's image before these, in the same file.
    """
    steps = places << STEP_BITS
    if not limit.any():
        return steps
    count = np.arange(len(steps), dtype=np.int64)
    steps[0] = max(int(steps[0]), last + 1)
    steps = np.maximum.accumulate(steps - count) + count
    return None if bool(((limit > 0) & (steps >= limit << STEP_BITS)).any()) else steps
