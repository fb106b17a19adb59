"""Records how often the code server of this process has loaded definitions, and whether the server is ending. The module `reload` calls
`definitions_loaded` after each load, and the module `code_server` calls `ends_when`. A tick that waits for changes returns early if new
definitions are loaded or if the server is ending. Draining runs end if the server is ending.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass
class _Server:
    """What this module records about the code server of this process. `loads` counts how often the code server loaded definitions. `own`
    says whether the loaded definitions are Sluice's own. A user's definitions may have other sensors. Ticks that wait for changes would
    delay these sensors, so ticks wait only if `own` is true.
    """

    loads: int = 0
    own: bool = False


_server = _Server()
# If one of these functions returns True, this process is ending. The code server adds them.
_ends: list[Callable[[], bool]] = []


def definitions_loaded(*, own: bool) -> None:
    """Records that the code server of this process has loaded new definitions: Sluice's own, or a user's if `own` is False."""
    _server.loads, _server.own = _server.loads + 1, own


def ends_when(ending: Callable[[], bool]) -> None:
    """Adds a function that returns True once this process is ending. From then on, ticks that wait for changes return, and draining runs
    end.
    """
    _ends.append(ending)


def is_ending() -> bool:
    """Returns whether the code server of this process is ending."""
    return any(ending() for ending in _ends)


def definitions_stay() -> Callable[[], bool]:
    """Returns a function that returns True while the code server of this process has the present definitions and is not ending.

    For a user's definitions (`own` is False), the function always returns False. The function also always returns False in a process
    without Sluice's code server, because such a process may end at any time without a notice.
    """
    loads = _server.loads
    return lambda: _server.own and _server.loads == loads and not is_ending()
