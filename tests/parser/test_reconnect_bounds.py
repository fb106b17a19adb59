"""Tests the limits of reconnecting: the shortest and longest wait before a connection, and the number of tries after a wrong checksum."""

from __future__ import annotations

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import ChecksumError
from sluice.cdc_engine.parser.stream.reconnect import CHECKSUM_TRIES_MAX, Attempts


def test_the_wait_before_a_connection_doubles_up_to_a_bound() -> None:
    attempts = Attempts()
    attempts.count = 1
    assert attempts.wait_seconds(0.0) == limits.RECONNECT_SECONDS_MIN / 2
    attempts.count = 1000
    assert attempts.wait_seconds(1.0) == limits.RECONNECT_SECONDS_MAX == 20.0


def test_a_checksum_that_is_wrong_again_at_the_same_offset_is_read_a_few_times_and_no_more() -> None:
    attempts = Attempts()
    wrong = ChecksumError("wrong", file="mysql-bin.000001", offset=4)
    tries = [attempts.tried_again(wrong) for _ in range(CHECKSUM_TRIES_MAX)]
    assert tries == [True] * 2 + [False]
    assert attempts.tried_again(ChecksumError("wrong", file="mysql-bin.000001", offset=99))
