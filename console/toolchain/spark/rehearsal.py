"""Starts, warms up and ends a Spark server once, so that later servers read their classes from an archive.

This rehearsal takes as long as two starts of a server. With the archive, the start of a server needs half of the processor time that it
needs without the archive, and the first merges need a fifth less. If the rehearsal fails, Spark starts without the archive.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from sluice.console.toolchain.errors import ServerError
from sluice.console.toolchain.setup import Toolchain
from sluice.console.toolchain.spark.class_archive import can_archive, class_archive, remove_oldest
from sluice.console.toolchain.spark.server import WARM_SECONDS_MAX, ClassRecording, SparkConnectServer

END_SECONDS_MAX = 300.0  # The server has this many seconds to write its classes and end. After that, it is killed.


def provide_class_archive(toolchain: Toolchain, screen: Console) -> bool:
    """Creates the archive of Spark's classes if it is missing. Returns whether the archive exists now."""
    archive = class_archive(toolchain.cache, toolchain.java)
    if archive.exists():
        os.utime(archive)
        return True
    if not can_archive(toolchain.java):
        return False
    screen.print("archiving Spark's classes")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="classes-", dir=archive.parent) as folder:
        written = Path(folder) / archive.name
        try:
            _rehearse(toolchain, Path(folder), written)
        except (ServerError, subprocess.SubprocessError, OSError) as error:
            screen.print(
                f"Spark's classes were not archived ({error}); Spark starts more slowly without the archive.",
                style="yellow",
            )
            return False
        if written.exists():
            written.replace(archive)
    remove_oldest(toolchain.cache)
    return archive.exists()


def _rehearse(toolchain: Toolchain, folder: Path, archive: Path) -> None:
    server = SparkConnectServer(
        toolchain.delta_jars, folder / "spark", memory="2g", recording=ClassRecording(toolchain.java, archive)
    )
    try:
        server.start()
        subprocess.run(
            server.warm_up_command(folder / "warmup"),
            capture_output=True,
            timeout=WARM_SECONDS_MAX,
            check=True,
        )
        server.stop(END_SECONDS_MAX)
    finally:
        server.kill()
