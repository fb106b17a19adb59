"""Runs an engine in a separate process until ROWS rows are staged and acked: `python -m tests.instance.engine_process CONF ROWS`.

It prints a line of JSON: `rows`, `batches`, `bytes`, `seconds`, and `peak_bytes`, the greatest memory of the process (VmHWM).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.instance.engine.engine import Engine

ROOT = Path(__file__).parents[2]


def start(conf: Path, rows: int, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts this module as a process, which runs `main`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.instance.engine_process", str(conf), str(rows)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
    )


def finished(process: subprocess.Popen[str], seconds_max: float) -> dict[str, Any]:
    """Waits until the process ends. Returns the JSON of the last line that it printed."""
    return answer(output(process, seconds_max))


def output(process: subprocess.Popen[str], seconds_max: float) -> str:
    """Returns all output of the process, and requires that it ends with success."""
    try:
        printed, _ = process.communicate(timeout=seconds_max)
    finally:
        process.kill()
    assert process.returncode == 0, printed
    return printed


def answer(printed: str) -> dict[str, Any]:
    """Returns the JSON of the last line."""
    record: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return record


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def require_well(engine: Engine) -> None:
    """Ends this process with an error if a table stopped, or if the engine is in a state in which no more batches arrive."""
    status = engine.status()
    if status.stopped_tables or status.state not in {"RUNNING", "STARTING", "RECONNECTING"}:
        sys.exit(f"{status.state}: {status.reason} {status.stopped_tables}")


def main(conf: Path, wanted: int) -> None:
    engine = Engine(load_config(conf), "shop")
    engine.start()
    began, rows, sizes = time.monotonic(), 0, []
    while rows < wanted:
        batch = engine.hand_out(1.0)
        if batch is None:
            require_well(engine)
            continue
        rows += batch.rows
        sizes.append(sum(file.stat().st_size for file in (engine.directory / batch.path).iterdir()))
        engine.ack(batch)
    engine.stop()
    measured = {"rows": rows, "batches": len(sizes), "bytes": sum(sizes), "seconds": time.monotonic() - began}
    sys.stdout.write(json.dumps({**measured, "peak_bytes": peak_bytes()}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
