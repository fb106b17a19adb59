"""Makes the objects that serve a destination's consumers, and the window of the stream that the consumers read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.instance.answers import SchemaAnswers
from sluice.cdc_engine.instance.consumers.consumer_stream import OwnStream, StreamReader
from sluice.cdc_engine.instance.consumers.consumers import Consumers, ConsumerStreams, LiveSource
from sluice.cdc_engine.instance.consumers.forms import forms_of
from sluice.cdc_engine.instance.consumers.own_stream import OwnStreams
from sluice.cdc_engine.instance.consumers.sending import name_of
from sluice.cdc_engine.instance.consumers.statements import wanted_statements
from sluice.cdc_engine.instance.consumers.stored_stream import StoredStreams
from sluice.cdc_engine.instance.engine.kept_state import history_kept
from sluice.cdc_engine.instance.failover.by_time import by_time_of
from sluice.cdc_engine.instance.sources import archive_of, source_of
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.parser.stream.event_parser import STREAMING, EventParser
from sluice.cdc_engine.ports import EventStore
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.sink.event_sink import EventSink
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.store.file_store import FileEventStore
from sluice.cdc_engine.store.prepared import PreparedFiles
from sluice.cdc_engine.store.window.positions import WindowPosition
from sluice.cdc_engine.store.window.window import Window
from sluice.cdc_engine.table_meta.change.policy import ZERO_DATES, Policy, SchemaDecisions
from sluice.cdc_engine.table_meta.history.resolutions import Resolutions
from sluice.cdc_engine.table_meta.history.review_files import ReviewFiles


def window_of(config: DestinationConfig, begin: Position) -> Window:
    """Returns the window that the destination's consumers and groups read. The window starts at `begin`. It has the same limit of bytes as
    the ring (`ring.bytes_max`), so that one setting bounds the memory for events. Blocks that are in the window and the ring need memory
    only once.
    """
    return Window(begin, bytes_max=config.ring.bytes_max, isolated=config.batch.ddl_isolation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveParts:
    """The parts of an engine through which its stream passes. The stream starts at `begin`."""

    begin: Position
    parser: EventParser
    sink: EventSink
    store: EventStore
    window: Window


def consumers_of(
    config: DestinationConfig, directory: Path, meta: MetaManager, parts: LiveParts, prepared: PreparedFiles
) -> Consumers:
    """Returns the consumers of a destination. A consumer reads the live stream of `parts` if the stream's window has the consumer's
    position.
    """
    live, begin, store = parts.parser, parts.begin, parts.store
    tables = TableFilter(config.include, config.exclude)
    decisions = review_of(config, directory)
    streams = OwnStreams(
        source=source_of(config),
        tables=tables,
        review=dataclasses.replace(SchemaDecisions(), policy=decisions.policy, approved=decisions.approved),
        records=lambda: history_kept(directory).look(),
        known_to=lambda: live.position or begin,
        recorded_before=prepared.recorded_before,
        archive=archive_of(config),
        epoch=lambda: meta.ledger.epoch,
        # Returns the server to which the epoch belongs. Prefers the live stream, because the ledger gets the server of a new epoch only
        # with the first ack.
        server_uuid=lambda: live.position.server_uuid if live.position else meta.ledger.server_uuid,
        by_time=by_time_of(source_of(config), config, tables.keeps),
        isolated=config.batch.ddl_isolation,
        rows_queries=config.canal_server.rows_query,
    )
    open_own: Callable[[StreamReader, WindowPosition], OwnStream] = streams.open
    if isinstance(store, FileEventStore):
        open_own = StoredStreams(store.log, streams.open, isolated=streams.isolated).open
    return Consumers(
        meta,
        ConsumerStreams(live=parts.window, open_own=open_own, held_up=lambda: parts.sink.held_up),
        server_filter=tables,
        wants=wanted_statements,
        brokers={each.client_id: (name_of(each), each.filter) for each in config.brokers},
        forms=forms_of(config),
        source=LiveSource(
            source=source_of(config),
            stream_state=live.stream_state,
            trouble=lambda: (
                "" if live.state == STREAMING else f"the engine of the destination is {live.state}: {live.reason}"
            ),
        ),
    )


def review_of(config: DestinationConfig, directory: Path) -> SchemaDecisions:
    """Returns the object that decides about schema changes, from the policies in conf/ and the operators' approvals and schemas."""
    files = ReviewFiles(directory)

    def policy(database: str, table: str) -> Policy:
        return {**config.schema_policy(database, table), ZERO_DATES: config.table(database, table).zero_dates}

    return SchemaDecisions(
        destination=config.name,
        policy=policy,
        approved=files.approved,
        note=files.note,
        resolved=SchemaAnswers(lambda: source_of(config), directory).resolved,
        forget=functools.partial(_forget_answers, files, Resolutions(directory)),
    )


def _forget_answers(files: ReviewFiles, resolutions: Resolutions, order_key: int) -> None:
    files.forget_before(order_key)
    resolutions.forget_oldest()
