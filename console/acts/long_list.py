"""Shortens lists of thousands of tables for the terminal."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TypeVar

LISTED_MAX = 100  # A command lists at most this many tables, because formatting thousands takes seconds.
Item = TypeVar("Item")


def shortened(
    items: Sequence[Item], state: Callable[[Item], str], first: Sequence[str], command: str
) -> tuple[list[Item], str]:
    """Returns at most LISTED_MAX items, and a message about the items that are left out. The message is "" if no item is left out. `state`
    returns the state of an item. Items whose state is in `first` come first, in the order of `first`. The message has the number of
    left-out items for each state, and names `command`, with which the operator can list all items.
    """
    if len(items) <= LISTED_MAX:
        return list(items), ""
    ranked = sorted(items, key=lambda each: first.index(state(each)) if state(each) in first else len(first))
    others = collections.Counter(state(each) for each in ranked[LISTED_MAX:])
    counts = ", ".join(f"{count} {name}" for name, count in sorted(others.items()))
    return ranked[:LISTED_MAX], f"… and {others.total()} more ({counts}): `{command}`"
