"""Tests what the end of the source's binlog shows about a silent stream: the address leads to another server, the stream stands still, or
there is nothing to read.
"""

from __future__ import annotations

import dataclasses

import pytest

from sluice.cdc_engine.parser.server_facts import BinaryLog, ServerFacts
from sluice.cdc_engine.parser.stream.watch import Look, StreamState, Watch, has_read, misfit_of
from sluice.cdc_engine.position import Position

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
FACTS = ServerFacts(
    version="8.0.31",
    mariadb=False,
    server_uuid=A,
    gtid_enabled=True,
    executed=f"{A}:1-100",
    file="binlog.000004",
    offset=500,
    logs=(BinaryLog(file="binlog.000004", size_bytes=500),),
    created={"binlog.000004": 1_000},
)
AT_END = Position(
    epoch=1, file="binlog.000004", offset=500, gtid_set=f"{A}:1-100", server_uuid=A, time_us=5, file_created=1_000
)


def stream_state(position: Position = AT_END, received: int = 0, *, held_up: bool = False) -> StreamState:
    return StreamState(position=position, file=position.file, offset=position.offset, bytes=received, held_up=held_up)


BEHIND = dataclasses.replace(AT_END, offset=300, gtid_set=f"{A}:1-60")


def test_fault_a_stream_at_the_end_of_its_server_fits() -> None:
    assert misfit_of(AT_END, FACTS) == ""
    assert misfit_of(BEHIND, FACTS) == ""
    assert has_read(stream_state(), FACTS)
    assert not has_read(stream_state(BEHIND), FACTS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"server_uuid": B}, f"the address leads to the server {B}"),
        ({"created": {"binlog.000004": 2_000}}, "was created at"),
        ({"file": "binlog.000001", "created": {}}, "was reset"),
        ({"file": "other.000009", "created": {}}, "the server now writes other.000009"),
        ({"executed": ""}, "has not executed"),
        ({"executed": f"{A}:1-40"}, "has not executed"),
        ({"logs": (BinaryLog(file="binlog.000004", size_bytes=400),)}, "ends at 400"),
    ],
    ids=["another", "created", "names", "base", "reset", "restored", "cut"],
)
def test_fault_a_server_that_the_stream_is_not_of_is_found_with_the_second_look(
    changes: dict[str, object], words: str
) -> None:
    facts = dataclasses.replace(FACTS, **changes)  # type: ignore[arg-type]
    watch, reason = Watch().looked(Look(at=60, stream_state=stream_state(), facts=facts))
    assert reason == "", "one look may be older than what was read"
    watch, reason = watch.looked(Look(at=63, stream_state=stream_state(), facts=facts))
    assert words in reason
    assert watch == Watch()


def test_fault_what_was_executed_a_moment_later_is_no_misfit() -> None:
    """MySQL writes a transaction into the binlog before it adds the GTID to gtid_executed, so a check may see a set that is too small."""
    late = dataclasses.replace(FACTS, executed=f"{A}:1-99")
    watch, _ = Watch().looked(Look(at=60, stream_state=stream_state(), facts=late))
    further = dataclasses.replace(AT_END, gtid_set=f"{A}:1-101")
    _, reason = watch.looked(Look(at=63, stream_state=stream_state(further, 9000), facts=FACTS))
    assert reason == ""


def test_fault_a_stream_that_stands_still_before_the_end_is_reconnected_ever_more_rarely() -> None:
    watch, reason = Watch().looked(Look(at=60, stream_state=stream_state(BEHIND), facts=FACTS))
    found = []
    for minute in range(2, 11):
        watch, reason = watch.looked(Look(at=60 * minute, stream_state=stream_state(BEHIND, 100 * minute), facts=FACTS))
        found.append(bool(reason))
    assert found == [True, True, False, True, False, False, False, True, False]
    assert "binlog.000004:500" in watch.trouble(stream_state(BEHIND), 700)
    assert watch.behind_seconds(stream_state(BEHIND), 700) == 640, "since the first look that saw it"
    assert watch.trouble(stream_state(), 700) == ""
    assert watch.behind_seconds(stream_state(), 700) == 0


def test_fault_a_stream_that_advances_or_waits_for_space_does_not_stand_still() -> None:
    before, _ = Watch().looked(Look(at=60, stream_state=stream_state(BEHIND), facts=FACTS))
    assert before.looked(Look(at=120, stream_state=stream_state(BEHIND, 1 << 20), facts=FACTS))[1] == ""
    assert before.looked(Look(at=120, stream_state=stream_state(BEHIND, held_up=True), facts=FACTS))[1] == ""


def test_fault_without_gtids_the_position_decides() -> None:
    plain = dataclasses.replace(FACTS, gtid_enabled=False, executed="")
    assert not has_read(stream_state(dataclasses.replace(AT_END, offset=499, gtid_set="")), plain)
    assert has_read(stream_state(dataclasses.replace(AT_END, gtid_set="")), plain)
    assert has_read(stream_state(dataclasses.replace(AT_END, file="binlog.000005", offset=4, gtid_set="")), plain)
