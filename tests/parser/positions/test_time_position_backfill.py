"""Tests the search for the binlog position of a time: which file is read next, which file contains the time, and whether that file was
purged.
"""

from __future__ import annotations

import numpy as np
import pytest

from sluice.cdc_engine.parser.positions.time_position import (
    CreationTimeRequest,
    Gone,
    Within,
    file_of_time,
    first_at_or_after,
)

SECOND_US = 1_000_000
FILES = ("b.000003", "b.000004", "b.000005")
CREATED = {"b.000003": 100, "b.000004": 200, "b.000005": 300}


@pytest.mark.parametrize(
    ("seconds", "created", "nothing_purged", "expected"),
    [
        (250, {}, False, CreationTimeRequest(file="b.000005")),
        (250, {"b.000005": 300}, False, CreationTimeRequest(file="b.000004")),
        (250, CREATED, False, Within(file="b.000004")),
        (301, CREATED, False, Within(file="b.000005")),
        (10_000, CREATED, False, Within(file="b.000005")),
        # File times are whole seconds, so a transaction of this time may be in the file before.
        (300.5, CREATED, False, Within(file="b.000004")),
        (101, CREATED, False, Within(file="b.000003")),
        (100.5, CREATED, False, Gone(requested_us=100_500_000, file="b.000003", earliest_us=101 * SECOND_US)),
        (100.5, CREATED, True, Within(file="b.000003")),
        (99.9, CREATED, True, Gone(requested_us=99_900_000, file="b.000003", earliest_us=100 * SECOND_US)),
        # The file was purged during the query.
        (
            50,
            {**CREATED, "b.000003": 0},
            True,
            Gone(requested_us=50_000_000, file="b.000004", earliest_us=201 * SECOND_US),
        ),
        (
            150,
            {**CREATED, "b.000003": 0},
            True,
            Gone(requested_us=150_000_000, file="b.000004", earliest_us=201 * SECOND_US),
        ),
        (50, dict.fromkeys(FILES, 0), False, Gone(requested_us=50_000_000, file="")),
        # The clock went back between two files. The newest file that was created before the time is chosen, because this file or a later
        # one contains the time.
        (250, {"b.000003": 100, "b.000004": 400, "b.000005": 200}, False, Within(file="b.000005")),
    ],
)
def test_the_file_of_a_time_backfill(
    seconds: float, created: dict[str, int], nothing_purged: bool, expected: object
) -> None:
    wanted_us = int(seconds * SECOND_US)
    assert file_of_time(wanted_us, FILES, created, nothing_purged=nothing_purged) == expected


def test_the_earliest_that_is_named_is_on_offer_backfill() -> None:
    for nothing_purged in (False, True):
        gone = file_of_time(0, FILES, CREATED, nothing_purged=nothing_purged)
        assert isinstance(gone, Gone)
        assert file_of_time(gone.earliest_us, FILES, CREATED, nothing_purged=nothing_purged) == Within(file=gone.file)
        assert gone.file in str(gone)


def test_a_server_without_files_has_no_time_on_offer_backfill() -> None:
    gone = file_of_time(5, (), {})
    assert gone == Gone(requested_us=5, file="")
    assert "no binlog file" in str(gone)


@pytest.mark.parametrize(
    ("times_us", "time_us", "expected"),
    [
        ([10_000_001, 20_000_001, 30_000_001], 20_000_001, 1),
        ([10_000_001, 20_000_001, 30_000_001], 20_000_002, 2),
        ([10_000_001, 20_000_001, 30_000_001], 0, 0),
        ([10_000_001, 20_000_001], 99_000_000, -1),
        # The server gives these times in whole seconds, so the transaction may have committed at any moment of its second.
        ([10_000_000, 20_000_000], 20_400_000, 1),
        ([10_000_000, 20_000_000], 21_000_000, -1),
        # The clock went back after the second transaction, which is still the first one at this time or later.
        ([10_000_001, 30_000_001, 20_000_001], 25_000_000, 1),
        ([], 5, -1),
        ([0, 0], 400_000, -1),  # The position at which a file begins, before any transaction was read.
    ],
)
def test_the_first_transaction_at_a_time_or_later_backfill(times_us: list[int], time_us: int, expected: int) -> None:
    assert first_at_or_after(np.array(times_us, np.int64), time_us) == expected
