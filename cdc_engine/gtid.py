"""Computes with executed GTIDs: `GtidSet` is MySQL's set of intervals, and `MariadbPosition` is MariaDB's GTID position. Both classes have
the methods `parse`, `common`, `contains`, `around` and `including`. Objects of both classes are immutable: every operation returns a new
object.

Text forms: https://dev.mysql.com/doc/refman/8.4/en/replication-gtids-concepts.html and https://mariadb.com/kb/en/gtid/.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.errors import PositionLostError

Runs = tuple[tuple[int, int], ...]  # Closed intervals (first, last), ascending, with a gap between them.
NUMBER_MAX = (1 << 63) - 2  # The greatest number of a transaction: MySQL's GNO_END - 1.
# A number that no transaction has. The methods `around` divide the text of a GTID set at a transaction's number. To find this number in
# the text, they write _MARK instead of the number.
_MARK = NUMBER_MAX + 1
# The value of the first and the eighth byte of an encoded set whose sources may have tags (MySQL 8.3 and later).
TAGGED = 1

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_RANGE = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")


class SetText(NamedTuple):
    """The text of a GTID set, divided so that a caller can insert the number of the newest transaction. As long as a source's transactions
    have consecutive numbers, only this number changes in the text.

    For numbers up to `last`, the text consists of `before`, the interval from `first` to the number, and `after`. If `first` is 0, the
    number alone takes the place of the interval. If `first` is -1, `before` is the whole text, and the number is not inserted.
    """

    before: str
    first: int
    after: str
    last: int


def merged(runs: Iterable[tuple[int, int]]) -> Runs:
    """Merges closed intervals into ascending intervals with gaps between them."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return tuple(result)


def _without(runs: Runs, taken: Runs) -> Runs:
    result: list[tuple[int, int]] = []
    for first, last in runs:
        start = first
        for taken_first, taken_last in taken:
            if taken_last < start or taken_first > last:
                continue
            if taken_first > start:
                result.append((start, taken_first - 1))
            start = taken_last + 1
        if start <= last:
            result.append((start, last))
    return tuple(result)


