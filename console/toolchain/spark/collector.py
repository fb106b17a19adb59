"""Selects the garbage collector of a Spark server's Java process.

Java's parallel collector keeps the memory that it once needed: after three MERGEs into three million rows, a server had 2.5 GB, of which
0.1 GB was in use. With the serial collector, the server had 1.2 GB after the same merges, which took the same processor time. The serial
collector uses only one thread, which would slow down a server with many parallel tasks. So such a server gets the parallel collector.
"""

from __future__ import annotations

# A server that executes more tasks than this at the same time gets the parallel collector.
SERIAL_SLOTS_MAX = 2
# The maximum size of the young generation, the part of the heap in which Java creates objects. A merge uses most objects only for a short
# time, so most of them are unused when a collection begins, even if the young generation is small. A larger one would not save time.
NEW_OBJECTS_MEMORY = "384m"


def collector_options(slots: int) -> list[str]:
    """Returns the Java options that select a collector for a server that executes `slots` tasks at the same time. If `slots` is 0, the
    number of tasks is unknown, and the server gets the parallel collector.
    """
    if not 0 < slots <= SERIAL_SLOTS_MAX:
        return ["-XX:+UseParallelGC"]
    # With these two ratios, Java returns unused memory to the operating system after each full collection. Spark requests a full collection
    # every 30 minutes (spark.cleaner.periodicGC.interval).
    return [
        "-XX:+UseSerialGC",
        f"-XX:MaxNewSize={NEW_OBJECTS_MEMORY}",
        "-XX:MinHeapFreeRatio=10",
        "-XX:MaxHeapFreeRatio=25",
    ]
