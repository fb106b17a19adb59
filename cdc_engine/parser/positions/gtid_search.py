"""Finds the transactions of a GTID set in the source's binlog, for a backfill of exactly these transactions.

A bisection finds the newest file that begins before all of these transactions. The binlog is then read from this file up to the last of the
transactions, without decoding rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.cdc_engine.contracts import Block
from sluice.cdc_engine.errors import ConfigurationError, PositionLostError
from sluice.cdc_engine.gtid import GtidSet, MariadbPosition, Runs, gtid_name, is_mariadb
from sluice.cdc_engine.parser.positions.binlog_files import ReadableFiles
from sluice.cdc_engine.parser.positions.time_search import blocks_without_rows, choice_after
from sluice.cdc_engine.parser.start_position import FIRST_EPOCH, FIRST_OFFSET, StartChoice
from sluice.cdc_engine.parser.stream.dump import UnwantedRows
from sluice.cdc_engine.ports import Content
from sluice.cdc_engine.position import file_number, order_key, order_keys

XA_PREPARE, XA_COMMIT = "XA PREPARE", "XA COMMIT"
NAMES_MAX = 5  # An error message names at most this many GTIDs, and then shows "…".


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundTransactions:
    """Where the requested transactions are in the binlog. `begin` is the position before the first requested transaction, and `end` the
    position after the last one.

    `order_keys` has ascending ranges (a, b): the transactions are those whose order key k has a < k ≤ b. Their commit times t, in µs since
    1970, have `from_us` ≤ t < `to_us`.
    """

    begin: StartChoice
    end: StartChoice
    order_keys: tuple[tuple[int, int], ...]
    from_us: int
    to_us: int


def find_transactions(files: ReadableFiles, wanted: GtidSet, epoch: int) -> FoundTransactions:
    """Finds the transactions of the GTID set `wanted` (the option --gtids) in the binlog. `epoch` is the epoch for the order keys.

    Raises PositionLostError if the server has purged some of the transactions, or does not list its binlog files. Raises ConfigurationError
    if some transactions are not in the binlog, or if the set has only one half of an XA transaction. The messages name the GTIDs.
    """
    files.reach(lambda oldest: not executed_part(_begin_set(files, oldest), wanted))
    search, halves = _Search(wanted, epoch, _file_before(files, wanted)), _XaHalves()
    with contextlib.closing(blocks_without_rows(files, search.previous.file, FIRST_OFFSET, halves)) as blocks:
        for block in blocks:
            if not block.transaction_count:
                continue
            halves.choose(block, wanted)
            if search.is_over_after(block):
                halves.refuse_one_half()
                return search.found()
    raise ConfigurationError(
        f"the binlog of {files.origin} has no transaction {_names(search.missing)}: correct --gtids"
    )


class _XaHalf(NamedTuple):
    """One half of an XA transaction: its XA PREPARE or its XA COMMIT, which have different GTIDs. `chosen` tells whether the wanted set
    contains the GTID of this half.
    """

    xa_name: str
    statement: str
    gtid: str
    chosen: bool


class _XaHalves(UnwantedRows):
    """Collects the halves of the XA transactions that a scan reads. The XA PREPARE has the rows, and the XA COMMIT applies the rows."""

    def __init__(self) -> None:
        super().__init__()
        # Halves whose GTID is not known yet, as (order key, XA name, statement).
        self._new: list[tuple[int, str, str]] = []
        self._halves: list[_XaHalf] = []

    def prepare(self, name: str, order_key: int) -> None:
        super().prepare(name, order_key)
        self._new.append((order_key, name, XA_PREPARE))

    def commit(self, name: str, order_key: int) -> Content:
        self._new.append((order_key, name, XA_COMMIT))
        return super().commit(name, order_key)

    def roll_back(self, name: str) -> None:
        super().roll_back(name)
        self._new = [each for each in self._new if each[1] != name]
        self._halves = [each for each in self._halves if each.xa_name != name or each.statement == XA_COMMIT]

    def choose(self, block: Block, wanted: GtidSet) -> None:
        """Finds the GTIDs of those recorded XA halves that end in this block. Records for each half whether `wanted` contains its GTID."""
        keys = order_keys(FIRST_EPOCH, file_number(block.file), block.transaction_end).tolist() if self._new else []
        chosen = _mask(block, wanted) if self._new else ()
        for key, name, statement in list(self._new):
            if key in keys:
                index = keys.index(key)
                source = int(block.transaction_source[index])
                gtid = (
                    gtid_name(block.gtid_sources[source], int(block.transaction_number[index])) if source >= 0 else ""
                )
                self._halves.append(_XaHalf(name, statement, gtid, bool(chosen[index])))
                self._new.remove((key, name, statement))

    def refuse_one_half(self) -> None:
        """Raises ConfigurationError if the wanted set contains only one half of an XA transaction."""
        prepared: dict[str, _XaHalf] = {}
        for half in self._halves:
            if half.statement == XA_PREPARE:
                prepared[half.xa_name] = half
                continue
            first = prepared.pop(half.xa_name, None)
            if half.chosen != (first is not None and first.chosen):
                raise _one_half(half, first) if half.chosen or first is None else _one_half(first, half)
        alone = next((half for half in prepared.values() if half.chosen), None)
        if alone is not None:
            raise _one_half(alone, None)


def _one_half(chosen: _XaHalf, other: _XaHalf | None) -> ConfigurationError:
    statement = XA_COMMIT if chosen.statement == XA_PREPARE else XA_PREPARE
    where = other.gtid if other is not None else "later" if chosen.statement == XA_PREPARE else "in an earlier file"
    return ConfigurationError(
        f"--gtids names {chosen.gtid}, the {chosen.statement} of the XA transaction {chosen.xa_name}, but not "
        f"the GTID of its {statement} ({where}): the XA PREPARE has the rows, and the XA COMMIT applies them. "
        "Name both GTIDs or neither"
    )


class _Search:
    """Searches block after block of the binlog for the wanted transactions. `missing` are the transactions that are not found yet.
    `previous` is the end of the last block that was searched, or the beginning of `file`.
    """

    def __init__(self, wanted: GtidSet, epoch: int, file: str) -> None:
        self.missing, self.previous = wanted, StartChoice(file=file, offset=FIRST_OFFSET)
        self._epoch, self._order_keys = epoch, list[tuple[int, int]]()
        self._times: list[int] = []
        self._ends: list[StartChoice] = []

    def is_over_after(self, block: Block) -> bool:
        """Searches the next block. Returns whether all wanted transactions are found now."""
        chosen = np.flatnonzero(_mask(block, self.missing))
        for index in chosen.tolist():
            self._add(block, index)
        if len(chosen):
            masked = np.full(block.transaction_count, -1, np.int32)
            masked[chosen] = block.transaction_source[chosen]
            found = GtidSet().including(block.gtid_sources, masked, block.transaction_number)
            self.missing = self.missing.subtract(found)
            self._ends[1:] = [choice_after(block, int(chosen[-1]))]
        self.previous = choice_after(block, block.transaction_count - 1)
        return not self.missing

    def found(self) -> FoundTransactions:
        begin, end = self._ends
        return FoundTransactions(
            begin=begin,
            end=end,
            order_keys=tuple(self._order_keys),
            from_us=min(self._times),
            to_us=max(self._times) + 1,
        )

    def _add(self, block: Block, index: int) -> None:
        if not self._ends:
            before = self.previous if index == 0 else choice_after(block, index - 1)
            self._ends = [dataclasses.replace(before, executed=before.executed or block.start_gtid_set)]
        after, up_to = self._key(block, index - 1), self._key(block, index)
        if self._order_keys and self._order_keys[-1][1] == after:
            after = self._order_keys.pop()[0]
        self._order_keys.append((after, up_to))
        self._times.append(int(block.transaction_time_us[index]))

    def _key(self, block: Block, index: int) -> int:
        """Returns the order key at the end of the block's transaction `index`. If `index` is -1, returns the order key at the beginning of
        the block's first transaction.
        """
        first = self.previous.offset if self.previous.file == block.file else FIRST_OFFSET
        offset = int(block.transaction_end[index]) if index >= 0 else first
        return order_key(self._epoch, file_number(block.file), offset)


def _mask(block: Block, wanted: GtidSet) -> npt.NDArray[np.bool_]:
    """Returns a mask over the transactions of a block: True for each transaction that is in the set `wanted`."""
    found = np.zeros(block.transaction_count, np.bool_)
    for index in np.unique(block.transaction_source[block.transaction_source >= 0]):
        runs = np.array(wanted.runs.get(block.gtid_sources[index], ()), np.int64).reshape(-1, 2)
        numbers = block.transaction_number
        at = np.searchsorted(runs[:, 0], numbers, "right") - 1
        lasts = runs[at, 1] if len(runs) else np.full(len(numbers), -1)
        found |= (block.transaction_source == index) & (at >= 0) & (numbers <= lasts)
    return found


def _file_before(files: ReadableFiles, wanted: GtidSet) -> str:
    """Returns the newest file that begins before all wanted transactions. Raises PositionLostError if some wanted transactions are in
    purged files, or if the server does not list its files.
    """
    names = [log.file for log in files.logs]
    if not names:
        raise PositionLostError(f"{files.origin} does not list its binlog files: grant REPLICATION CLIENT")
    low, high = 0, len(names)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if executed_part(_begin_set(files, names[middle]), wanted) else (middle, high)
    gone = executed_part(_begin_set(files, names[0]), wanted) if low == 0 else GtidSet()
    if gone:
        raise PositionLostError(
            f"{files.origin} has purged {_names(gone)}: its oldest binlog file is {names[0]}. Leave these "
            "GTIDs out, set `archive` in conf/ to an archive that has the purged files, or re-snapshot the tables "
            "with `sluice snapshot start`"
        )
    return names[low]


def _begin_set(files: ReadableFiles, file: str) -> str:
    """Returns the executed set at the beginning of a file. If the binlog has no transaction after the beginning of the file, returns the
    server's executed set.
    """
    with contextlib.closing(blocks_without_rows(files, file, FIRST_OFFSET)) as blocks:
        return next((block.start_gtid_set for block in blocks if block.transaction_count), files.facts.executed)


def executed_part(executed: str, wanted: GtidSet) -> GtidSet:
    """Returns the transactions of `wanted` that are in the executed set `executed`. On MariaDB, a transaction is in the executed set if its
    number is at most the last executed number of its domain.
    """
    if not executed:
        return GtidSet()
    if not is_mariadb(executed):
        return wanted.common(GtidSet.parse(executed))
    last = {str(domain): number for domain, (_, number) in MariadbPosition.parse(executed).last.items()}
    return wanted.common(
        GtidSet({source: _up_to(last.get(source.partition("-")[0], 0)) for source in wanted.runs if is_mariadb(source)})
    )


def _up_to(number: int) -> Runs:
    return ((1, number),) if number else ()


def _names(transactions: GtidSet) -> str:
    """Returns GTIDs as a text for an error message. On MariaDB, the text names at most NAMES_MAX GTIDs."""
    if not any(map(is_mariadb, transactions.runs)):
        return str(transactions)
    names = [
        gtid_name(source, number)
        for source, runs in sorted(transactions.runs.items())
        for first, last in runs
        for number in range(first, min(last, first + NAMES_MAX) + 1)
    ]
    return _shortened(names)


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_MAX]) + (" …" if len(names) > NAMES_MAX else "")
