"""Runs an unchanged canal-python in a separate process. Its generated code needs protobuf's pure Python.

    python -m tests.server.protocol.stock_client PORT DESTINATION FILTER ENTRIES

It subscribes, gets without an ack, rolls back, and gets and acks the same entries again. It prints the entries as JSON, a list of fields
for each.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

from canal.client import Client  # type: ignore[import-untyped]
from canal.protocol import EntryProtocol_pb2 as Protocol  # type: ignore[import-untyped]

SECONDS_MAX = 120.0
KINDS = {Protocol.TRANSACTIONBEGIN: Protocol.TransactionBegin, Protocol.TRANSACTIONEND: Protocol.TransactionEnd}


def fields_of(message: Any) -> dict[str, Any]:
    """Returns the fields that are set, by name."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.label == field.LABEL_REPEATED:
            found[field.name] = [fields_of(each) for each in value]
        elif field.type == field.TYPE_MESSAGE:
            found[field.name] = fields_of(value)
        elif field.type != field.TYPE_BYTES:
            found[field.name] = value
    return found


def entry_fields(entry: Any) -> dict[str, Any]:
    value = KINDS.get(entry.entryType, Protocol.RowChange)()
    value.MergeFromString(entry.storeValue)
    return {**fields_of(entry), "storeValue": fields_of(value)}


def entries_of(client: Any, count: int, *, acked: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        message = client.get_without_ack(64, timeout=1000, unit=2)
        found += [entry_fields(entry) for entry in message["entries"]]
        if acked:
            client.ack(message["id"])
    return found


def main(port: int, destination: str, table_filter: str, count: int) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        client = Client()
        client.connect("127.0.0.1", port)
        client.check_valid(b"", b"")
        client.subscribe(b"1001", destination.encode(), table_filter.encode())
        first = entries_of(client, count, acked=False)
        client.rollback(0)
        again = entries_of(client, count, acked=True)
        client.disconnect()
    sys.stdout.write(json.dumps({"same": first == again, "entries": again}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
