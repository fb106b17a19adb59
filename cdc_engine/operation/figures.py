"""Converts the status of engines to Prometheus metrics. Pure.

docs/reference/metrics.md lists the metrics. A metric has the name of Canal's or Debezium's metric if it measures the same value, otherwise
a name of Sluice's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from sluice.cdc_engine.instance.status import EngineStatus
from sluice.cdc_engine.server.protocol.traffic import LATENCY_MS, TrafficCounters
from sluice.cdc_engine.states import EngineState

DOWN = "NOT_STARTED"  # The state in the metrics of a destination whose engine does not run in this process.
DEBEZIUM = {"plugin": "mysql", "context": "streaming"}


@dataclasses.dataclass(frozen=True)
class StatusSample:
    """The values of a destination from which the metrics are computed. `status` is None if the destination's engine does not run in this
    process. `clients` counts the requests of Canal clients. `now` is in seconds since 1970.
    """

    destination: str
    status: EngineStatus | None
    clients: TrafficCounters
    now: float


Value = Callable[[EngineStatus, StatusSample], float]
# (name, description, whether it is a counter, function that returns its value)
FIGURES: tuple[tuple[str, str, bool, Value], ...] = (
    (
        "canal_instance_traffic_delay",
        (
            "Milliseconds for which the source is known to have had changes that Sluice has not read. 0 on an idle source, "
            "unlike in Canal."
        ),
        False,
        lambda s, _: s.stream.behind_seconds * 1000,
    ),
    (
        "canal_instance_ack_delay",
        "Milliseconds since the commit of the oldest change that is not acked.",
        False,
        lambda s, _: s.lag_seconds * 1000,
    ),
    (
        "canal_instance_subscriptions",
        "Consumers, including the lake.",
        False,
        lambda s, _: 1.0 + len(s.consumers),
    ),
    ("canal_instance_transactions", "Transactions that were read.", True, lambda s, _: s.stream.transactions),
    ("canal_instance_received_binlog_bytes", "Bytes of binlog that were received.", True, lambda s, _: s.stream.bytes),
    (
        "canal_instance_sink_blocking_time",
        "Milliseconds for which the store had no space.",
        True,
        lambda s, _: s.stream.put_wait_seconds * 1000,
    ),
    (
        "canal_instance_store_produce_seq",
        "Row events that were put into the store.",
        True,
        lambda s, _: s.stream.put_sequence,
    ),
    (
        "canal_instance_store_consume_seq",
        "Row events that were acked, or dropped from the store without an ack.",
        True,
        lambda s, _: s.stream.ack_sequence,
    ),
    (
        "sluice_lag_seconds",
        "Age in seconds of the oldest change that is not in the lake.",
        False,
        lambda s, _: s.lag_seconds,
    ),
    (
        "sluice_retention_left_hours",
        "Hours for which the source keeps the binlog that a restart would read. 0: purged, or due to be purged. NaN: no limit, or unknown.",
        False,
        lambda s, _: math.nan if s.retention_left_hours is None else s.retention_left_hours,
    ),
    (
        "sluice_oldest_binlog_hours",
        "Age in hours of the oldest binlog file on the source. NaN: unknown.",
        False,
        lambda s, _: math.nan if s.oldest_binlog_hours is None else s.oldest_binlog_hours,
    ),
    (
        "sluice_stream_shared",
        "1: the destination shares a stream with other destinations.",
        False,
        lambda s, _: float(s.stream.shared),
    ),
    ("sluice_rows_per_second", "Row events read per second.", False, lambda s, _: s.rows_per_second),
    ("sluice_ring_bytes", "Bytes of row events in memory.", False, lambda s, _: s.ring_bytes),
    ("sluice_ring_bytes_max", "Maximum bytes of row events in memory.", False, lambda s, _: s.ring_bytes_max),
    (
        "sluice_waiting_bytes",
        "Bytes of row events that wait for the lake, in memory and on disk.",
        False,
        lambda s, _: s.waiting_bytes,
    ),
    ("sluice_stopped_tables", "Stopped tables.", False, lambda s, _: len(s.stopped_tables)),
    ("sluice_troubles", "Problems that `sluice status` shows.", False, lambda s, _: len(s.troubles)),
    (
        "sluice_last_ack_timestamp_seconds",
        "Time at which a batch was last acked, in seconds since 1970. NaN: none since the start of the engine.",
        False,
        lambda s, _: s.acked_at_us / 1e6 if s.acked_at_us else math.nan,
    ),
    (
        "sluice_commit_conflicts",
        "Merges that were repeated because another writer committed to the table first, or replaced the commit of the merge.",
        True,
        lambda s, _: s.commit_conflicts,
    ),
)
STREAMING: tuple[tuple[str, str, bool, Value], ...] = (
    (
        "debezium_metrics_Connected",
        "1: the engine is connected.",
        False,
        lambda s, _: float(s.state == EngineState.RUNNING),
    ),
    (
        "debezium_metrics_MilliSecondsBehindSource",
        "Milliseconds for which the source is known to have had changes that Sluice has not read. 0 if everything is read.",
        False,
        lambda s, _: s.stream.behind_seconds * 1000,
    ),
    (
        "debezium_metrics_MilliSecondsSinceLastEvent",
        "Milliseconds since the source last sent anything. -1: it has sent nothing.",
        False,
        lambda s, m: max(0.0, m.now - s.stream.received_at) * 1000 if s.stream.received_at else -1.0,
    ),
    ("debezium_metrics_TotalNumberOfEventsSeen", "Row events that were read.", True, lambda s, _: s.stream.row_events),
    (
        "debezium_metrics_NumberOfCommittedTransactions",
        "Transactions that were read.",
        True,
        lambda s, _: s.stream.transactions,
    ),
    (
        "debezium_metrics_NumberOfDisconnects",
        "Lost connections of the stream.",
        True,
        lambda s, _: max(0, s.stream.connections - 1),
    ),
    (
        "debezium_metrics_QueueTotalCapacity",
        "Maximum number of row events in memory.",
        False,
        lambda s, _: s.stream.events_max,
    ),
    (
        "debezium_metrics_QueueRemainingCapacity",
        "Number of row events for which memory is free.",
        False,
        lambda s, _: s.stream.events_max - s.ring_events,
    ),
)


def families(moments: list[StatusSample]) -> Iterator[Metric]:
    """Yields each metric once, with the samples of all destinations. The metrics about reading the binlog have no sample for a group, and
    no sample for a destination whose engine does not run in this process.
    """
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
    running: list[tuple[StatusSample, EngineStatus]],
    labels: Callable[[StatusSample], Mapping[str, str]],
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


def _states(moments: list[StatusSample]) -> Iterator[Metric]:
    state = GaugeMetricFamily("sluice_state", "1: the engine has this state.", labels=["destination", "state"])
    instance = GaugeMetricFamily("canal_instance", "1: an engine runs.", labels=["destination", "mode"])
    store = GaugeMetricFamily(
        "canal_instance_store", "Always 1. The labels describe the store.", labels=["destination", "batchMode", "size"]
    )
    for moment in moments:
        state.add_metric([moment.destination, moment.status.state if moment.status else DOWN], 1.0)
        if moment.status is not None:
            instance.add_metric([moment.destination, "sluice"], 1.0)
            store.add_metric([moment.destination, "MEMSIZE", str(moment.status.stream.events_max)], 1.0)
    yield from (state, instance, store)


def _groups(running: list[tuple[StatusSample, EngineStatus]]) -> Iterator[Metric]:
    labels = ["destination"]
    late = GaugeMetricFamily(
        "sluice_group_late_transactions",
        "Transactions that arrived after later transactions had been handed out, over all consumers of the group.",
        labels=labels,
    )
    clocks = GaugeMetricFamily(
        "sluice_group_clocks_differ_seconds",
        "Maximum difference in seconds between the clocks of the sources.",
        labels=labels,
    )
    away = GaugeMetricFamily(
        "sluice_group_members_away",
        "Members of the group that do not run in this process, or that deliver nothing.",
        labels=labels,
    )
    for moment, status in running:
        if (group := status.group) is not None:
            late.add_metric([moment.destination], group.late)
            clocks.add_metric([moment.destination], group.clocks_differ_seconds)
            away.add_metric([moment.destination], sum(bool(each.missing or each.trouble) for each in group.members))
    yield from (late, clocks, away)


def _consumers(running: list[tuple[StatusSample, EngineStatus]]) -> Iterator[Metric]:
    labels = ["destination", "client"]
    behind = GaugeMetricFamily(
        "sluice_consumer_behind_seconds",
        "Seconds by which the consumer is behind the position up to which the destination has read.",
        labels=labels,
    )
    waiting = GaugeMetricFamily(
        "sluice_consumer_waiting", "Batches delivered to the consumer that have no ack yet.", labels=labels
    )
    stopped = GaugeMetricFamily("sluice_consumer_stopped", "1: the consumer stopped.", labels=labels)
    for moment, status in running:
        for consumer in status.consumers:
            who = [moment.destination, str(consumer.client_id)]
            behind.add_metric(who, consumer.behind_seconds)
            waiting.add_metric(who, consumer.waiting)
            stopped.add_metric(who, float(bool(consumer.reason)))
    yield from (behind, waiting, stopped)


def _clients(moments: list[StatusSample]) -> Iterator[Metric]:
    """Yields the metrics of the server for Canal clients, with Canal's names."""
    packets = CounterMetricFamily(
        "canal_instance_client_packets", "Packets received from clients.", labels=["destination", "packetType"]
    )
    errors = CounterMetricFamily(
        "canal_instance_client_request_error", "Refused requests.", labels=["destination", "errorCode"]
    )
    sent = CounterMetricFamily("canal_instance_client_bytes", "Bytes of responses to clients.", labels=["destination"])
    empty = CounterMetricFamily(
        "canal_instance_client_empty_batches", "Get requests that returned no row.", labels=["destination"]
    )
    latency = HistogramMetricFamily(
        "canal_instance_client_request_latency", "Milliseconds from request to response.", labels=["destination"]
    )
    for moment in moments:
        traffic, name = moment.clients, moment.destination
        for kind, count in sorted(traffic.packets.items()):
            packets.add_metric([name, kind], count)
        for number, count in sorted(traffic.errors.items()):
            errors.add_metric([name, str(number)], count)
        sent.add_metric([name], traffic.bytes)
        empty.add_metric([name], traffic.empty_batches)
        latency.add_metric([name], _buckets(traffic), traffic.latency_ms_sum)
    yield from (packets, errors, sent, empty, latency)


def _buckets(counters: TrafficCounters) -> list[tuple[str, float]]:
    """Returns the latency of requests as cumulative buckets, as Prometheus defines them."""
    bounds = [*map(str, LATENCY_MS), "+Inf"]
    return [(bound, float(sum(counters.latencies[: at + 1]))) for at, bound in enumerate(bounds)]
