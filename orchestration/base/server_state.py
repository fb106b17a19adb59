"""Knows which definitions the code server of this process has, and whether it is ending. `code_server` and `reload` report it; ticks that
wait long and runs that stay attached ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass
class _Server:
    """The code server of this process. `loads` counts how often it got definitions. `own`: these are Sluice's own, and not those of a
    user, who may have sensors that wait.
    """

    loads: int = 0
    own: bool = False


_server = _Server()
_ends: list[Callable[[], bool]] = []  # This process is ending if one of these returns True. The code server adds them.


def definitions_loaded(*, own: bool) -> None:
    """Notes that the code server of this process has got new definitions. `own`: they are Sluice's own."""
    _server.loads, _server.own = _server.loads + 1, own


def ends_when(ending: Callable[[], bool]) -> None:
    """Makes long ticks return, and runs leave, once `ending` returns True."""
    _ends.append(ending)


def is_ending() -> bool:
    """Returns whether the code server of this process is ending."""
    return any(ending() for ending in _ends)


def definitions_stay() -> Callable[[], bool]:
    """Returns a function that tells whether the code server of this process still has the definitions of now, and is not ending. It returns
    False if they are not Sluice's own, or if the process has no code server of Sluice, which may end at any time without a notice.
    """
    loads = _server.loads
    return lambda: _server.own and _server.loads == loads and not is_ending()
