"""Tests what clients cannot do to the process that serves them: slow filters, many consumers, and gets that wait while their consumer is
removed.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sluice.cdc_engine.acts.consumer import forget
from sluice.cdc_engine.durable_files import keep_file
from sluice.cdc_engine.errors import ActRefusedError, BatchNotFoundError, ConfigurationError, NotSubscribedError
from sluice.cdc_engine.instance.consumers import subscriptions as room
from sluice.cdc_engine.instance.consumers.client_filter import client_tables
from sluice.cdc_engine.instance.consumers.consumers import Consumers, ConsumerStreams
from sluice.cdc_engine.instance.consumers.subscriptions import forget_requested
from sluice.cdc_engine.meta.ledger_record import ledger_from_text, ledger_to_text
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.window.window import Window
from tests.fix_blocks import SERVER
from tests.fix_ledgers import MemoryLedger
from tests.waiting import wait_for

START = Position(epoch=1, file="mysql-bin.000001", offset=4, server_uuid=SERVER)
FILTERS = [
    "",
    "shop.orders",
    r"shop\..*",
    r"shop\.(orders|audit)",
    "a.b,SHOP.ORDERS",
    r"s.op\.[a-o]+",
    "other.*,x{1,2}",
]


@pytest.fixture
def consumers() -> Consumers:
    def none(*_: object) -> object:
        raise AssertionError("nobody is behind")

    return Consumers(
        MemoryLedger(),
        ConsumerStreams(
            live=Window(START, bytes_max=1 << 20),
            open_own=none,  # type: ignore[arg-type]
            held_up=lambda: False,
        ),
        server_filter=TableFilter(""),
        wants=lambda _tables, _shown: lambda _statement: False,
    )


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("name", ["shop.orders", "shop.audit", "Shop.Orders", "other.t", "shopping.orders", "x.y"])
def test_a_clients_filter_keeps_what_the_servers_would_consumer(text: str, name: str) -> None:
    database, _, table = name.partition(".")
    assert client_tables(text).keeps(database, table) == TableFilter(text).keeps(database, table)
    assert client_tables(text).keeps("", "")


def test_a_filter_that_goes_back_and_forth_costs_nothing_consumer() -> None:
    """With Python's own regular expressions, this match would practically never end."""
    assert not client_tables("(.|.|.|.)*!").keeps("d" * 64, "t" * 64)


@pytest.mark.parametrize("text", ["(", "(?=a)b", "(a)\\1", "x" * 4097])
def test_an_invalid_filter_is_refused_consumer(consumers: Consumers, text: str) -> None:
    with pytest.raises(ConfigurationError):
        consumers.subscribe(1, text)
    assert consumers.statuses(None) == ()


def test_only_so_many_consumers_are_in_the_ledger_consumer(
    consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CONSUMERS_MAX", 2)
    for number in (1, 2, 2):
        consumers.subscribe(number)
    with pytest.raises(ConfigurationError, match="2 consumers"):
        consumers.subscribe(3)
    consumers.unsubscribe(1)
    consumers.subscribe(3)


@pytest.mark.parametrize("served", [True, False])
def test_an_operator_has_a_consumer_forgotten(consumers: Consumers, tmp_path: Path, *, served: bool) -> None:
    """After `forget`, a consumer that is no longer in conf/ retains nothing, and a consumer whose position is purged can begin again."""
    meta = consumers._meta
    for number in (1, 2):
        consumers.subscribe(number)
    keep_file(tmp_path / "shop" / "meta.json", ledger_to_text(meta.ledger))
    forget(tmp_path / "shop", 1)
    with pytest.raises(ActRefusedError, match="no consumer 7"):
        forget(tmp_path / "shop", 7)
    for _ in range(2):
        forget_requested(tmp_path / "shop", meta, consumers if served else None)
    assert [each.client_id for each in meta.ledger.consumers] == [2]
    consumers.subscribe(1)
    forget_requested(tmp_path / "shop", meta, consumers)
    assert [each.client_id for each in meta.ledger.consumers] == [1, 2], "once"


def test_consumer_has_one_identity_until_it_is_forgotten_and_another_afterwards(consumers: Consumers) -> None:
    consumers.subscribe(1)
    assert consumers._meta.ledger.consumers[0].identity == "", "no broker stores its position"
    first = consumers.identity_of(1)
    assert consumers.identity_of(1) == first
    saved = ledger_from_text(ledger_to_text(consumers._meta.ledger), "shop")
    assert [each.identity for each in saved.consumers] == [first]
    consumers.subscribe(1, "shop.*")
    consumers.keep()
    assert consumers.identity_of(1) == first
    consumers.unsubscribe(1)
    with pytest.raises(NotSubscribedError):
        consumers.identity_of(1)
    consumers.subscribe(1)
    assert consumers.identity_of(1) != first


def test_gets_that_wait_for_each_other_end_when_their_consumer_is_put_away_consumer(consumers: Consumers) -> None:
    service = consumers.subscribe(1)
    waiting = [threading.Thread(target=service.get, args=(1, 3600.0), daemon=True) for _ in range(3)]
    for each in waiting:
        each.start()
    wait_for("a get that waits", service._taking.locked)
    assert len(consumers.statuses(None)) == 1, "status does not wait"
    consumers.unsubscribe(1)
    for each in waiting:
        each.join(30)
        assert not each.is_alive()
    assert service.get(1, 3600.0) == (-1, None), "one that comes late gets nothing"


@pytest.mark.found
@pytest.mark.parametrize("forgotten", [False, True])
def test_consumer_with_another_filter_does_not_use_the_ids_of_earlier_batches_again(
    consumers: Consumers, *, forgotten: bool
) -> None:
    """Defect 1176: after a subscription with another filter, batch ids began again at 1. A process of the old client that acked its batch 1
    so acked a batch that only the new client had, and the new client lost the batch after a crash.
    """
    old = consumers.subscribe(1001)
    old._line = old.line.handed_out(old.line.taken)
    if forgotten:
        consumers.unsubscribe(1001)
    new = consumers.subscribe(1001, "shop.*")
    new._line = new.line.handed_out(new.line.taken)
    assert [each.batch_id for each in new.line.waiting] == [2]
    with pytest.raises(BatchNotFoundError):
        consumers.service(1001).ack(1)
    consumers.service(1001).ack(2)
