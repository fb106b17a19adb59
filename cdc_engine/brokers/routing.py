"""Selects the topic and partition of a table's changes, by the rules of Canal's `canal.mq` settings. Pure."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np

from sluice.cdc_engine.binlog.entries.units import Hashing, java_hash
from sluice.cdc_engine.errors import ConfigurationError

WILD = frozenset("*?+|(){}[]\\$^")
KEY = "$pk$"


def hash_of(text: str) -> int:
    """Returns the same hash as Java's String.hashCode."""
    data = np.frombuffer(text.encode(), np.uint8)
    return int(java_hash(data, 0, len(data)))


def partition_of(value: int, partitions: int) -> int:
    return abs(value) % partitions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings in conf/ that select topics and partitions. A rule that is an empty text is not set, as in Canal.

    - `exact_names`: whether column names in partition_hash match only in the same letter case, as for flat messages in Canal.
    - `splits`: whether an update that moves a row to another partition becomes a delete in the old partition and an insert in the new one.
    """

    topic: str
    dynamic_topic: str = ""
    partition: int = 0
    partitions_num: int = 1
    partition_hash: str = ""
    dynamic_topic_partition_num: str = ""
    database_hash: bool = True
    exact_names: bool = True
    splits: bool = True


@dataclasses.dataclass(frozen=True)
class Route:
    """The topic and partition of a statement or of a table's rows. If `hashing` is None, all rows go to `partition`. Otherwise `hashing`
    computes the partition of each row.
    """

    topic: str
    partition: int
    hashing: Hashing | None = None


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A pattern that matches names, without regard to letter case. If `text` has a character of WILD, `text` is a regular expression that
    must match the whole name. Otherwise `text` is the name to match.
    """

    text: str

    @property
    def is_wild(self) -> bool:
        return bool(WILD & set(self.text))

    @functools.cached_property
    def expression(self) -> re.Pattern[str]:
        """The compiled regular expression. Raises ConfigurationError if it is invalid."""
        text = self.text if self.is_wild else re.escape(self.text)
        try:
            return re.compile(f"(?:{text})", re.IGNORECASE | re.DOTALL)
        except re.error as error:
            raise ConfigurationError(
                f"{self.text!r} in dynamic_topic, partition_hash or dynamic_topic_partition_num is not a regular expression: {error}"
            ) from error

    def matches(self, name: str) -> bool:
        return self.expression.fullmatch(name) is not None


class Routing:
    """Selects topics and partitions by the rules in conf/. The constructor raises ConfigurationError if a rule is invalid."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._topics = [_topic_item(item) for item in _items(rules.dynamic_topic)]
        self._hashes = [_hash_item(item) for item in _items(rules.partition_hash)]
        self._counts = [each for each in map(_count_item, _items(rules.dynamic_topic_partition_num)) if each]
        for pattern in (*(p for _, p in self._topics), *(p for p, _ in self._hashes), *(p for p, _ in self._counts)):
            _ = pattern.expression

    @property
    def is_plain(self) -> bool:
        """Whether all messages are sent to one topic and partition."""
        return not (self._rules.dynamic_topic or self._rules.partition_hash)

    def statement(self, database: str, table: str) -> Route:
        """Returns the topic and partition for a statement about a table. The names are empty if the statement is not about a table."""
        return Route(self._topic(database, table), 0 if self._rules.partition_hash else self._rules.partition)

    def rows(self, database: str, table: str, columns: Sequence[str], keys: Sequence[bool]) -> Route:
        """Returns the topic and partition for a table's rows. `keys` says for each column whether the column belongs to the key: `key` of
        the table in conf/, or the primary key if conf/ has no `key`.
        """
        topic = self._topic(database, table)
        if not self._rules.partition_hash:
            return Route(topic, self._rules.partition)
        name = f"{database}.{table}"
        words = next((words for pattern, words in self._hashes if pattern.matches(name)), None)
        if words is None:
            return Route(topic, 0)
        partitions = self._partitions(topic)
        if not words:
            return Route(topic, partition_of(hash_of(table), partitions))
        seed = hash_of(database) if self._rules.database_hash else 0
        hashed = (
            [index for index, key in enumerate(keys) if key]
            if words == (KEY,)
            else _named(words, columns, exact=self._rules.exact_names)
        )
        return Route(topic, 0, Hashing(tuple(hashed), partitions, seed, self._rules.splits, name))

    def _topic(self, database: str, table: str) -> str:
        """Returns the topic for a table. With `dynamic_topic`, dots in the topic are replaced by underscores, as in Canal."""
        rules = self._rules
        if not rules.dynamic_topic:
            return rules.topic
        found = None
        if database and table:
            found = self._matched(f"{database}.{table}", of_tables=True) or self._matched(database, of_tables=False)
        return (found or rules.topic).replace(".", "_")

    def _matched(self, name: str, *, of_tables: bool) -> str | None:
        for topic, pattern in self._topics:
            if (not pattern.is_wild or ("\\." in pattern.text) == of_tables) and pattern.matches(name):
                return topic or name.lower()
        return None

    def _partitions(self, topic: str) -> int:
        counted = next((count for pattern, count in self._counts if pattern.matches(topic)), 0)
        return counted or max(1, self._rules.partitions_num)


def _items(text: str) -> list[str]:
    return [item.strip() for item in re.split("[,;]", text) if item.strip()]


def _topic_item(item: str) -> tuple[str, Pattern]:
    topic, colon, pattern = item.partition(":")
    return (topic.strip(), Pattern(pattern.strip())) if colon else ("", Pattern(item))


def _hash_item(item: str) -> tuple[Pattern, tuple[str, ...]]:
    """Parses one item of partition_hash. Returns the pattern of tables, and what to hash: names of columns, (KEY,) for the key columns, or
    () for the table's name.
    """
    name, colon, words = item.rpartition(":")
    if not (colon and name):
        return Pattern(item), ()
    if words.lower() == KEY:
        return Pattern(name), (KEY,)
    return Pattern(name), tuple(word for word in words.split("^") if word)


def _count_item(item: str) -> tuple[Pattern, int] | None:
    name, _, count = item.rpartition(":")
    return (Pattern(name), int(count)) if name and count.isdigit() and int(count) else None


def _named(words: Sequence[str], columns: Sequence[str], *, exact: bool) -> list[int]:
    if exact:
        return [columns.index(word) for word in words if word in columns]
    wanted = {word.lower() for word in words}
    return [index for index, column in enumerate(columns) if column.lower() in wanted]
