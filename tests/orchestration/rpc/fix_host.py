"""Provides an engine host on the loopback address, with the engines that a test passes, and a client that calls it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sluice.cdc_engine.config import EngineConfig, SluiceConfig
from sluice.orchestration.base.ports import EngineAwayError, EngineHost
from sluice.orchestration.rpc.process import serve
from sluice.orchestration.rpc.remote_host import RemoteHost
from sluice.orchestration.rpc.served_engine import ServedEngines
from sluice.orchestration.rpc.server import RpcServer
from tests.orchestration.fix_location import make_config
from tests.waiting import wait_for


def config_at(root: Path, *ports: int, **engine: Any) -> SluiceConfig:
    """Returns the configuration of `make_config`, with engines at these ports of this machine."""
    address = ",".join(f"127.0.0.1:{port}" for port in ports)
    listen = f"127.0.0.1:{ports[0]}"
    wanted = EngineConfig(kind="remote", address=address, listen=listen, **engine)
    return make_config(root).model_copy(update={"engine": wanted})


def server_of(
    engines: EngineHost,
    config: SluiceConfig,
    listen: str = "127.0.0.1:0",
    *,
    conf: Callable[[str], str] = lambda _: "",
    closing: Callable[[], bool] = lambda: False,
) -> RpcServer:
    return serve(ServedEngines(lambda: engines, closing, conf), config, listen=listen)


@contextlib.contextmanager
def called(engines: EngineHost, root: Path) -> Iterator[RemoteHost]:
    """Yields the engines as a caller sees them."""
    server = server_of(engines, config_at(root, 1))
    caller = RemoteHost(config_at(root, server.port))
    try:
        yield caller
    finally:
        caller.close()
        server.close()


@contextlib.contextmanager
def connected(engines: EngineHost, root: Path) -> Iterator[RemoteHost]:
    """Does the same as `called`, with a client that has already made a call. A first call has only two seconds to connect, which may not
    be enough on a busy machine. The tick would then name the engine's process, and request no run.
    """
    with called(engines, root) as caller:

        def answers() -> bool:
            try:
                caller.get_or_start("shop")
            except EngineAwayError:
                return False
            return True

        wait_for("the engine's process answers", answers)
        yield caller
