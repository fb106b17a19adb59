"""Runs Canal's own code for comparison. It gets entries, and returns the messages that Canal 1.1.7 makes of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.canal.server import java_command
from sluice.cdc_engine.brokers.publisher import Message
from sluice.cdc_engine.brokers.routing import Rules

PROGRAM = Path(__file__).with_name("CanalMessages.java")


class CanalMessages:
    """Runs Canal's code in a Java process, which answers one request at a time."""

    def __init__(self) -> None:
        command = [*java_command("canal-client", "canal-server"), "-Xmx256m", "-XX:TieredStopAtLevel=1", str(PROGRAM)]
        command.insert(1, "-Dlogback.statusListenerClass=ch.qos.logback.core.status.NopStatusListener")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def routed(self, form: str, rules: Rules, batch_id: int, now_ms: int, entries: bytes) -> list[Message]:
        """Returns the messages by topic, in Canal's form. `entries` is the field `messages` of the Protobuf message Messages."""
        said = self._requested(
            form,
            rules.topic,
            rules.dynamic_topic,
            str(rules.partitions_num),
            rules.partition_hash,
            str(rules.database_hash).lower(),
            str(batch_id),
            str(now_ms),
            entries.hex(),
        )
        found = [each.split(":") for each in said]
        return [Message(topic, int(partition), bytes.fromhex(body)) for topic, partition, body in found]

    def whole(self, batch_id: int, entries: bytes) -> bytes:
        (said,) = self._requested("whole", str(batch_id), entries.hex())
        return bytes.fromhex(said)

    def text(self, text: str) -> bytes:
        """Returns JSON of an object whose one key and value are the text."""
        (said,) = self._requested("text", text.encode().hex())
        return bytes.fromhex(said)

    def _requested(self, *words: str) -> Sequence[str]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("Canal's program has no pipes")
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Canal's program ended with {self._process.wait()} at {words[0]}")
        return line.split()
