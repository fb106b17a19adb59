"""Measures the peak memory of each process of a pipeline, or of one process together with its descendants."""

from __future__ import annotations

import psutil

from benchmarks.observing.sampler import Sampler
from sluice.console.stack.processes import ProcessFile

SAMPLE_SECONDS = 1.0
MEBIBYTE = 1 << 20


class MemoryWatch(Sampler):
    """Records the peak resident size of each process of a pipeline in MiB, with one sample per second. Child processes are left out."""

    def __init__(self, processes: ProcessFile) -> None:
        super().__init__(SAMPLE_SECONDS)
        self._processes = processes
        self.peak_mb: dict[str, int] = {}

    def _sample(self) -> None:
        for name, record in self._processes.running().items():
            try:
                size = psutil.Process(record.pid).memory_info().rss // MEBIBYTE
            except psutil.Error:
                continue
            self.peak_mb[name] = max(self.peak_mb.get(name, 0), int(size))


class TreeWatch(Sampler):
    """Records the peak resident size of a process together with its descendants in MiB, with one sample per second."""

    def __init__(self, pid: int) -> None:
        super().__init__(SAMPLE_SECONDS)
        self._root = psutil.Process(pid)
        self.peak_mb = 0

    def _sample(self) -> None:
        size = 0
        for process in (self._root, *self._root.children(recursive=True)):
            try:
                size += process.memory_info().rss
            except psutil.Error:
                continue
        self.peak_mb = max(self.peak_mb, int(size // MEBIBYTE))
