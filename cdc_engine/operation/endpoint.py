"""Serves metrics to Prometheus over HTTP. A process has one endpoint for all its engines. `launcher` starts the endpoint if conf/ names a
port.

The endpoint returns the last status of each engine, without waiting for an engine. If another process uses the port, Sluice tries again
every AGAIN_SECONDS until the port is free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sluice.cdc_engine.instance.status import EngineStatus
from sluice.cdc_engine.operation.figures import StatusSample, families
from sluice.cdc_engine.server.protocol.traffic import traffic_of

AGAIN_SECONDS = 5.0

log = structlog.get_logger()
Statuses = Callable[[], Mapping[str, EngineStatus | None]]


class EngineCollector(Collector):
    """Collects the metrics for a request of Prometheus. `statuses` returns the status of every destination of this process. The status is
    None if the destination's engine does not run.
    """

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses

    def collect(self) -> Iterable[Metric]:
        now = time.time()
        return families(
            [
                StatusSample(name, status, traffic_of(name).counters(), now)
                for name, status in sorted(self._statuses().items())
            ]
        )


class Endpoint:
    """An HTTP server for Prometheus. Listens until `close` is called. With the port 0, the operating system chooses a free port. The
    attribute `port` is the port on which the server listens.
    """

    def __init__(self, host: str, port: int, statuses: Statuses) -> None:
        """Starts the server in a thread. Raises OSError if the server cannot listen on the port."""
        registry = CollectorRegistry()
        registry.register(EngineCollector(statuses))
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _OpenEndpoint:
    """The state of this process's endpoint: whether the process has begun to open it, and the lock that protects this flag."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun = False


_kept = _OpenEndpoint()


def keep_served(host: str, port: int, statuses: Statuses) -> None:
    """Starts the endpoint of this process in a thread, unless an earlier call has done so. `statuses` returns the status of each
    destination of this process. Does nothing if `port` is 0.
    """
    with _kept.lock:
        if _kept.begun or not port:
            return
        _kept.begun = True
    threading.Thread(target=_open, args=(host, port, statuses), name="metrics", daemon=True).start()


def _open(host: str, port: int, statuses: Statuses) -> None:
    while True:
        try:
            Endpoint(host, port, statuses)
        except OSError as error:
            log.warning(
                "metrics_not_served", address=f"{host}:{port}", reason=error.strerror, again_seconds=AGAIN_SECONDS
            )
            time.sleep(AGAIN_SECONDS)
        else:
            return
