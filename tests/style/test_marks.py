"""Tests that a test that starts a server, Spark or a browser has the mark for it, and that a run of slow tests finds all files with one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.console.quality import OTHER_TESTS, QUICK_TESTS
from tests.marks import is_quick, lacks, pytest_collection_modifyitems, pytest_ignore_collect


@pytest.mark.parametrize(
    ("fixtures", "marks", "found"),
    [
        (("tmp_path", "mysql80"), (), {"servers"}),
        (("mysql80",), ("servers", "found"), set()),
        (("spark_server", "zookeeper39"), ("servers",), {"spark"}),
        (("tmp_path",), (), set()),
    ],
)
def test_the_mark_of_a_fixture_is_required(fixtures: tuple[str, ...], marks: tuple[str, ...], found: set[str]) -> None:
    assert lacks(fixtures, marks) == found


SLOW = "import pytest\n\n@pytest.mark.servers\ndef test_one(): pass\n"
QUICK = "import pytest\n\n@pytest.mark.found\ndef test_one(): pass\n"


@pytest.mark.parametrize(
    ("text", "expression", "is_left_out"),
    [(SLOW, OTHER_TESTS, None), (QUICK, OTHER_TESTS, True), (QUICK, QUICK_TESTS, None), (QUICK, "", None)],
)
def test_only_a_run_of_slow_tests_skips_files_of_quick_tests(
    tmp_path: Path, text: str, expression: str, is_left_out: bool | None
) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(text)
    config: Any = SimpleNamespace(getoption={"markexpr": expression}.get)
    assert pytest_ignore_collect(file, config) is is_left_out
    assert pytest_ignore_collect(tmp_path, config) is None


def test_a_slow_test_in_a_file_that_a_run_of_slow_tests_skips_ends_the_run(tmp_path: Path) -> None:
    file = tmp_path / "test_two.py"
    file.write_text(QUICK)
    assert is_quick(file)
    mark = SimpleNamespace(name="servers")
    test: Any = SimpleNamespace(nodeid="test_two.py::test_one", path=file, iter_markers=lambda: [mark])
    with pytest.raises(pytest.UsageError, match=r"the text of test_two\.py must name one of pytest's marks servers"):
        pytest_collection_modifyitems([test])
