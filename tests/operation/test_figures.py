"""Tests that the metrics endpoint shows the figures of the engines, under the names that docs/reference/metrics.md and the Grafana
dashboard use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.cdc_engine.binlog.protobuf_fields import bytes_field, number_field
from sluice.cdc_engine.instance.consumers.subscriptions import ConsumerStatus
from sluice.cdc_engine.instance.status import EngineStatus, GroupFigures, MemberFigures, StreamFigures
from sluice.cdc_engine.operation.endpoint import Endpoint
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.server.protocol.session import Access, ClientSession
from sluice.cdc_engine.server.protocol.traffic import traffic_of
from tests.canal_client.fix_served import Destination, inserted
from tests.server.protocol.test_canal_protocol import GET, SUBSCRIPTION

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"
NAME = re.compile(r"\b(?:canal_instance|debezium_metrics|sluice)_?\w*")
CONSUMER = ConsumerStatus(
    client_id=1002, filter="", state="STOPPED", reason="purged", position=Position(epoch=1, file="bin.000001", offset=4),
    behind_seconds=3.0, waiting=2, waiting_since=0.0,
)  # fmt: skip
STATUS = EngineStatus(
    state="RUNNING",
    lag_seconds=1.5,
    retention_left_hours=3.5,
    rows_per_second=10.0,
    ring_bytes=100,
    ring_bytes_max=1000,
    consumers=(CONSUMER,),
    troubles=("one",),
    commit_conflicts=3,
    stream=StreamFigures(
        bytes=5000, transactions=7, row_events=20, connections=2, received_at=1.0, put_wait_seconds=0.25,
        put_sequence=20, ack_sequence=15, events_max=1024, behind_seconds=0.5,
    ),
)  # fmt: skip


MEMBERS = (MemberFigures(name="east", ahead_seconds=-0.25), MemberFigures(name="west", trouble="x", ahead_seconds=0.25))
GROUP = EngineStatus(state="RUNNING", consumers=(CONSUMER,), group=GroupFigures(members=MEMBERS, late=4))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", 0, lambda: {"shop": STATUS, "example": STATUS, "down": None, "all": GROUP})
    with contextlib.closing(made):
        yield made


def samples(endpoint: Endpoint) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_endpoint_says_what_the_engines_say_admin(endpoint: Endpoint) -> None:
    found = samples(endpoint)
    shop = (("destination", "shop"),)
    assert found["canal_instance_transactions_total", shop] == 7
    assert found["canal_instance_received_binlog_bytes_total", shop] == 5000
    assert found["canal_instance_traffic_delay", shop] == 500
    assert found["canal_instance_subscriptions", shop] == 2
    assert found["canal_instance_sink_blocking_time_total", shop] == 250
    assert found["sluice_lag_seconds", shop] == 1.5
    assert found["sluice_commit_conflicts_total", shop] == 3
    assert found["sluice_retention_left_hours", shop] == 3.5
    assert found["sluice_state", (("destination", "shop"), ("state", "RUNNING"))] == 1
    assert found["sluice_state", (("destination", "down"), ("state", "NOT_STARTED"))] == 1
    assert found["sluice_consumer_stopped", (("client", "1002"), ("destination", "shop"))] == 1
    streaming = (("context", "streaming"), ("name", "shop"), ("plugin", "mysql"))
    assert found["debezium_metrics_TotalNumberOfEventsSeen_total", streaming] == 20
    assert found["debezium_metrics_NumberOfDisconnects_total", streaming] == 1
    assert found["debezium_metrics_Connected", streaming] == 1
    assert ("sluice_lag_seconds", (("destination", "down"),)) not in found


@pytest.mark.found
def test_the_time_of_the_last_ack_is_unknown_until_the_first_ack_after_a_restart_admin(endpoint: Endpoint) -> None:
    """Defect 1224: after a restart, the last ack was at 1970, so an alert about its age fired until the first batch was merged."""
    assert math.isnan(samples(endpoint)["sluice_last_ack_timestamp_seconds", (("destination", "shop"),)])
    acked = dataclasses.replace(STATUS, acked_at_us=1_500_000)
    with contextlib.closing(Endpoint("127.0.0.1", 0, lambda: {"shop": acked})) as again:
        assert samples(again)["sluice_last_ack_timestamp_seconds", (("destination", "shop"),)] == 1.5


def test_the_endpoint_says_of_a_group_what_a_group_has_consumer(endpoint: Endpoint) -> None:
    found = samples(endpoint)
    group = (("destination", "all"),)
    assert found["sluice_group_late_transactions", group] == 4
    assert found["sluice_group_clocks_differ_seconds", group] == 0.5
    assert found["sluice_group_members_away", group] == 1
    assert found["sluice_consumer_stopped", (("client", "1002"), ("destination", "all"))] == 1
    assert ("sluice_lag_seconds", group) not in found, "it has no lake"


def test_the_endpoint_counts_the_requests_of_canal_clients(endpoint: Endpoint) -> None:
    served = Destination([inserted(1)])
    session = ClientSession(Access(), lambda _name: served)
    session.authenticated = True
    before = traffic_of("example").counters()
    for frame in (SUBSCRIPTION, GET, GET, number_field(3, 6) + bytes_field(5, b"")):
        session.answered(frame)
    reported = traffic_of("example").counters()
    assert reported.packets["GET"] - before.packets.get("GET", 0) == 2
    assert reported.packets["SUBSCRIPTION"] - before.packets.get("SUBSCRIPTION", 0) == 1
    assert reported.empty_batches - before.empty_batches == 1
    session.answered(GET.replace(b"1001", b"abcd"))
    assert traffic_of("example").counters().errors[400] - before.errors.get(400, 0) == 1
    found = samples(endpoint)
    assert found["canal_instance_client_packets_total", (("destination", "example"), ("packetType", "GET"))] >= 2
    latency = (("destination", "example"), ("le", "+Inf"))
    assert found["canal_instance_client_request_latency_bucket", latency] == sum(
        traffic_of("example").counters().latencies
    )


def test_an_unauthenticated_client_makes_no_series_of_its_own_canal() -> None:
    session = ClientSession(Access(), _nobody)
    session.authenticated = True
    session.answered(SUBSCRIPTION.replace(b"example", b"made_up"))
    assert traffic_of("made_up").counters().packets == {}


def _nobody(name: str) -> Destination:
    from sluice.cdc_engine.errors import UnknownDestinationError  # noqa: PLC0415

    raise UnknownDestinationError(f"can't find destination:{name}")


def test_every_name_of_the_dashboard_and_of_the_docs_is_a_metric_admin(endpoint: Endpoint) -> None:
    traffic_of("shop").note("GET", 0.001, 10, error=400)
    known = {name for name, _ in samples(endpoint)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    requested = {
        name for panel in panels for target in panel.get("targets", ()) for name in NAME.findall(target["expr"])
    }
    assert len(requested) > 10
    assert requested <= known
    table = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    named = {name.removesuffix("_total") for name in re.findall(r"`((?:canal|debezium|sluice)_\w+)`", table)}
    plain = {name.removesuffix("_total").removesuffix("_bucket") for name in known}
    assert named >= {name for name in plain if not name.endswith(("_sum", "_count", "_created"))}
    assert named <= plain
