"""Selects the garbage collector of a Spark server's Java process.

Java's parallel collector keeps the memory that it once needed: after three MERGEs into three million rows, a server had 2.5 GB, of which
0.1 GB was in use. The serial collector needs 1.2 GB for the same merges, and the same processor time. With one thread for all work, it
would slow down a server with many tasks.
"""

from __future__ import annotations

SERIAL_SLOTS_MAX = 2
# The memory for new objects. The objects of a merge are in use for a short time, so more memory would not save time.
NEW_OBJECTS_MEMORY = "384m"


def collector_options(slots: int) -> list[str]:
    """Returns Java's options for a server that executes `slots` tasks at the same time. 0 means that the number is unknown."""
    if not 0 < slots <= SERIAL_SLOTS_MAX:
        return ["-XX:+UseParallelGC"]
    # The ratios make Java return memory after each full collection, which Spark requests every 30 minutes
    # (spark.cleaner.periodicGC.interval).
    return [
        "-XX:+UseSerialGC",
        f"-XX:MaxNewSize={NEW_OBJECTS_MEMORY}",
        "-XX:MinHeapFreeRatio=10",
        "-XX:MaxHeapFreeRatio=25",
    ]
