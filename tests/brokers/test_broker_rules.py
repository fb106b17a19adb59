"""Tests that topics, partitions and hashes follow Canal's rules, and that the changes of a key stay in order if the key's hash chooses the
partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pytest

from sluice.cdc_engine.binlog.entries.texts import Display
from sluice.cdc_engine.brokers.messages import MessageMaker
from sluice.cdc_engine.brokers.publisher import Message
from sluice.cdc_engine.brokers.routing import Route, Routing, Rules, hash_of, partition_of
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.instance.consumers.statements import described
from tests.brokers.fix_recorded import recorded

Rows = dict[tuple[str, ...], dict[str, str | None]]


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("1", 49),
        ("mytest", -1059087298),
        ("é漢", 35673),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_broker_hashes_are_those_of_java(text: str, hashed: int) -> None:
    assert hash_of(text) == hashed


def test_broker_partition_of_the_reference() -> None:
    assert partition_of(hash_of("mytest") ^ hash_of("1"), 3) == 0
    assert partition_of(-(2**31), 3) == 2


def topic(rules: Rules, name: str) -> str:
    database, _, table = name.partition(".")
    return Routing(rules).statement(database, table).topic


@pytest.mark.parametrize(
    ("dynamic", "name", "wanted"),
    [
        ("", "shop.orders", "all.of.it"),  # A dot stays if no rule is for tables.
        ("shop.orders", "Shop.Orders", "shop_orders"),
        ("one:shop.orders,two:shop\\.orders", "shop.orders", "one"),
        ("a.b:shop\\..*", "shop.orders", "a_b"),
        ("shop", "shop.orders", "shop"),
        ("two:sho.*", "shop.orders", "two"),  # The pattern has no escaped dot, so it is for databases.
        ("sho.*\\.orders", "other.orders", "all_of_it"),
        (".*\\..*", "shop.orders", "shop_orders"),
        ("shop.items;shop.orders", "shop.orders", "shop_orders"),
        (".*\\..*", ".", "all_of_it"),
        (".*\\..*", "shop", "all_of_it"),  # A statement about a database alone.
    ],
)
def test_broker_topics_are_chosen_as_canal_does(dynamic: str, name: str, wanted: str) -> None:
    assert topic(Rules(topic="all.of.it", dynamic_topic=dynamic), name) == wanted


def rows_of(rules: Rules, database: str = "shop", table: str = "orders") -> Route:
    return Routing(rules).rows(database, table, ["id", "Region", "note"], [True, False, False])


def test_broker_partitions_are_chosen_as_canal_does() -> None:
    assert rows_of(Rules(topic="t", partition=4)).partition == 4
    hashed = Rules(
        topic="t",
        partition=4,
        partitions_num=7,
        partition_hash=r"shop.orders:id^region,shop.items:$PK$,.*\.tags,other\..*:x",
    )
    found = rows_of(hashed).hashing  # Flat messages find `Region` only with the same upper and lower case.
    assert found is not None
    assert (found.columns, found.partitions, found.seed) == (
        (0,),
        7,
        hash_of("shop"),
    )
    other = rows_of(
        Rules(topic="t", partition_hash="shop.orders:id^region", exact_names=False, database_hash=False)
    ).hashing
    assert other is not None
    assert (other.columns, other.partitions, other.seed) == ((0, 1), 1, 0)
    key = rows_of(hashed, table="items").hashing
    assert key is not None
    assert key.columns == (0,)
    assert rows_of(hashed, table="tags") == Route("t", abs(hash_of("tags")) % 7)
    assert rows_of(hashed, table="unnamed") == Route("t", 0)
    assert Routing(hashed).statement("shop", "orders") == Route("t", 0)
    counted = Rules(topic="t", partition_hash="shop.orders:id", dynamic_topic_partition_num="x:3,t.*:5")
    many = rows_of(counted).hashing
    assert many is not None
    assert many.partitions == 5


def test_broker_invalid_rules_are_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"'\(shop' in dynamic_topic"):
        Routing(Rules(topic="t", dynamic_topic="one:(shop"))


def messages(rules: Rules, keys: Mapping[str, tuple[str, ...]] | None = None) -> list[Message]:
    maker = MessageMaker(Routing(rules), "flat", display=Display(), describe=described, keys=keys, now_ms=lambda: 1)
    return maker.messages(recorded(), 1)


@pytest.mark.seeds
def test_broker_hashes_the_key_of_a_table_that_conf_declares() -> None:
    table, key = "rehearsal.composed", ("b",)
    of_key = Rules(topic="t", partition_hash=f"{table}:$pk$", partitions_num=3)
    of_column = Rules(topic="t", partition_hash=f"{table}:b", partitions_num=3)
    declared = messages(of_key, {table: key})
    assert declared == messages(of_column)
    assert declared != messages(of_key), "the table's own key is another one"
    assert {each.partition for each in declared} == {0, 1, 2}


def taken(found: Iterable[Message]) -> Rows:
    """Returns the final rows of a reader that applies these messages. Includes only the tables that have a key."""
    rows: Rows = {}
    for message in found:
        record = json.loads(message.body)
        if record["table"] not in {"composed", "everything"} or record["isDdl"]:
            continue
        for index, row in enumerate(record["data"]):
            before = row | record["old"][index] if record["type"] == "UPDATE" else row
            if record["type"] != "INSERT":
                rows.pop((record["table"], *(before[name] for name in record["pkNames"])), None)
            if record["type"] != "DELETE":
                rows[record["table"], *(row[name] for name in record["pkNames"])] = row
    return rows


def by_partition(rules: Rules) -> list[Rows]:
    """Returns, for each partition, the rows that a reader of only this partition has."""
    found = messages(rules)
    return [taken(each for each in found if each.partition == number) for number in range(rules.partitions_num)]


def test_broker_partitions_each_have_their_keys_whole_history() -> None:
    """All changes of a key are in one partition, also after an update that changes a key. So the readers of different partitions may be at
    different positions.
    """
    whole = taken(messages(Rules(topic="t")))
    parts = by_partition(Rules(topic="t", partition_hash=r".*\..*:$pk$", partitions_num=3))
    assert len(whole) > 10
    assert sum(map(len, parts)) == len(whole)
    assert {key: row for part in parts for key, row in part.items()} == whole
    as_canal = by_partition(Rules(topic="t", partition_hash=r".*\..*:$pk$", partitions_num=3, splits=False))
    assert sum(map(len, as_canal)) > len(whole)  # The old keys stay in their partitions.
