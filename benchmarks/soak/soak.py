"""Runs the loop of a soak, and builds its record. `bench soak` runs the loop for hours. A test runs it with each fault once."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import show, write_json
from benchmarks.soak.installation import SoakedInstallation
from benchmarks.soak.memory_slope import MemorySlope
from benchmarks.soak.pair import Traffic
from sluice.console.demo.lake import percentile

FAULTS: tuple[tuple[str, Callable[[SoakedInstallation, Traffic], None]], ...] = (
    ("source_failover", SoakedInstallation.source_fails_over),
    ("zookeeper_restart", SoakedInstallation.zookeeper_restarts),
    ("engine_kill", SoakedInstallation.engine_is_killed),
    ("spark_kill", SoakedInstallation.spark_is_killed),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Length:
    """The duration of a soak. `seconds` is the time for all faults together. Each kind of fault occurs at least once. `between_seconds` is
    the time without a fault before each fault.

    `calm_seconds` is a time at the beginning with traffic but without a fault. No process is killed in this time, so that memory can be
    measured.
    """

    seconds: float
    between_seconds: float
    calm_seconds: float = 0.0


def run(json_file: Path | None, length: Length) -> bool:
    """Runs a soak. Returns whether all tables are equal and no row is duplicated. The record is written after each fault, so that a soak
    that ends early leaves its figures.
    """
    screen = Console()
    with tempfile.TemporaryDirectory(prefix="sluice-soak-") as name:
        installation = SoakedInstallation(Path(name), screen.print, session_seconds=15.0, spark_memory="3g")
        try:
            installation.start()
            record = soak(installation, length, screen.print, lambda so_far: write_json(json_file, so_far))
        finally:
            installation.stop()
    write_json(json_file, record)
    show("faults", [{"fault": name, **found} for name, found in record["faults"].items()])
    show("memory", [{"process": name, **found} for name, found in record["memory"].items()])
    show("tables", record["tables"])
    return holds(record)


def soak(
    installation: SoakedInstallation,
    length: Length,
    say: Callable[[str], object],
    so_far: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    """Runs traffic and faults, and returns the record. After each fault, `so_far` gets the record. Raises SoakError if the lake does not
    catch up with the source.
    """
    begun, recovered = time.monotonic(), defaultdict[str, list[float]](list)
    seconds = length.calm_seconds + length.seconds

    def record() -> dict[str, Any]:
        return {
            "minutes": round((time.monotonic() - begun) / 60, 1),
            "transactions": traffic.count,
            "faults": {name: _figures(seconds) for name, seconds in recovered.items()},
            "memory": memory.record(),
        }

    with Traffic(installation.pair) as traffic, MemorySlope(installation.pids) as memory:
        installation.wait_until_followed()
        time.sleep(length.calm_seconds)
        so_far({**record(), "ended": False})
        for number in itertools.count():
            if number >= len(FAULTS) and time.monotonic() - begun >= seconds:
                break
            time.sleep(length.between_seconds)
            name, fault = FAULTS[number % len(FAULTS)]
            at = time.monotonic()
            fault(installation, traffic)
            installation.wait_until_followed()
            recovered[name].append(time.monotonic() - at)
            say(f"{name}: the lake follows again after {recovered[name][-1]:.1f} s")
            so_far({**record(), "ended": False})
        traffic.stop()
        installation.wait_until_followed()
        return {**record(), "ended": True, "tables": installation.compared(), "rows_doubled": installation.doubled()}


def holds(record: dict[str, Any]) -> bool:
    """Returns whether the record shows a successful soak."""
    return bool(record["ended"]) and record["rows_doubled"] == 0 and all(each["equal"] for each in record["tables"])


def _figures(seconds: list[float]) -> dict[str, Any]:
    return {
        "count": len(seconds),
        "follows_again_p50_s": percentile(sorted(seconds), 0.5),
        "follows_again_max_s": round(max(seconds), 1),
    }
