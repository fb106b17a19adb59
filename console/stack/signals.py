"""Handles Ctrl-C and SIGTERM in the console: they raise KeyboardInterrupt while it works, and are ignored while it ends what it started.

Used by `up` and the demo. A shell that starts a program in the background makes it ignore SIGINT; here it is handled in spite of that."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Makes SIGTERM interrupt at once, as Ctrl-C does."""
    with _handled_by(_interrupt):
        yield


@contextlib.contextmanager
def duckdb_interrupts() -> Iterator[None]:
    """Turns an interrupt within DuckDB into a KeyboardInterrupt. DuckDB raises an error of its own, with KeyboardInterrupt as the cause."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Ignores signals, so that another Ctrl-C does not interrupt the end."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Delays a signal until the end of the block, so that a process that was started is recorded and can be ended."""
    came: list[tuple[int, FrameType | None]] = []
    with _handled_by(lambda number, frame: came.append((number, frame))):
        yield
    for number, frame in came[:1]:
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            signal.raise_signal(number)


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
