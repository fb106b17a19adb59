"""Tests that readers of Kafka see every message once, although the engine is killed several times between Kafka's commit and the ack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers.kafka import KafkaServer
from sluice.cdc_engine.brokers.contract_suite import never
from sluice.cdc_engine.brokers.kafka import CommittedOffsets
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.instance.consumers.committed import unpacked
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from tests.brokers import test_broker_kafka as kafka
from tests.instance.engine_process import ROOT
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.seeds]

PARTITIONS = 3
ROW_BYTES = 1 << 10
COMPILED_SECONDS_MAX = 240  # The first process may compile the kernels.


def describe(captured: Captured, server: KafkaServer, bytes_max: int) -> None:
    hashed = f"partitions_num: {PARTITIONS}, partition_hash: '.*\\..*:$pk$', batch_bytes_max: {bytes_max}"
    named = f"topic: {captured.database}, client_id: 7, transactional_id: {captured.database}"
    captured.describe("brokers:", f"- {{kind: kafka, servers: '{server.servers}', {named}, {hashed}}}")


def killed_after(captured: Captured, batches: int) -> None:
    """Runs the engine until it is killed. It acks `batches` batches, and is killed after the commit of the next one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.brokers.committed.killed_engine", str(captured.conf), str(batches)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.wait(COMPILED_SECONDS_MAX) == -signal.SIGKILL
    finally:
        process.kill()


def bodies(server: KafkaServer, topic: str) -> list[list[dict[str, Any]]]:
    """Returns what a reader of committed transactions sees in each partition."""
    return [[json.loads(body) for body in kafka.read(server, topic, each, 0)] for each in range(PARTITIONS)]


def rows(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(body["type"], int(row["n"])) for body in found for row in body["data"] or () if "n" in row]


def committed(server: KafkaServer, captured: Captured) -> dict[str, Any]:
    """Returns the record of the position that Kafka has."""
    name = captured.database
    found = CommittedOffsets({"bootstrap.servers": server.servers, "transactional.id": name}, name).last(never)
    consumer = read_ledger(captured.directory).consumer(7)
    record = unpacked(found.position, consumer.identity if consumer else "")
    assert record is not None, "it is this consumer's"
    return record


def fill(captured: Captured) -> None:
    """Writes 60 rows, an ALTER TABLE and an UPDATE of three rows. The last 20 rows are one transaction of 20 row events."""
    table = f"{captured.database}.numbers"
    captured.insert(range(40), filler_bytes=ROW_BYTES)
    captured.run(f"ALTER TABLE {table} ADD COLUMN note INT", f"UPDATE {table} SET note = 1 WHERE n < 3")
    with captured.server.connect() as connection, connection.cursor() as cursor:
        connection.autocommit(False)
        for number in range(40, 60):
            cursor.execute(f"INSERT INTO {table} (n, filler) VALUES ({number}, REPEAT('x', {ROW_BYTES}))")
        connection.commit()


def sent_to_the_end(captured: Captured, server: KafkaServer) -> list[list[dict[str, Any]]]:
    """Runs an engine until a new row is in Kafka, and returns all that Kafka has."""
    engine = Engine(captured.config, "shop")
    engine.start()
    try:
        captured.run(f"INSERT INTO {captured.database}.numbers (n) VALUES (60)")
        last = ("INSERT", 60)
        wait_for("the last row", lambda: any(last in rows(each) for each in bodies(server, captured.database)))
    finally:
        engine.stop()
    return bodies(server, captured.database)


def test_broker_kafka_has_every_message_once_after_kills_between_commit_and_ack(
    mysql80: DatabaseServer, kafka41: KafkaServer, tmp_path: Path
) -> None:
    """Batches have other ends after each restart, and some of them end within a transaction."""
    captured = Captured(tmp_path, mysql80)
    kafka.make_topic(kafka41, captured.database, PARTITIONS)
    describe(captured, kafka41, 1 << 20)
    with running(captured):
        pass  # The broker has subscribed before the first change.
    fill(captured)
    within = 0
    for bytes_max, batches in ((20 << 10, 1), (5 << 10, 0), (3 << 10, 1), (5 << 10, 0)):
        describe(captured, kafka41, bytes_max)
        killed_after(captured, batches)
        within += committed(kafka41, captured).get("events", 0) > 0
    assert within, "a batch ended within the transaction"
    describe(captured, kafka41, 7 << 10)
    found = sent_to_the_end(captured, kafka41)
    counted = Counter(row for each in found for row in rows(each))
    assert set(counted) == {*(("INSERT", number) for number in range(61)), *(("UPDATE", number) for number in range(3))}
    assert not [row for row, count in counted.items() if count > 1]
    assert [body["type"] for each in found for body in each].count("ALTER") == 1
    for each in found:
        inserted = [number for kind, number in rows(each) if kind == "INSERT"]
        assert inserted == sorted(inserted)


QUERY = """
import sys
from sluice.cdc_engine.brokers.kafka import CommittedOffsets

print(CommittedOffsets({"bootstrap.servers": sys.argv[1], "transactional.id": "new"}, "new").last(lambda: False).number)
"""


def test_defect_a_kafka_without_committed_offsets_ends_no_process(tmp_path: Path) -> None:
    """Defect 70: with `transactional_id` and a new Kafka, the engine process usually ended with SIGSEGV in librdkafka."""
    server = KafkaServer(tmp_path).start()
    try:
        command = [sys.executable, "-c", QUERY, server.servers]
        queries = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
        assert [(each.communicate()[0], each.returncode) for each in queries] == [(b"0\n", 0)] * 3
    finally:
        server.kill()
