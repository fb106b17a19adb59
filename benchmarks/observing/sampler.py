"""Defines the base class of observers, which take samples in a thread while a benchmark runs."""

from __future__ import annotations

import threading
from typing import Self


class Sampler:
    """Calls `_sample` every `seconds` in a thread, from `__enter__` to `__exit__`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._sample()

    def _sample(self) -> None:
        raise NotImplementedError
