"""Generates a stream of row images of one table as a list, for the models of backfills and repairs. The value of a row is the order key of
the transaction that wrote the row.
"""

from __future__ import annotations

import dataclasses

INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4


@dataclasses.dataclass(frozen=True)
class Image:
    """A row image. `at` is the order key of its transaction, and also the value of the row."""

    kind: int
    key: int
    at: int

    @property
    def removes(self) -> bool:
        return self.kind in (BEFORE, DELETE)


def stream(acts: list[tuple[str, int, int]]) -> list[Image]:
    """Returns the images that the operations produce. An impossible operation produces none."""
    there: set[int] = set()
    images: list[Image] = []
    for at, (act, key, other) in enumerate(acts, start=1):
        if act == "delete" and key in there:
            there.remove(key)
            images.append(Image(DELETE, key, at))
        elif act == "move" and key in there and other not in there:
            there.remove(key)
            there.add(other)
            images += [Image(BEFORE, key, at), Image(AFTER, other, at)]
        elif act == "write":
            images.append(Image(AFTER if key in there else INSERT, key, at))
            there.add(key)
    return images
