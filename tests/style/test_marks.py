"""Tests that a test that starts a server, Spark or a browser has the mark for it."""

import pytest

from tests.marks import lacks


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
