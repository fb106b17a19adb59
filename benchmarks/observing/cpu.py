"""Measures the CPU time and memory of the processes of a complete Sluice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psutil

from benchmarks.observing.memory import MEBIBYTE
from sluice.console.stack.processes import ProcessFile


def measured(
    processes: ProcessFile, seconds: float, contenders: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """Waits, and returns the CPU time, as a percentage of one core, and the memory of each process. Child processes are included.
    `contenders` are more processes by name, which are measured in the same time.

    `rss_mb` is the sum of the resident sizes in MiB. `pss_mb` counts a page that n processes share as 1/n of a page in each of them.
    """
    pids = {name: record.pid for name, record in processes.running().items()} | dict(contenders or {})
    parts = {name: psutil.Process(pid) for name, pid in pids.items()}
    before = {name: _cpu_seconds(process) for name, process in parts.items()}
    begun = time.monotonic()
    time.sleep(seconds)
    rows = []
    for name, process in parts.items():
        passed = time.monotonic() - begun
        used = sum(spent - before[name].get(pid, 0.0) for pid, spent in _cpu_seconds(process).items())
        sizes = [each.memory_full_info() for each in (process, *process.children(recursive=True))]
        rows.append(
            {
                "process": name,
                "cpu_percent": round(100 * used / passed, 2),
                "rss_mb": sum(each.rss for each in sizes) // MEBIBYTE,
                "pss_mb": sum(each.pss for each in sizes) // MEBIBYTE,
            }
        )
    return rows


def _cpu_seconds(process: psutil.Process) -> dict[int, float]:
    """Returns the CPU seconds of a process and of each of its running descendants, by process id."""
    found = {}
    for each in (process, *process.children(recursive=True)):
        times = each.cpu_times()
        found[each.pid] = float(times.user + times.system)
    return found
