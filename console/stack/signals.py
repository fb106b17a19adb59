"""Handles Ctrl-C and SIGTERM in the console. In a `with` block of `heard`, these signals raise KeyboardInterrupt. `held_back` delays them,
and `unheard` ignores them. In a `with` block of `ending_cleanly`, SIGTERM leaves the block before it ends the process. Outside the main
thread, these four functions change nothing.

A shell that starts a program in the background makes the program ignore SIGINT. These functions install a handler even then, so that
SIGINT has its effect.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Makes SIGTERM and Ctrl-C raise KeyboardInterrupt until the `with` block ends."""
    with _handled_by(_interrupt):
        yield


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Makes SIGTERM leave the `with` block before it ends the process, so that a command removes its temporary folders. The process does
    not wait for its other threads. A second SIGTERM ends the process at once.
    """
    with _handled_by(_end, (signal.SIGTERM,)):
        try:
            yield
        except _Ended:
            signal.raise_signal(signal.SIGTERM)


@contextlib.contextmanager
def duckdb_interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt if Ctrl-C interrupts DuckDB. DuckDB itself raises a RuntimeError, whose cause is a KeyboardInterrupt."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Ignores SIGTERM and Ctrl-C until the `with` block ends, so that they do not interrupt the shutdown."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Delays SIGTERM and Ctrl-C until the `with` block ends. So a process that the `with` block starts is recorded before the signal has an
    effect, and the shutdown finds and ends the process. The signal also has its effect if the `with` block raises an error.
    """
    came: list[tuple[int, FrameType | None]] = []
    try:
        with _handled_by(lambda number, frame: came.append((number, frame))):
            yield
    finally:
        for number, frame in came[:1]:
            handler = signal.getsignal(number)
            if callable(handler):
                handler(number, frame)
            elif handler is signal.SIG_DFL:
                signal.raise_signal(number)


@contextlib.contextmanager
def _handled_by(handler: object, numbers: Sequence[signal.Signals] = NUMBERS) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = [signal.signal(number, handler) for number in numbers]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, before in zip(numbers, earlier, strict=True):
            signal.signal(number, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Ended(SystemExit):
    """Raised by SIGTERM in a `with` block of `ending_cleanly`."""


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise _Ended(128 + number)
