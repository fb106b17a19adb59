"""Tests what a run of the tests prints while it runs."""

from __future__ import annotations

import pytest

from tests.progress import FREE_BYTES_MIN, Progress, long_running, low_disk


def test_the_longest_running_test_is_named_first() -> None:
    started = {"tests/a.py::test_new": 990.0, "tests/b.py::test_late": 700.0, "tests/c.py::test_later": 500.0}
    assert long_running(started, 1000.0) == [
        "running for 500 s: tests/c.py::test_later",
        "running for 300 s: tests/b.py::test_late",
    ]


def test_a_disk_that_is_nearly_full_is_named() -> None:
    assert low_disk("/tmp", 2_000_000_000) == ["2.0 GB are free in /tmp"]  # noqa: S108  a name, not a file
    assert low_disk("/tmp", FREE_BYTES_MIN) == []  # noqa: S108


def test_a_failure_is_named_at_once_with_its_last_line() -> None:
    lines: list[str] = []
    report = pytest.TestReport(
        "tests/a.py::test_a", ("", 0, ""), {}, "failed", "E\nValueError: no", "setup", duration=12.0
    )
    Progress(lines.append).pytest_runtest_logreport(report)
    assert lines == ["\nsetup failed after 12 s: tests/a.py::test_a: ValueError: no"]
