"""Tests that binlog files of the same name are distinguished by their creation time. A stream that goes back to an earlier file ends, and
a new file moves the cursor.
"""

from __future__ import annotations

import pytest

from sluice.cdc_engine.errors import FilesRenumberedError, PositionLostError
from sluice.cdc_engine.parser.scan.file_track import FileTrack
from sluice.cdc_engine.position import Position

CREATED = 1_700_000_000


def track(file: str = "binlog.000007", created: int = CREATED) -> FileTrack:
    return FileTrack(Position(epoch=1, file=file, offset=4, file_created=created))


def amid_a_stream() -> FileTrack:
    files = track()
    files.rotate_to("binlog.000007")
    files.described(CREATED)
    return files


def test_identity_the_file_of_the_cursor_is_no_new_position() -> None:
    files = track()
    files.rotate_to("binlog.000007")
    assert files.described(CREATED) is False
    assert files.described(CREATED) is False


def test_identity_a_file_that_follows_is_a_new_position_and_has_its_own_creation() -> None:
    files = amid_a_stream()
    files.rotate_to("binlog.000008")
    assert files.described(CREATED + 60) is True
    assert (files.file, files.created) == ("binlog.000008", CREATED + 60)


def test_identity_a_creation_that_was_not_known_is_learnt() -> None:
    files = track(created=0)
    assert files.described(CREATED) is False
    assert files.created == CREATED


@pytest.mark.parametrize("file", ["binlog.000006", "other.000008"])
def test_identity_a_stream_that_goes_back_or_elsewhere_is_decided_again(file: str) -> None:
    with pytest.raises(FilesRenumberedError, match="server numbers its binlog files from the beginning again"):
        amid_a_stream().rotate_to(file)


def test_identity_the_same_name_created_at_another_time_is_decided_again() -> None:
    files = amid_a_stream()
    files.rotate_to("binlog.000007")
    with pytest.raises(FilesRenumberedError, match="created at"):
        files.described(CREATED + 1)


def test_identity_a_stream_that_begins_in_other_files_than_requested_is_lost() -> None:
    with pytest.raises(PositionLostError, match="server numbers its binlog files from the beginning again"):
        track().rotate_to("binlog.000001")
    with pytest.raises(PositionLostError, match="created at"):
        track().described(CREATED + 1)


def test_identity_where_the_server_names_the_first_file_any_will_do() -> None:
    files = track(file="", created=0)
    files.rotate_to("other.000003")
    assert files.described(CREATED) is True
