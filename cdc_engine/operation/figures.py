"""Converts the state of engines to Prometheus metrics: Canal's names if the meaning is the same, Debezium's, and Sluice's own. Pure.

docs/canal.md has the table. A value that Canal has and Sluice does not measure in the same sense has no metric of that name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from cdc_engine.instance.status import EngineStatus
from cdc_engine.server.protocol.traffic import LATENCY_MS, Told
from cdc_engine.states import EngineState

DOWN = "NOT_STARTED"  # the process has the destination but no engine for it
DEBEZIUM = {"plugin": "mysql", "context": "streaming"}


@dataclasses.dataclass(frozen=True)
class Moment:
    """The state of one destination in this process. `status` None: no engine runs."""

    destination: str
    status: EngineStatus | None
    clients: Told
    now: float


Value = Callable[[EngineStatus, Moment], float]
# (name, description, whether it is a counter, its value)
FIGURES: tuple[tuple[str, str, bool, Value], ...] = (
    (
        "canal_instance_traffic_delay",
        "ms for which the source has had changes that are not read",
        False,
        lambda s, _: s.stream.behind_seconds * 1000,
    ),
    (
        "canal_instance_ack_delay",
        "ms since the oldest change that is not acked was committed",
        False,
        lambda s, _: s.lag_seconds * 1000,
    ),
    (
        "canal_instance_subscriptions",
        "consumers, the lake among them",
        False,
        lambda s, _: 1.0 + len(s.consumers),
    ),
    ("canal_instance_transactions", "transactions read", True, lambda s, _: s.stream.transactions),
    ("canal_instance_received_binlog_bytes", "bytes of binlog received", True, lambda s, _: s.stream.bytes),
    (
        "canal_instance_sink_blocking_time",
        "ms for which the store had no room",
        True,
        lambda s, _: s.stream.put_wait_seconds * 1000,
    ),
    ("canal_instance_store_produce_seq", "row events put", True, lambda s, _: s.stream.put_sequence),
    ("canal_instance_store_consume_seq", "row events acked or forgotten", True, lambda s, _: s.stream.ack_sequence),
    ("sluice_lag_seconds", "age of the oldest change that is not in the lake", False, lambda s, _: s.lag_seconds),
    (
        "sluice_runway_hours",
        "for which the source keeps the binlog that a restart would read; NaN: for ever, or not known",
        False,
        lambda s, _: math.nan if s.runway_hours is None else s.runway_hours,
    ),
    ("sluice_stream_shared", "1: it reads a stream with others", False, lambda s, _: float(s.stream.shared)),
    ("sluice_rows_per_second", "row events read", False, lambda s, _: s.rows_per_second),
    ("sluice_ring_bytes", "row events in memory", False, lambda s, _: s.ring_bytes),
    ("sluice_ring_bytes_max", "room for them", False, lambda s, _: s.ring_bytes_max),
    ("sluice_waiting_bytes", "row events that wait for the lake, on disk too", False, lambda s, _: s.waiting_bytes),
    ("sluice_stopped_tables", "tables that stopped", False, lambda s, _: len(s.stopped_tables)),
    ("sluice_troubles", "what `sluice status` says is wrong", False, lambda s, _: len(s.troubles)),
    ("sluice_last_ack_timestamp_seconds", "when a batch was last merged", False, lambda s, _: s.acked_at_us / 1e6),
)
STREAMING: tuple[tuple[str, str, bool, Value], ...] = (
    ("debezium_metrics_Connected", "1: connected", False, lambda s, _: float(s.state == EngineState.RUNNING)),
    (
        "debezium_metrics_MilliSecondsBehindSource",
        "from commit to here, of the last change read; 0 where all is read",
        False,
        lambda s, _: s.stream.behind_seconds * 1000,
    ),
    (
        "debezium_metrics_MilliSecondsSinceLastEvent",
        "since the source last sent anything",
        False,
        lambda s, m: max(0.0, m.now - s.stream.received_at) * 1000 if s.stream.received_at else -1.0,
    ),
    ("debezium_metrics_TotalNumberOfEventsSeen", "row events read", True, lambda s, _: s.stream.row_events),
    ("debezium_metrics_NumberOfCommittedTransactions", "read", True, lambda s, _: s.stream.transactions),
    ("debezium_metrics_NumberOfDisconnects", "of the stream", True, lambda s, _: max(0, s.stream.connections - 1)),
    ("debezium_metrics_QueueTotalCapacity", "row events", False, lambda s, _: s.stream.events_max),
    ("debezium_metrics_QueueRemainingCapacity", "row events", False, lambda s, _: s.stream.events_max - s.ring_events),
)


def families(moments: list[Moment]) -> Iterator[Metric]:
    """Yields every metric once, with one sample per destination."""
    running = [(moment, moment.status) for moment in moments if moment.status is not None]
    reading = [(moment, status) for moment, status in running if status.group is None]
    yield from _each(FIGURES, reading, lambda moment: {"destination": moment.destination})
    yield from _each(STREAMING, reading, lambda moment: {**DEBEZIUM, "name": moment.destination})
    yield from _groups(running)
    yield from _states(moments)
    yield from _consumers(running)
    yield from _clients(moments)


def _each(
    figures: tuple[tuple[str, str, bool, Value], ...],
    running: list[tuple[Moment, EngineStatus]],
    labels: Callable[[Moment], Mapping[str, str]],
) -> Iterator[Metric]:
    for name, says, counts, value in figures:
        family: Any = (CounterMetricFamily if counts else GaugeMetricFamily)(name, says)
        for moment, status in running:
            family.samples.append(_sample(family, labels(moment), float(value(status, moment)), counts=counts))
        yield family


def _sample(family: Metric, labels: Mapping[str, str], value: float, *, counts: bool = False) -> Any:
    made = Metric(family.name, family.documentation, family.type)
    made.add_sample(f"{family.name}_total" if counts else family.name, dict(labels), value)
    return made.samples[0]


def _states(moments: list[Moment]) -> Iterator[Metric]:
    state = GaugeMetricFamily("sluice_state", "1: the engine's state", labels=["destination", "state"])
    instance = GaugeMetricFamily("canal_instance", "1: an engine runs", labels=["destination", "mode"])
    store = GaugeMetricFamily("canal_instance_store", "1", labels=["destination", "batchMode", "size"])
    for moment in moments:
        state.add_metric([moment.destination, moment.status.state if moment.status else DOWN], 1.0)
        if moment.status is not None:
            instance.add_metric([moment.destination, "sluice"], 1.0)
            store.add_metric([moment.destination, "MEMSIZE", str(moment.status.stream.events_max)], 1.0)
    yield from (state, instance, store)


def _groups(running: list[tuple[Moment, EngineStatus]]) -> Iterator[Metric]:
    labels = ["destination"]
    late = GaugeMetricFamily("sluice_group_late_transactions", "that came when younger ones were out", labels=labels)
    clocks = GaugeMetricFamily("sluice_group_clocks_differ_seconds", "of its sources, at most", labels=labels)
    away = GaugeMetricFamily("sluice_group_members_away", "that do not run here, or give nothing", labels=labels)
    for moment, status in running:
        if (group := status.group) is not None:
            late.add_metric([moment.destination], group.late)
            clocks.add_metric([moment.destination], group.clocks_differ_seconds)
            away.add_metric([moment.destination], sum(bool(each.missing or each.trouble) for each in group.members))
    yield from (late, clocks, away)


def _consumers(running: list[tuple[Moment, EngineStatus]]) -> Iterator[Metric]:
    labels = ["destination", "client"]
    behind = GaugeMetricFamily("sluice_consumer_behind_seconds", "behind what the destination has read", labels=labels)
    waiting = GaugeMetricFamily("sluice_consumer_waiting", "deliveries without an ack", labels=labels)
    stopped = GaugeMetricFamily("sluice_consumer_stopped", "1: it stopped", labels=labels)
    for moment, status in running:
        for consumer in status.consumers:
            who = [moment.destination, str(consumer.client_id)]
            behind.add_metric(who, consumer.behind_seconds)
            waiting.add_metric(who, consumer.waiting)
            stopped.add_metric(who, float(bool(consumer.reason)))
    yield from (behind, waiting, stopped)


def _clients(moments: list[Moment]) -> Iterator[Metric]:
    """Yields the metrics of the protocol server, with Canal's names."""
    packets = CounterMetricFamily(
        "canal_instance_client_packets", "packets of clients", labels=["destination", "packetType"]
    )
    errors = CounterMetricFamily("canal_instance_client_request_error", "refusals", labels=["destination", "errorCode"])
    sent = CounterMetricFamily("canal_instance_client_bytes", "bytes of answers", labels=["destination"])
    empty = CounterMetricFamily("canal_instance_client_empty_batches", "gets without a row", labels=["destination"])
    latency = HistogramMetricFamily(
        "canal_instance_client_request_latency", "ms from question to answer", labels=["destination"]
    )
    for moment in moments:
        told, name = moment.clients, moment.destination
        for kind, count in sorted(told.packets.items()):
            packets.add_metric([name, kind], count)
        for number, count in sorted(told.errors.items()):
            errors.add_metric([name, str(number)], count)
        sent.add_metric([name], told.bytes)
        empty.add_metric([name], told.empty_batches)
        latency.add_metric([name], _buckets(told), told.latency_ms_sum)
    yield from (packets, errors, sent, empty, latency)


def _buckets(told: Told) -> list[tuple[str, float]]:
    """Returns cumulative buckets, as Prometheus defines them."""
    bounds = [*map(str, LATENCY_MS), "+Inf"]
    return [(bound, float(sum(told.latencies[: at + 1]))) for at, bound in enumerate(bounds)]