@dataclasses.dataclass(frozen=True)
class GtidSet:
    """A GTID set of MySQL. `runs` has, for each source ("uuid" or "uuid:tag" in lower case), one or more intervals."""

    runs: Mapping[str, Runs] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parses a GTID set as a server prints it. Raises ValueError if the text has another form."""
        found: dict[str, list[tuple[int, int]]] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            server, *parts = (part.strip().lower() for part in entry.split(":"))
            if not _UUID.fullmatch(server) or not parts:
                raise ValueError(f"{entry!r} is not an entry of a GTID set")
            source = server
            for part in parts:
                if _TAG.fullmatch(part):
                    source = f"{server}:{part}"
                else:
                    found.setdefault(source, []).append(_parse_range(part))
        return cls({source: merged(ranges) for source, ranges in found.items()})

    def __str__(self) -> str:
        """Returns the set as the server prints it, but without line breaks: sources are ascending, and tags of one uuid
        are in one entry.
        """
        entries: dict[str, list[str]] = {}
        for source in sorted(self.runs):
            server, _, tag = source.partition(":")
            ranges = [f"{first}-{last}" if last > first else str(first) for first, last in self.runs[source]]
            entries.setdefault(server, []).extend([tag, *ranges] if tag else ranges)
        return ",".join(":".join([server, *parts]) for server, parts in entries.items())

    def __bool__(self) -> bool:
        return bool(self.runs)

    def add(self, source: str, first: int, last: int) -> GtidSet:
        """Returns the set with the transactions `first` to `last` of a source added."""
        return self.union(GtidSet({source: ((first, last),)}))

    def union(self, other: GtidSet) -> GtidSet:
        sources = {**self.runs, **other.runs}
        return GtidSet({name: merged((*self.runs.get(name, ()), *other.runs.get(name, ()))) for name in sources})

    def subtract(self, other: GtidSet) -> GtidSet:
        rest = {name: _without(runs, other.runs.get(name, ())) for name, runs in self.runs.items()}
        return GtidSet({name: runs for name, runs in rest.items() if runs})

    def common(self, other: GtidSet) -> GtidSet:
        return self.subtract(self.subtract(other))

    def contains(self, other: GtidSet) -> bool:
        return not other.subtract(self)

    def including(
        self, sources: Sequence[str], source: npt.NDArray[np.int32], number: npt.NDArray[np.int64]
    ) -> GtidSet:
        """Returns the union of the set and the transactions of a block. `source` and `number` have one value per transaction; `source` is
        an index into `sources`, or -1 for a transaction without GTID. Loops over intervals, not over transactions.
        """
        result = dict(self.runs)
        for index in np.unique(source[source >= 0]):
            name, numbers = sources[index], np.unique(number[source == index])
            gaps = np.flatnonzero(np.diff(numbers) != 1)
            firsts, lasts = numbers[np.r_[0, gaps + 1]].tolist(), numbers[np.r_[gaps, -1]].tolist()
            result[name] = merged((*result.get(name, ()), *zip(firsts, lasts, strict=True)))
        return GtidSet(result)

    def around(self, source: str, number: int) -> SetText:
        """Returns the text of this set plus the transaction `number` of a source, divided so that a caller can insert the number. For the
        source's next transactions, up to the number `SetText.last`, only this number changes in the text, so the caller need not compute
        the set again.
        """
        runs = self.runs.get(source, ())
        head = [run for run in runs if run[1] < number - 1]
        adjacent = [run for run in runs if run[0] < number and run[1] == number - 1]
        tail = [run for run in runs if run[0] > number + 1]
        # An interval that contains the number, or that begins directly after it, is in none of the three lists. With such an interval, the
        # text is not divided.
        if len(head) + len(adjacent) + len(tail) < len(runs):
            return SetText(str(self.add(source, number, number)), -1, "", number)
        text = str(GtidSet({**self.runs, source: (*head, (_MARK, _MARK), *tail)}))
        before, _, after = text.partition(str(_MARK))
        return SetText(before, adjacent[0][0] if adjacent else number, after, tail[0][0] - 2 if tail else NUMBER_MAX)

    def encoded(self) -> bytes:
        """Returns the set in the binary form that COM_BINLOG_DUMP_GTID contains, little-endian: the number of sources, then for each source
        its uuid, the number of its intervals, and the intervals (half-open).

        In a set with tags, the first and the last byte of the count are TAGGED. Each uuid is followed by a byte with twice the length of
        the tag, and by the tag. https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_binlog_dump_gtid.html
        """
        tagged = any(":" in source for source in self.runs)
        count = len(self.runs)
        parts = [struct.pack("<Q", TAGGED << 56 | count << 8 | TAGGED if tagged else count)]
        for source, runs in sorted(self.runs.items()):
            server, _, tag = source.partition(":")
            parts += [uuid.UUID(server).bytes, bytes([2 * len(tag)]) + tag.encode() if tagged else b""]
            parts += [struct.pack("<Q", len(runs)), *(struct.pack("<QQ", first, last + 1) for first, last in runs)]
        return b"".join(parts)

    @classmethod
    def decode(cls, encoded: bytes) -> GtidSet:
        """Decodes the result of `encoded`, which is also the body of a PREVIOUS_GTIDS event. Raises ValueError if the bytes are truncated
        or have another form.
        """
        try:
            (head,) = struct.unpack_from("<Q", encoded)
            tagged = head >> 56 == TAGGED
            at, runs = 8, {}
            for _ in range(head >> 8 & 0xFFFFFFFFFFFF if tagged else head):
                source, at = _decode_source(encoded, at, tagged=tagged)
                (run_count,) = struct.unpack_from("<Q", encoded, at)
                if run_count > len(encoded) // 16:
                    raise ValueError("more intervals than bytes")
                numbers = struct.unpack_from(f"<{2 * run_count}Q", encoded, at + 8)
                runs[source] = merged((a, b - 1) for a, b in zip(numbers[::2], numbers[1::2], strict=True))
                at += 8 + 16 * run_count
        except (struct.error, ValueError) as error:
            raise ValueError(f"not an encoded GTID set: {error}") from error
        return cls({source: ranges for source, ranges in runs.items() if ranges})


def _decode_source(encoded: bytes, at: int, *, tagged: bool) -> tuple[str, int]:
    """Decodes the source at offset `at` of an encoded set. Returns the source and the offset after it. Raises ValueError if its tag is
    invalid.
    """
    server = str(uuid.UUID(bytes=encoded[at : at + 16]))
    at += 16
    if not tagged:
        return server, at
    length = encoded[at] >> 1 if at < len(encoded) else 0
    tag = encoded[at + 1 : at + 1 + length].decode("ascii")
    if tag and not _TAG.fullmatch(tag):
        raise ValueError(f"{tag!r} is not a tag")
    return f"{server}:{tag}" if tag else server, at + 1 + length


def _parse_range(text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not an interval of a GTID set")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last <= NUMBER_MAX:
        raise ValueError(f"{text!r} is not an interval of a GTID set")
    return first, last


@dataclasses.dataclass(frozen=True)
class MariadbPosition:
    """A GTID position of MariaDB. `last` has, for each domain, the (server id, sequence number) of the domain's last transaction in the
    binlog.
    """

    last: Mapping[int, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MariadbPosition:
        """Parses a GTID position as a server prints it. Raises ValueError if the text has another form."""
        found: dict[int, tuple[int, int]] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            match = _MARIADB.fullmatch(entry)
            if not match:
                raise ValueError(f"{entry!r} is not a MariaDB GTID")
            found[int(match[1])] = (int(match[2]), int(match[3]))
        return cls(found)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))

    def __bool__(self) -> bool:
        return bool(self.last)

    def common(self, other: MariadbPosition) -> MariadbPosition:
        last = self.last
        lower = {
            domain: min(last[domain], other.last[domain], key=lambda each: each[1])
            for domain in last.keys() & other.last.keys()
        }
        return MariadbPosition(lower)

    def contains(self, other: MariadbPosition) -> bool:
        """Returns whether this position contains all transactions of `other`. Compares only the sequence numbers of a domain, because they
        rise over all servers that write to the domain (gtid_strict_mode).
        """
        return all(domain in self.last and self.last[domain][1] >= number for domain, (_, number) in other.last.items())

    def around(self, source: str, _number: int) -> SetText:
        """Returns the text of the position after a transaction of a source ("domain-server"), divided so that a caller can insert the
        sequence number of the transaction.
        """
        domain, writer = (int(part) for part in source.split("-"))
        text = str(MariadbPosition({**self.last, domain: (writer, _MARK)}))
        before, _, after = text.partition(str(_MARK))
        return SetText(before, 0, after, NUMBER_MAX)

    def including(
        self, sources: Sequence[str], source: npt.NDArray[np.int32], number: npt.NDArray[np.int64]
    ) -> MariadbPosition:
        """Returns the position after the transactions of a block. `source` and `number` have one value per transaction; `source` is an
        index into `sources` ("domain-server"), or -1 for a transaction without GTID.
        """
        ends: dict[int, tuple[int, int, int]] = {}
        for index in np.unique(source[source >= 0]):
            domain, server = (int(part) for part in sources[index].split("-"))
            at = int(np.flatnonzero(source == index)[-1])
            ends[domain] = max(ends.get(domain, (-1, 0, 0)), (at, server, int(number[at])))
        return MariadbPosition({**self.last, **{domain: (server, seq) for domain, (_, server, seq) in ends.items()}})


def gtid_name(source: str, number: int | str) -> str:
    """Returns the GTID of a transaction: "uuid:number", "uuid:tag:number", or "domain-server-number" on MariaDB."""
    return f"{source}{'-' if is_mariadb(source) else ':'}{number}"


def named_transactions(text: str, *, mariadb: bool) -> GtidSet:
    """Parses the transactions that an operator names: a GTID set of MySQL, or a list of MariaDB's GTIDs. Sources are named as in a block
    ("uuid", "uuid:tag" or "domain-server"). Raises ValueError, whose message names the invalid part.
    """
    if not mariadb:
        return GtidSet.parse(text)
    found: dict[str, list[tuple[int, int]]] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _MARIADB.fullmatch(entry)
        if not match:
            raise ValueError(f"{entry!r} is not a MariaDB GTID")
        found.setdefault(f"{int(match[1])}-{int(match[2])}", []).append((int(match[3]), int(match[3])))
    return GtidSet({source: merged(numbers) for source, numbers in found.items()})


def parse_executed(text: str, *, mariadb: bool) -> GtidSet | MariadbPosition:
    """Parses an executed set as a server prints it. Raises ValueError, whose message names the invalid part."""
    return MariadbPosition.parse(text) if mariadb else GtidSet.parse(text)


def is_mariadb(text: str) -> bool:
    """Returns whether a text is MariaDB's: True for each text that does not begin with a UUID, as MySQL's texts do. The text may be a GTID,
    a GTID position, or only the domain and server id of a GTID, such as "0-1". Returns False for an empty text.
    """
    return bool(text) and not _UUID.match(text.strip().lower())


def same_executed(text: str, other: str) -> bool:
    """Returns whether two texts mean the same executed set. An empty text means an unknown set, and equals only an empty text. A text that
    cannot be parsed equals only an identical text.
    """
    if text == other or not (text and other) or is_mariadb(text) != is_mariadb(other):
        return text == other
    with contextlib.suppress(ValueError):
        return _parsed(text) == _parsed(other)
    return False


def has_executed(executed: str, wanted_set: str) -> bool:
    """Returns whether the set `executed` contains `wanted_set`. Returns False if one of the two sets is empty, or if one is MySQL's and the
    other is MariaDB's. Raises ValueError if one of them cannot be parsed.
    """
    if not executed or not wanted_set or is_mariadb(executed) != is_mariadb(wanted_set):
        return False
    have: Any = _parsed(executed)
    return bool(have.contains(_parsed(wanted_set)))


def common_executed(text: str, other: str) -> str:
    """Returns the intersection of two executed sets, as text. The text is empty if one of the sets is empty, or if one is MySQL's and the
    other is MariaDB's. Raises ValueError if a set cannot be parsed.
    """
    if not (text and other) or is_mariadb(text) != is_mariadb(other):
        return ""
    one: Any = _parsed(text)
    return str(one.common(_parsed(other)))


@functools.lru_cache(maxsize=64)  # Cached, because one set is compared with many others.
def _parsed(text: str) -> GtidSet | MariadbPosition:
    return parse_executed(text, mariadb=is_mariadb(text))


def executed_after(
    start: str, sources: Sequence[str], source: npt.NDArray[np.int32], number: npt.NDArray[np.int64]
) -> str:
    """Returns the executed set after the transactions of a block, as text. `start` is the set before these transactions, in MySQL's or
    MariaDB's form. `source` and `number` have one value per transaction; `source` is an index into `sources`, or -1 for a transaction
    without GTID. Raises PositionLostError if `start` cannot be parsed.
    """
    if not (source >= 0).any():
        return start
    mariadb = is_mariadb(start or sources[0])
    try:
        return str(parse_executed(start, mariadb=mariadb).including(sources, source, number))
    except ValueError as error:
        raise PositionLostError(
            f"the GTID set of the position cannot be read: {error}; set a valid position with `sluice position set`"
        ) from error
