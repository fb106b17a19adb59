"""Tests that a group's brokers and clients get the rows of each member as this member shows them, in the group's order."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.brokers.publisher import MemoryBroker
from sluice.cdc_engine.config.brokers import AnyBroker, BrokerConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.consumers.forms import Forms
from sluice.cdc_engine.instance.consumers.group.group_stream import Run
from sluice.cdc_engine.instance.consumers.group.served import ByMember, GroupEntries, GroupMessages
from sluice.cdc_engine.instance.consumers.sending import Sending, message_maker
from sluice.cdc_engine.instance.consumers.served import entry_maker
from tests.brokers.fix_recorded import recorded
from tests.instance.consumers.group.fix_members import Fake, Group, Row, rows_of
from tests.waiting import wait_for


def broker(**words: Any) -> BrokerConfig:
    record = {"kind": "rabbitmq", "servers": "127.0.0.1:5672", "topic": "t", "client_id": 1002, **words}
    found: BrokerConfig = TypeAdapter(AnyBroker).validate_python(record)
    return found


def narrow() -> Forms:
    """Returns forms of rows that leave out the last column of each table."""
    return Forms(kept=lambda version: np.arange(max(1, len(version.columns) - 1), dtype=np.int32))


def test_group_broker_and_consumer_get_each_member_s_rows_as_it_shows_them() -> None:
    runs = (Run("east", recorded(), Forms()), Run("west", recorded(), narrow()))
    config = broker(format="flat")
    plain, narrowed = (message_maker(config, run.forms).messages(run.chosen, 3) for run in runs)
    found = GroupMessages(config).messages(runs, 3)

    def reported(messages: list[Any]) -> list[Any]:
        return [{**json.loads(each.body), "ts": 0} for each in messages]

    assert reported(found) == reported([*plain, *narrowed])
    assert reported(list(plain)) != reported(list(narrowed))
    entries = [entry_maker(Display(), run.forms).messages(run.chosen) for run in runs]
    assert GroupEntries(Display()).messages(runs) == b"".join(entries)


def test_group_message_makers_of_a_broker_are_created_again_if_a_member_changes_its_rules() -> None:
    makers = ByMember(lambda _: object())
    forms = Forms()
    first = makers.of(Run("east", (), forms))
    assert makers.of(Run("east", (), forms)) is first
    assert makers.of(Run("west", (), forms)) is not first
    assert makers.of(Run("east", (), Forms())) is not first


def test_group_invalid_rules_of_a_broker_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError):
        GroupMessages(broker(dynamic_topic="("))


def test_group_broker_is_a_consumer_whose_ack_follows_the_broker_s_over_a_restart() -> None:
    group, memory = Group(Fake("east"), Fake("west")), MemoryBroker()

    def made(runs: tuple[Run, ...], batch_id: int) -> list[Any]:
        from sluice.cdc_engine.brokers.publisher import Message  # noqa: PLC0415

        return [Message("t", 0, json.dumps(row).encode()) for row in rows_of(runs)]

    def sending() -> Sending[tuple[Run, ...]]:
        begun = Sending([broker()], lambda: group.consumers, lambda _: made, lambda _: memory.publisher())
        begun.begin()
        return begun

    def sent() -> list[Row]:
        return [tuple(json.loads(body)) for body in memory.messages("t")]

    first = sending()
    wait_for("it subscribes", lambda: group.meta.ledger.group_consumer(1002))
    for name, now_us in (("west", 2), ("east", 3)):
        group.fakes[name].write(1, now_us=now_us)
    group.fakes["east"].now_us = group.fakes["west"].now_us = 4
    group.clocks()
    wait_for("both are sent", lambda: sent() == [("west", 0), ("east", 0)])
    wait_for("both are acked", lambda: group.consumers.service(1002).acked.barrier_us == 3)
    first.end()
    group.consumers.close()
    group.begin()
    second = sending()
    group.fakes["west"].write(1, now_us=5)
    group.fakes["east"].now_us = 6
    group.clocks()
    wait_for("the next is sent, and no other again", lambda: sent() == [("west", 0), ("east", 0), ("west", 1)])
    second.end()
    group.consumers.close()
