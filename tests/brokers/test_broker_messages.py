"""Tests that messages for brokers equal, byte by byte, those that Canal 1.1.7's own code makes of the same entries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import pytest

from sluice.cdc_engine.binlog.entries.flat import text_of
from sluice.cdc_engine.binlog.entries.flat_json import escaped_size, put_escaped
from sluice.cdc_engine.binlog.entries.messages import EntryMaker
from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.binlog.row_rules.masks import ColumnMask
from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.brokers.messages import MessageMaker
from sluice.cdc_engine.brokers.publisher import Message
from sluice.cdc_engine.brokers.routing import Routing, Rules
from sluice.cdc_engine.instance.consumers.statements import described
from tests.brokers.canal_messages import CanalMessages
from tests.brokers.fix_recorded import recorded

BATCH, NOW_MS = 5, 1_700_000_000_123
RULES = (
    Rules(topic="all"),
    Rules(topic="all.of", dynamic_topic=r"one.two:rehearsal\.everything,rehearsal\..*"),
    Rules(topic="all", partition_hash=r".*\..*:$pk$", partitions_num=3, splits=False),
    Rules(topic="all", partition_hash=r".*\..*:a^b", partitions_num=5, database_hash=False, splits=False),
    Rules(topic="all", dynamic_topic="rehearsal", partition_hash=r"rehearsal.composed:c^b,.*\..*", partitions_num=4, splits=False),
)  # fmt: skip


@pytest.fixture(scope="module")
def canal() -> Iterator[CanalMessages]:
    process = CanalMessages()
    yield process
    process.close()


def made(
    rules: Rules, form: Literal["flat", "protobuf"], policies: Mapping[str, ValuePolicy] | None = None
) -> list[Message]:
    maker = MessageMaker(
        Routing(rules), form, display=Display(), describe=described, policies=policies, now_ms=lambda: NOW_MS
    )
    return maker.messages(recorded(), BATCH)


def by_queue(messages: list[Message]) -> dict[tuple[str, int], list[bytes]]:
    """Groups messages by topic and partition, because only the order within a partition counts."""
    found: dict[tuple[str, int], list[bytes]] = {}
    for each in messages:
        found.setdefault((each.topic, each.partition), []).append(each.body)
    return found


@pytest.mark.parametrize("rules", RULES, ids=range(len(RULES)))
@pytest.mark.parametrize("form", ["flat", "packets"])
def test_broker_messages_are_those_of_canal_byte_by_byte(form: str, rules: Rules, canal: CanalMessages) -> None:
    entries = EntryMaker(Display(), described).messages(recorded())
    if form == "packets" and rules is RULES[0]:
        assert [each.body for each in made(rules, "protobuf")] == [canal.whole(BATCH, entries)]
        return
    ours = by_queue(made(rules, "flat" if form == "flat" else "protobuf"))
    theirs = by_queue(canal.routed(form, rules, BATCH, NOW_MS, entries))
    assert len(ours) > 1 or rules is RULES[0]
    assert ours.keys() == theirs.keys()
    for queue, bodies in ours.items():
        assert len(bodies) == len(theirs[queue])
        for our, their in zip(bodies, theirs[queue], strict=True):
            assert our == (_own_changes_only(their) if form == "flat" else their)


def _own_changes_only(body: bytes) -> bytes:
    """Returns a message of Canal with only the changes of each row in `old`. Canal also adds the columns that changed in earlier rows of
    the message.
    """
    record = json.loads(body)
    if record["type"] == "UPDATE":
        record["old"] = [
            {name: value for name, value in old.items() if name not in row or row[name] != value}
            for old, row in zip(record["old"], record["data"], strict=True)
        ]
    return text_of(record).encode()


@pytest.mark.parametrize("form", ["flat", "packets"])
def test_broker_gets_only_the_rows_and_values_that_conf_lets_out(form: str, canal: CanalMessages) -> None:
    masked = RowRules(condition="a > 3", masks=(ColumnMask(column="b", kind="hash", salt="salt"),))
    policies, rules = {"rehearsal.composed": ValuePolicy(rules=masked)}, RULES[2]
    entries = EntryMaker(Display(), described, policies).messages(recorded())
    ours = by_queue(made(rules, "flat" if form == "flat" else "protobuf", policies))
    theirs = by_queue(canal.routed(form, rules, BATCH, NOW_MS, entries))
    reported = b"".join(body for bodies in ours.values() for body in bodies)
    plain = b"".join(each.body for each in made(rules, "flat" if form == "flat" else "protobuf"))
    assert b"b5" in plain
    assert b'"b5"' not in reported
    assert len(reported) != len(plain)
    assert {queue: len(bodies) for queue, bodies in ours.items()} == {
        queue: len(each) for queue, each in theirs.items()
    }
    for queue, bodies in ours.items():
        assert bodies == [_own_changes_only(each) if form == "flat" else each for each in theirs[queue]]


def test_broker_texts_are_escaped_as_canal_does(canal: CanalMessages) -> None:
    points = [*range(0xD800), *range(0xE000, 0x11000), 0x1F600, 0x10FFFF]
    for some in (points[first : first + 5000] for first in range(0, len(points), 5000)):
        text = "".join(map(chr, some))
        data = np.frombuffer(text.encode(), np.uint8)
        out = np.empty(int(escaped_size(data, 0, len(data))), np.uint8)
        assert put_escaped(out, 0, data, 0, len(data)) == len(out)
        own = out.tobytes()
        assert canal.text(text) == b'{"%s":"%s"}' % (own, own)
        assert json.dumps(text, ensure_ascii=False).encode() == b'"%s"' % own
