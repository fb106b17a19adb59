"""Follows, in a kernel, rows whose keys change, to find which row an image belongs to. A life is the time of one row from insert to delete.
Used by `staging`.

A *life* is one row from its first image in a segment until it is deleted. As long as no row with missing columns has
moved to or from a key, the key itself identifies the life, and its images are AT_HOME. From then on `slots` maps the
key to its life."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.contracts import Int8s, Int64s

# Rows of `slots`, an open-addressing hash table by key fingerprint. LIFE is the number of a life, or one of the
# constants below.
HIGH, LOW, LIFE = range(3)
SLOT_ROWS: Final = 3
SLOTS_FIRST: Final = 1 << 10
# AT_HOME: the row that the lake has under this key. NOBODY: no row has this key any more. FREE: an empty slot.
AT_HOME, NOBODY, FREE = (
    -1,
    -2,
    -3,
)
KEYS, LIVES = range(2)  # indices in `counts`
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 1, 2, 3, 4
Mask = npt.NDArray[np.bool_]


class KeyedImages(NamedTuple):
    """n images of a segment. `keys` (2 by n): fingerprints. `moved`: after images with missing columns whose key differs from that of their
    before image. `whole`: images with all columns.
    """

    keys: Int64s
    operation: Int8s
    moved: Mask
    whole: Mask


class BegunLives(NamedTuple):
    """Rows that are followed from certain images on, in order. `births`: the number of a row's first image, or 0 if the lake has the row
    under its original key. `origins`: the index of an image with that key.
    """

    births: Int64s
    origins: Int64s


def free_slots(count: int) -> Int64s:
    """Allocates a table for up to `count` / 2 keys. `count` must be a power of two."""
    return np.full((SLOT_ROWS, count), FREE, np.int64)


@kernel
def slot_of(slots: Int64s, high: Integer, low: Integer) -> Integer:
    """Returns the slot of a key, or the free slot where it belongs."""
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
    """Copies every key into a larger table."""
    for at in range(slots.shape[1]):
        if slots[LIFE, at] != FREE:
            other = slot_of(larger, slots[HIGH, at], slots[LOW, at])
            for row in range(SLOT_ROWS):
                larger[row, other] = slots[row, at]


@kernel
def follow(  # noqa: PLR0917  numba has no keyword-only arguments
    images: KeyedImages, first_row: Integer, slots: Int64s, counts: Int64s, begun_here: BegunLives, life: Int64s
) -> None:
    """Writes into `life` (n) the number of each image's life, or AT_HOME. `first_row`: number of the first image, from 1. `slots` must have
    room for n more keys.
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
