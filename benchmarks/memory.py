"""How much memory the processes of a pipeline take at most; for `bench e2e`."""

from __future__ import annotations

import threading

import psutil

from console.processes import ProcessFile

SAMPLE_SECONDS = 1.0
MEBIBYTE = 1 << 20


class MemoryWatch:
    """The largest resident size of each process of a pipeline with its children, in MiB, sampled once a second."""

    def __init__(self, processes: ProcessFile) -> None:
        self._processes = processes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak_mb: dict[str, int] = {}

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for name, record in self._processes.running().items():
                try:
                    size = psutil.Process(record.pid).memory_info().rss // MEBIBYTE
                except psutil.Error:
                    continue
                self.peak_mb[name] = max(self.peak_mb.get(name, 0), int(size))


class TreeWatch:
    """The largest resident size of a process and all that it started together, in MiB, sampled once a second."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak_mb = 0

    def __enter__(self) -> TreeWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            size = 0
            for process in (self._root, *self._root.children(recursive=True)):
                try:
                    size += process.memory_info().rss
                except psutil.Error:
                    continue
            self.peak_mb = max(self.peak_mb, int(size // MEBIBYTE))
