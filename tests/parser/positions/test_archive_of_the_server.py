"""Tests how Sluice decides whether an archive that lacks the cursor's file belongs to the server of the cursor."""

from __future__ import annotations

import pytest

from sluice.cdc_engine.parser.positions.archive_alone import created_out_of_order, executed_elsewhere
from sluice.cdc_engine.position import Position

UUID, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "5e11fa47-71ca-11e1-9e33-c80aa9429562"
EARLIER, LATER = "bin.000004", "bin.000006"

pytestmark = pytest.mark.seeds


def cursor(gtid_set: str = "", created: int = 1000) -> Position:
    return Position(epoch=1, file="bin.000005", offset=700, gtid_set=gtid_set, file_created=created)


@pytest.mark.parametrize(
    ("file", "created", "why"),
    [
        (EARLIER, 999, ""),
        (EARLIER, 1000, ""),
        (EARLIER, 1001, "created after bin.000005"),
        (LATER, 1000, ""),
        (LATER, 999, "created before bin.000005"),
    ],
)
def test_files_of_one_server_are_created_in_the_order_of_their_numbers(file: str, created: int, why: str) -> None:
    found = created_out_of_order(file, created, cursor())
    assert why in found
    assert bool(found) == bool(why)
    assert not created_out_of_order(file, created, cursor(created=0))


@pytest.mark.parametrize(
    ("file", "executed", "at_cursor", "fits"),
    [
        (EARLIER, f"{UUID}:1-5", f"{UUID}:1-9", True),
        (EARLIER, f"{UUID}:1-10", f"{UUID}:1-9", False),
        (EARLIER, f"{OTHER}:1-5", f"{UUID}:1-9", False),
        (LATER, f"{UUID}:1-12", f"{UUID}:1-9", True),
        (LATER, f"{UUID}:1-8", f"{UUID}:1-9", False),
        (EARLIER, "0-1-5", "0-1-9", True),
        (EARLIER, "0-1-10", "0-1-9", False),
        (EARLIER, "0-1-5", f"{UUID}:1-9", False),
    ],
)
def test_the_later_of_two_positions_of_one_server_has_executed_all_of_the_earlier_one(
    file: str, executed: str, at_cursor: str, fits: bool
) -> None:
    found = executed_elsewhere(file, 1000, executed, cursor(at_cursor))
    assert (found == "") == fits
    assert fits or f"contradict the lake's position {cursor()}" in found


@pytest.mark.parametrize(("executed", "at_cursor"), [("", ""), (f"{UUID}:1", ""), ("", f"{UUID}:1")])
def test_without_gtids_creation_times_must_be_known(executed: str, at_cursor: str) -> None:
    assert executed_elsewhere(EARLIER, 1000, executed, cursor(at_cursor)) == ""
    for created, of_cursor in ((0, 1000), (1000, 0)):
        found = executed_elsewhere(EARLIER, created, executed, cursor(at_cursor, of_cursor))
        assert "Sluice cannot verify that the archive is of this server" in found
