"""Tests consumers of a table that stopped for the lake, on a real server. The consumers follow the schema of the stream and never wait for
a decision about the lake.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.canal_client import CanalClient, ClientSettings
from sluice.canal_client.errors import CanalError
from sluice.cdc_engine.acts.stopped_table import approve
from sluice.cdc_engine.brokers import kinds
from sluice.cdc_engine.brokers.publisher import MemoryBroker
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.cdc_engine.instance.engine.group_engine import GroupEngine
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.ports import free_port
from tests.instance.fix_destination import Captured
from tests.waiting import wait_for

pytestmark = pytest.mark.servers
TOPIC = "rows"


@dataclasses.dataclass(frozen=True)
class Cause:
    """The cause of a stop. `statements` stop the table {t} of the database {d}. `column` is the name of the table's second column after the
    statements.
    """

    state: str
    statements: tuple[str, ...]
    column: str = "v"
    setting: str = ""


CAUSES = [
    Cause("DDL_HELD", ("ALTER TABLE {t} CHANGE v w INT",), "w"),
    Cause(
        "STATEMENT_FORMAT",
        ("SET binlog_format = 'STATEMENT'", "UPDATE {t} SET v = 12 WHERE n = 1001", "SET binlog_format = 'ROW'"),
    ),
    Cause("DDL_REFUSED", ("ALTER TABLE {t} MODIFY v VARCHAR(9)",), setting="schema_changes: {convert: stop}"),
    Cause("ROWS_ELSEWHERE", ("ALTER TABLE {t} ENGINE = BLACKHOLE",)),
]


class Everyone:
    """An engine, a group that contains it, and a broker in memory. `found` has the rows that each client of Canal's protocol got, by the
    client's name in the test.
    """

    def __init__(self, captured: Captured, cause: Cause, store: str) -> None:
        self.captured, self.table = captured, f"{captured.database}.stopping"
        self.ports = {"shop": free_port(), "all": free_port()}
        captured.run(f"CREATE TABLE {self.table} (n INT PRIMARY KEY, v INT)")
        captured.describe(
            f"canal_server: {{port: {self.ports['shop']}}}",
            f"brokers: [{{kind: kafka, servers: 'nowhere:1', topic: {TOPIC}, client_id: 1002}}]",
            f"store: {{kind: {store}}}",
            "snapshot: never",
            cause.setting,
        )
        group = f"members: [shop]\ncanal_server: {{port: {self.ports['all']}}}\n"
        (captured.conf / "destinations" / "all.yaml").write_text(group)
        self.broker, self.found = MemoryBroker(), dict[str, list[Any]]()

    @contextlib.contextmanager
    def running(self) -> Iterator[Engine]:
        engine = Engine(self.captured.config, "shop")
        group = GroupEngine(self.captured.config, "all", lambda _: engine.consumers)
        engine.start()
        group.start()
        try:
            yield engine
        finally:
            group.stop()
            engine.stop()

    def write(self, *numbers: int) -> None:
        """Writes each number as a row into both tables, in one transaction per number."""
        for n in numbers:
            rows = (
                f"INSERT INTO {self.captured.database}.numbers VALUES ({n}, '')",
                f"INSERT INTO {self.table} VALUES",
            )
            self.captured.run("BEGIN", rows[0], f"{rows[1]} ({1000 + n}, 5)", "COMMIT")

    def take(self, name: str, destination: str, client_id: int, last: int) -> None:
        """Acks batches until the client has the row with the number `last`. The client rolls back the first batch once, so the batch
        arrives again.
        """

        def subscribed() -> CanalClient | None:
            client = CanalClient(
                destination, port=self.ports[destination], settings=ClientSettings(client_id=client_id)
            )
            try:
                client.connect()
            except CanalError:
                return None
            return client

        client, rolled_back = wait_for("it is served", subscribed), False
        rows = self.found.setdefault(name, [])

        def enough() -> bool:
            nonlocal rolled_back
            batch = client.get(wait_seconds=0.5)
            if batch and not rolled_back:
                batch.rollback()
                rolled_back = True
            elif batch:
                rows.extend(
                    (each.table, int(each.row["n"]), each.kind, {*each.row} - {"n"}) for each in batch.changes()
                )
                batch.ack()
            return any(row[1] == last for row in rows)

        wait_for(f"{name} gets row {last}", enough)
        client.close()

    def sent(self) -> list[Any]:
        """Returns what the broker has, in the form of `take`."""
        bodies = [json.loads(each) for each in self.broker.messages(TOPIC)]
        return [
            (body["table"], int(row["n"]), body["type"].lower(), {*row} - {"n"})
            for body in bodies
            if not body["isDdl"]
            for row in body["data"]
        ]


@pytest.fixture
def captured(mysql80: DatabaseServer, tmp_path: Path) -> Captured:
    return Captured(tmp_path, mysql80)


@pytest.mark.found
@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.state)
def test_consumers_continue_with_every_row_of_a_table_that_stopped_for_the_lake(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, cause: Cause, store: str
) -> None:
    """Defect 17: a decision about the lake stopped every consumer. A consumer that subscribed later lost the table's rows silently."""
    everyone = Everyone(captured, cause, store)
    monkeypatch.setattr(kinds.Kafka, "publisher", lambda _: everyone.broker.publisher())
    names = {"early": ("shop", 7), "group": ("all", 7)}
    with everyone.running() as engine:
        everyone.write(1)
        for name, who in names.items():
            everyone.take(name, *who, 1001)
        captured.run(*(each.format(t=everyone.table, d=captured.database) for each in cause.statements))
        everyone.write(2)
        assert set(captured.take(engine, 3)) == {1, 1001, 2}, "the lake has what precedes the stop"
        (stop,) = wait_for("the table stops", lambda: engine.status().stopped_tables)
        assert (stop.table, stop.state) == ("stopping", cause.state)
        names["late"] = ("shop", 8)
        for name, who in names.items():
            everyone.take(name, *who, 1002)
    everyone.write(3)
    with everyone.running() as engine:
        everyone.write(4)
        for name, who in names.items():
            everyone.take(name, *who, 1004)
        wait_for("the broker has it all", lambda: any(row[1] == 1004 for row in everyone.sent()))
        assert captured.take(engine, 2) == [3, 4]
        if cause.state == "DDL_HELD":
            approve(captured.directory, everyone.table, "apply")
            assert set(captured.take(engine, 3)) >= {1002, 1003, 1004}, (
                "the lake gets what it lacks, and no consumer again"
            )
    for name, rows in {**everyone.found, "broker": everyone.sent()}.items():
        inserted = [(table, n) for table, n, kind, _ in rows if kind == "insert"]
        assert inserted == [each for n in range(1, 5) for each in (("numbers", n), ("stopping", 1000 + n))], name
        later = [columns for table, n, _, columns in rows if table == "stopping" and n > 1001]
        assert later == [{cause.column}] * 3, name
