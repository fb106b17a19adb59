"""Serves a destination in memory with the real protocol server. The destination hands out its entries one by one, and settles them as the
protocol requires.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.canal_client import messages
from sluice.cdc_engine.binlog.protobuf_fields import bytes_field
from sluice.cdc_engine.errors import BatchNotFoundError, NotSubscribedError, UnknownDestinationError
from sluice.cdc_engine.server.protocol.listener import Address, CanalListener
from sluice.cdc_engine.server.protocol.session import Access
from sluice.secret_values import SecretLocation

HASH = "e3619321c1a937c46a0d8bd1dac39f93b27d4458"  # the hash of the password "canal"
CANAL = Access(user="canal", password_hash=SecretLocation(command=("echo", HASH)).reference)
INSERT, UPDATE, DELETE, ALTER = 1, 2, 3, 5
Column = tuple[str, str, str | None]


def image(row: Iterable[Column], key: str = "id", updated: tuple[str, ...] = ()) -> list[Any]:
    return [
        {
            "index": index,
            "name": name,
            "isKey": name == key,
            "isNull": value is None,
            "value": value or "",
            "mysqlType": declared,
            "updated": name in updated,
        }
        for index, (name, declared, value) in enumerate(row)
    ]


def entry(change: dict[str, Any], table: str = "orders", offset: int = 4, kind: int = 2) -> bytes:
    header = {
        "logfileName": "bin.000001",
        "logfileOffset": offset,
        "schemaName": "shop",
        "tableName": table,
        "executeTime": 1_600_000_000_000,
        "eventType": change.get("eventType", 0),
    }
    body = {1: messages.TransactionBegin, 2: messages.RowChange, 3: messages.TransactionEnd}[kind](**change)
    data: bytes = messages.Entry(header=header, entryType=kind, storeValue=body.SerializeToString()).SerializeToString()
    return data


def inserted(number: int) -> bytes:
    rows = [{"afterColumns": image([("id", "int", str(number))])}]
    return entry({"eventType": INSERT, "rowDatas": rows}, offset=number)


class Destination:
    """A destination with one entry per delivery. It implements `session.Served` and its consumer. Like a ledger, it outlives the server."""

    counts_entries = False

    def __init__(self, entries: Iterable[bytes]) -> None:
        self.entries = list(entries)
        self.acked = self.taken = 0
        self.batch_id = 0
        self.waiting: list[int] = []
        self.filters: list[str] = []
        self.calls: list[Any] = []
        self.said: str = ""
        self.undelivered = ""

    def subscribe(self, client_id: int, client_filter: str) -> Destination:
        self.calls.append(("subscribe", client_id))
        self.filters.append(client_filter)
        return self

    def unsubscribe(self, client_id: int) -> None:
        self.calls.append(("unsubscribe", client_id))
        self.filters.clear()
        self.acked = self.taken = 0

    def service(self, client_id: int) -> Destination:
        if not self.filters:
            raise NotSubscribedError(f"ClientIdentity:{client_id} should subscribe first")
        return self

    def messages(self, content: bytes) -> bytes:
        return bytes_field(2, content)

    def get(self, bytes_max: int, timeout_seconds: float = 0.0, *, entries_max: int = 0) -> tuple[int, Any]:
        del entries_max  # It does not count entries.
        self.calls.append(("get", bytes_max, timeout_seconds))
        if self.said:
            raise UnknownDestinationError(self.said)
        if self.taken == len(self.entries):
            return -1, None
        self.batch_id += 1
        self.waiting.append(self.batch_id)
        self.taken += 1
        return self.batch_id, self.entries[self.taken - 1]

    def ack(self, batch_id: int) -> None:
        if batch_id not in self.waiting:
            raise BatchNotFoundError(f"ack error , clientId:1001 batchId:{batch_id} is not exist , please check")
        self.waiting.remove(batch_id)
        self.acked += 1

    def rollback(self, batch_id: int | None = None) -> None:
        self.calls.append(("rollback", batch_id))
        self.waiting.clear()
        self.taken = self.acked

    def stop_waiting(self) -> None:
        """Does nothing, because nothing waits."""


def listening(destination: Destination, access: Access = CANAL, port: int = 0) -> CanalListener:
    made = CanalListener(Address(access=access, port=port))
    made.serve("example", destination)
    return made
