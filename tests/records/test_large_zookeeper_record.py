"""Tests that records of thousands of tables fit into nodes of ZooKeeper. Needs no server."""

from __future__ import annotations

import json

import pytest

from sluice.cdc_engine.contracts import StoppedTable, ZooKeeperServers
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.meta.ledger_record import ledger_to_text
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records import zookeeper
from sluice.cdc_engine.records.zookeeper_client import NODE_BYTES_MAX
from sluice.cdc_engine.states import TableState

STORE = zookeeper.ZooKeeperRecordStore(ZooKeeperServers(hosts="127.0.0.1:2181"), "shop", 10.0)
REASON = "the Delta table /lake/shop/orders has version 7 and had version 9: an older copy has replaced it. " * 4


@pytest.mark.found
def test_a_ledger_with_thousands_of_stopped_tables_fits_into_a_node() -> None:
    """Defect 1199: the stops of 3,000 tables, for example of a restored lake, exceeded the size of a node. No later write succeeded."""
    position = Position(epoch=1, file="binlog.000001", offset=4, gtid_set="3e11fa47-71ca-11e1-9e33-c80aa9429562:1-99")
    ledger = Ledger()
    for number in range(3_000):
        stop = StoppedTable(
            database=f"shop_{number}",
            table="orders",
            state=TableState.TABLE_RESTORED,
            reason=REASON,
            position=position,
        )
        ledger = ledger.stop_table(stop)
    text = ledger_to_text(ledger)
    assert len(text) > NODE_BYTES_MAX
    data = STORE._content("meta.json", text, 7)
    assert len(data) < NODE_BYTES_MAX
    read = zookeeper._kept(data, 4, "meta.json")
    assert (read.text, read.token, read.version) == (text, 7, 5)


def test_a_record_that_is_too_large_even_when_compressed_is_refused() -> None:
    text = json.dumps([str(hash((number, "x"))) for number in range(200_000)])
    with pytest.raises(MetaError, match=r"more than a node may have: use `meta.kind: sql`"):
        STORE._content("meta.json", text, 7)


def test_small_records_stay_readable_for_operators() -> None:
    assert STORE._content("a.json", "one é", 7) == '{"token": 7}\none é'.encode()
    assert zookeeper._kept('{"token": 7}\none é'.encode(), 0, "a.json").text == "one é"
    with pytest.raises(MetaError, match="does not have the content that Sluice writes"):
        zookeeper._kept(b'{"token": 7, "compressed": true}\nnot compressed', 0, "a.json")
