"""How the console hears Ctrl-C and SIGTERM: as KeyboardInterrupt while it works, not at all while it ends what it started.

Used by `up` and the demo. A shell that starts a program in the background has it ignore SIGINT; here it is heard all the same.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, at once."""
    with _handled_by(_interrupt):
        yield


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Another Ctrl-C must not cut the stopping short."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled_by(handler: object) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = [signal.signal(number, handler) for number in NUMBERS]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, before in zip(NUMBERS, earlier, strict=True):
            signal.signal(number, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
