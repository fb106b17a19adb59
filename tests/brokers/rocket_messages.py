"""Reads the messages of a queue with RocketMQ's own client, so that tests can check what Sluice sent. Also creates topics."""

from __future__ import annotations

import dataclasses
import socket
import struct
import subprocess
from pathlib import Path

from benchmarks.servers.rocketmq import RocketServer, java_command
from sluice.cdc_engine.brokers.rocketmq_wire import GET_ROUTE, SUCCESS, answer_of, queues_of, request
from sluice.console.toolchain.ports import LOOPBACK
from tests.waiting import wait_for

PROGRAM = Path(__file__).with_name("RocketMessages.java")
CREATE_TOPIC = 17


@dataclasses.dataclass(frozen=True)
class Read:
    body: bytes
    tag: str
    id: str


class RocketMessages:
    """Runs a Java program with RocketMQ's client, which answers one request at a time."""

    def __init__(self, server: RocketServer) -> None:
        words = (server.servers, server.access_key, server.secret, "sluice")
        self._process = subprocess.Popen(
            [*java_command(), "-Xmx128m", f"-Duser.home={server.folder}", str(PROGRAM), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def read(self, topic: str, queue: int) -> list[Read]:
        """Returns all messages of a queue, or nothing if the broker does not answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("RocketMQ's program has no pipes")
        self._process.stdin.write(f"{topic}\t{queue}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            word, *found = line.split() or [""]
            if word == "failed":
                return []
            if word == "read":
                parts = [each.split(":") for each in found]
                return [Read(bytes.fromhex(body), bytes.fromhex(tag).decode(), name) for body, tag, name in parts]
        raise RuntimeError(f"RocketMQ's program ended with {self._process.wait()}")


def make_topic(server: RocketServer, name: str, queues: int) -> str:
    """Returns once the name server knows it."""
    wanted = {
        "topic": name,
        "defaultTopic": "TBW102",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "topicSysFlag": "0",
        "order": "false",
    }
    code, _ = _requested(server.broker_port, request(CREATE_TOPIC, 1, wanted, key=(server.access_key, server.secret)))
    if code != SUCCESS:
        raise RuntimeError(f"RocketMQ did not make topic {name}: {code}")

    def known() -> bool:
        code, body = _requested(server.name_port, request(GET_ROUTE, 1, {"topic": name}))
        return code == SUCCESS and len(queues_of(name, body)) == queues

    wait_for(f"topic {name} is known", known)
    return name


def _requested(port: int, frame: bytes) -> tuple[int, bytes]:
    with socket.create_connection((LOOPBACK, port), timeout=10) as connection:
        connection.sendall(frame)
        received = b""
        while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
            received += connection.recv(1 << 16)
    answer = answer_of(received[4:])[1]
    return answer.code, answer.body
