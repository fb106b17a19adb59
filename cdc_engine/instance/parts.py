"""Groups the parts of a running engine into one value. `engine.wiring` makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.subscriptions import Subscriptions
from sluice.cdc_engine.instance.published_history import PublishedHistory
from sluice.cdc_engine.meta.manager import MetaManager
from sluice.cdc_engine.parser.start_position import Epochs
from sluice.cdc_engine.parser.stream.event_parser import EventParser
from sluice.cdc_engine.ports import EventStore
from sluice.cdc_engine.sink.event_sink import EventSink
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.store.window.window import Window

ConsumersT = TypeVar("ConsumersT", bound=Subscriptions[Any, Any, Any])


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenParts(Generic[ConsumersT]):
    """The parts that every running engine has. `consumers` is None if the engine serves no consumers."""

    meta: MetaManager
    consumers: ConsumersT | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineParts(OpenParts[Consumers]):
    """The parts of the engine of one destination. `window` is None if the destination has no consumers and belongs to no group. `policies`
    has each table's value policy by "database.table", as read when the engine started. The files that a policy uses, such as the module of
    a transform, may have changed since.
    """

    source: Source
    history: PublishedHistory
    store: EventStore
    sink: EventSink
    parser: EventParser
    window: Window | None
    policies: Mapping[str, ValuePolicy]


def epochs_of(meta: MetaManager) -> Epochs:
    ledger = meta.ledger
    return Epochs(highest=ledger.epoch, unfinished=ledger.unfinished)
