"""Manages the consumers of one group: their numbers, their cursors in the group's ledger (one position per member), and their statuses.

The protocol server and brokers call this module from any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sluice.cdc_engine.instance.consumers.consumer_stream import StreamPosition, StreamReader
from sluice.cdc_engine.instance.consumers.group.committed import GroupPositionCodec
from sluice.cdc_engine.instance.consumers.group.group_stream import GroupStream, GroupStreamPosition, Run
from sluice.cdc_engine.instance.consumers.group.members import Members, MemberStream
from sluice.cdc_engine.instance.consumers.subscriptions import ConsumerStatus, Subscriptions, reason_of, state_of
from sluice.cdc_engine.meta.ledger import GroupConsumer, Ledger
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.position import GroupPosition, Position
from sluice.cdc_engine.server.consumer import ConsumerService
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.window.positions import WindowPosition, key_of

Runs = tuple[Run, ...]
Service = ConsumerService[GroupStreamPosition, Runs]


class GroupConsumers(Subscriptions[GroupConsumer, GroupStreamPosition, Runs]):
    """The consumers of a group. The group's filter `group_filter` applies in addition to the filters of the members and of each consumer.
    If no changes of a member arrive for more than `wait_seconds`, and it is unknown whether its source has any, the group continues without
    this member. If `wait_seconds` is None, the group waits for the member forever.
    """

    def __init__(
        self,
        name: str,
        meta: MetaManager,
        members: Members,
        *,
        group_filter: TableFilter,
        brokers: Mapping[int, tuple[str, str]] | None = None,
        wait_seconds: float | None = None,
    ) -> None:
        super().__init__(meta, brokers or {})
        self._name, self._members, self._filter, self._wait_seconds = name, members, group_filter, wait_seconds
        self._group_streams: dict[int, GroupStream] = {}

    def statuses(self) -> tuple[ConsumerStatus, ...]:
        return tuple(self._status(record) for record in self._meta.ledger.group_consumers)

    def _records(self, ledger: Ledger) -> tuple[GroupConsumer, ...]:
        return ledger.group_consumers

    def _with(self, ledger: Ledger, record: GroupConsumer) -> Ledger:
        return ledger.with_group_consumer(record)

    def _born(self, client_id: int, client_filter: str) -> GroupConsumer:
        record = GroupConsumer(client_id=client_id, filter=client_filter, cursor=GroupPosition())
        return self._begun_everywhere(record)

    def _moved(self, record: GroupConsumer, client_filter: str, acked: GroupStreamPosition | None) -> GroupConsumer:
        cursor = acked.position if acked is not None else record.cursor
        return dataclasses.replace(record, filter=client_filter, cursor=cursor)

    def _serving(self, record: GroupConsumer, tables: TableFilter) -> Service:
        complete = self._begun_everywhere(record)
        if complete != record:
            # A member joined the group. Saves the member's start position before the member's first change is handed out.
            self._meta.update(lambda ledger: ledger.with_group_consumer(complete))
        reader = StreamReader(record.client_id, self._name)
        streams = [MemberStream(name, reader, self._members, [self._filter, tables]) for name in self._members.names]
        stream = self._group_streams[record.client_id] = GroupStream(streams, self._wait_seconds)
        codec = GroupPositionCodec(
            lambda: self.identity_of(record.client_id), lambda name: self._members.here(name).consumers.counting
        )
        return ConsumerService(record.client_id, stream, self._position(complete.cursor), codec)

    def _identified(self, record: GroupConsumer, identity: str) -> GroupConsumer:
        return dataclasses.replace(record, identity=identity)

    def _begun_everywhere(self, record: GroupConsumer) -> GroupConsumer:
        """Returns the record of a consumer with a position for every member. A member without a position gets the position before its
        oldest change in the window. Raises SluiceError if a member does not run in this process.
        """
        cursor = record.cursor
        new = [(name, self._members.here(name).consumers.begin) for name in self._members.names if not cursor.of(name)]
        if not new:
            return record
        return dataclasses.replace(
            record, cursor=dataclasses.replace(cursor, members=tuple(sorted((*cursor.members, *new))))
        )

    def _position(self, cursor: GroupPosition) -> GroupStreamPosition:
        members = {name: position for name, position in cursor.members if name in self._members.names}
        return GroupStreamPosition(
            members={name: StreamPosition(WindowPosition(position)) for name, position in members.items()},
            barrier_us=cursor.barrier_us,
            late=cursor.late,
            newest_us={name: position.time_us for name, position in members.items()},
            left=tuple((name, position) for name, position in cursor.members if name not in members),
        )

    def _status(self, record: GroupConsumer) -> ConsumerStatus:
        service, stream = self._services.get(record.client_id), self._group_streams.get(record.client_id)
        cursor = service.acked.position if service is not None else record.cursor
        members = {name: position for name, position in cursor.members if name in self._members.names}
        waits_for = (
            f"{stream.waits_for}: {stream.why}"
            if stream is not None and stream.why
            else stream.waits_for
            if stream
            else ""
        )
        return ConsumerStatus(
            client_id=record.client_id,
            filter=record.filter,
            state=state_of(service),
            reason=reason_of(service),
            behind_seconds=max((self._behind_seconds(*each) for each in members.items()), default=0.0),
            waiting=len(service.line.waiting) if service is not None else 0,
            waiting_since=service.waiting_since if service is not None else 0.0,
            name=self.broker_of(record.client_id),
            members=members,
            barrier_us=cursor.barrier_us,
            late=cursor.late,
            waits_for=waits_for if service is not None else "",
        )

    def _behind_seconds(self, name: str, position: Position) -> float:
        """Returns how many seconds a position is behind the position up to which a member has read. Compares the commit times of the two
        positions.
        """
        here = self._members.known().get(name)
        stream_state = here.consumers.stream_state() if here is not None else None
        if stream_state is None or key_of(position) >= key_of(stream_state.position):
            return 0.0
        return max(0.0, (stream_state.position.time_us - position.time_us) / 1e6)
