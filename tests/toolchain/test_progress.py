"""What a run of the tests prints while it goes on."""

from __future__ import annotations

import pytest

from tests.progress import Progress, long_running


def test_the_longest_running_test_is_named_first() -> None:
    started = {"tests/a.py::test_new": 990.0, "tests/b.py::test_late": 700.0, "tests/c.py::test_later": 500.0}
    assert long_running(started, 1000.0) == [
        "running for 500 s: tests/c.py::test_later",
        "running for 300 s: tests/b.py::test_late",
    ]


def test_a_failure_is_named_at_once_with_its_last_line() -> None:
    lines: list[str] = []
    report = pytest.TestReport(
        "tests/a.py::test_a", ("", 0, ""), {}, "failed", "E\nValueError: no", "setup", duration=12.0
    )
    Progress(lines.append).pytest_runtest_logreport(report)
    assert lines == ["\nsetup failed after 12 s: tests/a.py::test_a: ValueError: no"]
