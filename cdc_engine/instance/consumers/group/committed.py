"""Encodes the position of a group's consumer as a text that a broker stores, and decodes the text. Each member's position is encoded as in
`consumers.committed`. Used by `group.consumers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sluice.cdc_engine.instance.consumers.committed import Counting, later_of, packed, stream_record, unpacked
from sluice.cdc_engine.instance.consumers.group.group_stream import GroupStreamPosition


class GroupPositionCodec:
    """Encodes the positions of a group's consumer for a broker, and compares committed positions with the acked position. Implements
    `server.consumer.PositionCodec`. `identity` returns the consumer's identity. `counting` returns the epoch and table filter of a member,
    or raises SluiceError if the member does not run in this process.
    """

    def __init__(self, identity: Callable[[], str], counting: Callable[[str], Counting]) -> None:
        self._identity, self._counting = identity, counting

    def text(self, position: GroupStreamPosition) -> str:
        members = {name: stream_record(each, self._counting(name)) for name, each in position.members.items()}
        newest = {name: each for name, each in position.newest_us.items() if name in members}
        times = {"barrier_us": position.barrier_us, "late": position.late, "newest_us": newest}
        return packed(self._identity(), {"members": members, **times})

    def later(self, acked: GroupStreamPosition, text: str) -> GroupStreamPosition | None:
        """Returns the acked position, moved forward for each member whose committed position is later. Returns None if no committed
        position is later. A member that has left or joined the group since the commit keeps its acked position.
        """
        record = unpacked(text, self._identity())
        if record is None:
            return None
        found = {
            name: later
            for name, each in acked.members.items()
            if name in record["members"]
            and (later := later_of(each, record["members"][name], self._counting(name))) is not None
        }
        if not found:
            return None
        newest = {name: max(time, acked.newest_us.get(name, 0)) for name, time in record["newest_us"].items()}
        return dataclasses.replace(
            acked,
            members={**acked.members, **found},
            barrier_us=max(acked.barrier_us, record["barrier_us"]),
            late=max(acked.late, record["late"]),
            newest_us={**acked.newest_us, **{name: time for name, time in newest.items() if name in found}},
        )
