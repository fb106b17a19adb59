"""Kernel that finds which source row an image belongs to, if updates change keys. Called by `staging`.

If an update changes the key and omits columns, the lake has the omitted values in the row with the old key. Later images with the new key
may omit columns too, and need values of the same row. So the kernel follows each of these rows. A *life* begins at the image at which the
kernel begins to follow a row, and ends when the row is deleted.

The hash table `slots` contains the old and the new key of each such update, and maps a key to the life of the row that has the key now. An
image whose key is not in `slots` gets AT_HOME instead of a life, because its key identifies its row in the lake.

An image whose key is in `slots` gets the life of this key, with two exceptions. An insert or an after image with all columns begins a new
life. This life has no row in the lake, because the image has all values of the row. Any other image begins a new life if no row has the key
any more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.contracts import Int8s, Int64s

# `slots` is an open-addressing hash table. A column of the array is a slot. The rows of the array are HIGH, LOW and LIFE. HIGH and LOW are
# the two words of a key's fingerprint. LIFE is the number of the life to which the key belongs (see the module), or AT_HOME, NOBODY or
# FREE.
HIGH, LOW, LIFE = range(3)
SLOT_ROWS: Final = 3
SLOTS_FIRST: Final = 1 << 10
# AT_HOME: the key belongs to the row that the lake has under this key. NOBODY: no row has this key any more, after a change of the key or a
# delete. FREE: the slot is empty.
AT_HOME, NOBODY, FREE = (
    -1,
    -2,
    -3,
)
KEYS, LIVES = range(2)  # Indices in `counts`: number of keys in `slots`, and number of lives.
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 1, 2, 3, 4
Mask = npt.NDArray[np.bool_]


class KeyedImages(NamedTuple):
    """Images of a segment, which is one staged file of a table. `keys` (two rows, one column per image): the fingerprints of the images'
    keys. `moved`: whether an image is the after image of an update that changes the key and omits columns. `whole`: whether an image has
    all columns.
    """

    keys: Int64s
    operation: Int8s
    moved: Mask
    whole: Mask


class BegunLives(NamedTuple):
    """The lives that begin in a call of `follow`, in ascending order of their numbers. A life is a row of the source, from the image at
    which the kernel begins to follow the row until the row is deleted. The arrays have one value per life.

    `births`: the number of the image that inserted the row (counted from 1 in the segment), or 0 if the lake had the row before the
    segment. `origins`: the index, in the `images` of the call, of an image with the key that the row had when its life began. If the lake
    had the row, this key is the row's key in the lake.
    """

    births: Int64s
    origins: Int64s


def free_slots(count: int) -> Int64s:
    """Allocates an empty hash table `slots` with `count` slots, enough for `count` / 2 keys. `count` must be a power of two."""
    return np.full((SLOT_ROWS, count), FREE, np.int64)


@kernel
def slot_of(slots: Int64s, high: Integer, low: Integer) -> Integer:
    """Returns the index of a key's slot in the hash table, or of a free slot for the key if the hash table does not have the key. `high`,
    `low`: the key's fingerprint.
    """
    mask = slots.shape[1] - 1
    at = low & mask
    while slots[LIFE, at] != FREE and (slots[HIGH, at] != high or slots[LOW, at] != low):
        at = (at + 1) & mask
    return at


@kernel
def put(slots: Int64s, counts: Int64s, high: Integer, low: Integer, life: Integer) -> None:
    at = slot_of(slots, high, low)
    if slots[LIFE, at] == FREE:
        counts[KEYS] += 1
    slots[HIGH, at], slots[LOW, at], slots[LIFE, at] = high, low, life


@kernel
def move_slots(slots: Int64s, larger: Int64s) -> None:
    """Copies all keys of the hash table `slots` into the empty hash table `larger`."""
    for at in range(slots.shape[1]):
        if slots[LIFE, at] != FREE:
            other = slot_of(larger, slots[HIGH, at], slots[LOW, at])
            for row in range(SLOT_ROWS):
                larger[row, other] = slots[row, at]


@kernel
def follow(  # noqa: PLR0917  numba has no keyword-only arguments
    images: KeyedImages, first_row: Integer, slots: Int64s, counts: Int64s, begun_here: BegunLives, life: Int64s
) -> None:
    """Determines to which source row each of n consecutive images of a segment belongs, and writes the result to `life` (n values). The
    result is AT_HOME if the image's key identifies its row in the lake. Otherwise it is the number of a life, which follows one source row
    (see the module). Writes the lives that begin in this call to `begun_here`.

    `first_row`: the number that the first of these images has in the segment, counted from 1. `slots` must have free slots for n more keys.
    `counts`: the numbers of keys and lives (KEYS, LIVES), which the function updates.
    """
    keys, operation, moved, whole = images
    births, origins = begun_here
    begun = counts[LIVES]
    for row in range(operation.shape[0]):
        at, found = slot_of(slots, keys[0, row], keys[1, row]), AT_HOME
        if moved[row]:
            found = life[row - 1]
            if found == AT_HOME:
                found = counts[LIVES]
                births[found - begun], origins[found - begun] = 0, row - 1
                counts[LIVES] += 1
            put(slots, counts, keys[0, row - 1], keys[1, row - 1], NOBODY)
            put(slots, counts, keys[0, row], keys[1, row], found)
        elif slots[LIFE, at] != FREE:
            found = slots[LIFE, at]
            begins = whole[row] and (operation[row] == INSERT or operation[row] == UPDATE_AFTER)
            if begins or found == NOBODY:
                found = counts[LIVES]
                births[found - begun], origins[found - begun] = first_row + row, row
                counts[LIVES] += 1
            leaves = operation[row] == INSERT or operation[row] == UPDATE_AFTER
            slots[LIFE, at] = found if leaves else NOBODY
        life[row] = found
