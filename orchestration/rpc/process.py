"""Runs the engines in a process of their own (`./sluice engine`), until a signal ends the process. The process neither starts nor imports
Dagster.

python -m sluice.orchestration.rpc.process

The engines start at once, even if nobody calls them. The process follows changes of conf/ and operators' requests, as the code server does.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import structlog

from sluice.cdc_engine.config import conf_dir
from sluice.cdc_engine.errors import ConfigurationError, SluiceError
from sluice.cdc_engine.instance.freed_memory import FreedMemory
from sluice.cdc_engine.instance.small_process import keep_small
from sluice.cdc_engine.keeping import launcher
from sluice.cdc_engine.keeping.conf_watch import ConfWatch
from sluice.cdc_engine.keeping.keeper import Keeper, follow
from sluice.cdc_engine.keeping.logs import log_lines
from sluice.orchestration.rpc.access import server_credentials, token_of
from sluice.orchestration.rpc.served_engine import ServedEngines
from sluice.orchestration.rpc.server import RpcServer

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig

log = structlog.get_logger()


def keep_engines(stopping: threading.Event) -> None:
    """Runs the engines until `stopping` is set. Raises ConfigurationError if conf/ is invalid or does not have `engine.kind: remote`, or if
    the server for calls cannot start, for example because the port is in use.
    """
    watch = ConfWatch(conf_dir(), "engine")
    config = watch.in_use.config
    if config.engine.kind != "remote":
        raise ConfigurationError(
            "conf/sluice.yaml has engine.kind embedded, so Dagster's code server runs the engines; set engine: {kind: remote} to run them "
            "in a process of their own"
        )
    log_lines()
    keep_small()
    server = serve(ServedEngines(lambda: launcher, stopping.is_set, _digest_of), config)
    log.info("engine_host_listens", address=config.engine.listens_at, tls=config.engine.certificate_file is not None)
    try:
        keeper = Keeper(launcher)
        keeper.look(watch.in_use)
        follow(watch, [keeper.look, FreedMemory().look], stopping)
    finally:
        server.close()
        launcher.stop_all()


def serve(engines: ServedEngines, config: SluiceConfig, *, listen: str = "") -> RpcServer:
    """Returns a server for the engines, which listens at `listen`, or at `engine.listen` of conf/ if `listen` is empty.

    Raises ConfigurationError if the port is not available, the token is too short, or a certificate cannot be read.
    """
    return RpcServer(
        engines,
        token_of(config.engine, config.data_dir, make=True),
        listen=listen or config.engine.listens_at,
        credentials=server_credentials(config.engine),
    )


def _digest_of(name: str) -> str:
    """Returns the digest of a destination's file in conf/. A group to which the destination belongs has a file of its own, which the digest
    does not include.
    """
    return launcher.kept().get(name, "").partition("+")[0]


def until_signal() -> threading.Event:
    """Returns an event that is set on SIGTERM and on Ctrl-C."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


if __name__ == "__main__":
    try:
        keep_engines(until_signal())
    except SluiceError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
