"""Reads the batches of a consumer whose engine is in this process, and returns the numbers of their rows (column `n`)."""

from __future__ import annotations

import pyarrow as pa

from sluice.cdc_engine.binlog.entries.elements import ROWS
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.instance.consumers.consumer_stream import Chosen
from sluice.cdc_engine.instance.consumers.consumers import Service
from tests.waiting import wait_for


def numbers_in(content: tuple[Chosen, ...]) -> list[int]:
    found: list[int] = []
    for each in content:
        for index in each.indices[each.kinds == ROWS].tolist():
            decoder = RowDecoder(each.block.tables[each.block.event_table[index]])
            for batch in decoder.chunks(each.block, pa.array([index]).to_numpy()):
                found += batch.column("n").to_numpy().tolist()
    return found


def taken(service: Service, count: int, *, bytes_max: int = 1 << 20) -> list[int]:
    """Takes and acks batches until at least `count` rows have arrived. Returns the numbers of these rows."""
    found: list[int] = []

    def enough() -> bool:
        batch_id, content = service.get(bytes_max, 0.2)
        if content is not None:
            found.extend(numbers_in(content))
            service.ack(batch_id)
        return len(found) >= count

    wait_for(f"{count} rows", enough)
    return found
