"""Defines Sluice's own code location. `dagster api grpc -m sluice.orchestration.definitions` and every run process import this module.

The import reads the conf/ in use and the list of tables of each destination. The import opens no connection to a source, and starts neither
an engine nor Spark. An invalid conf/ raises one ConfigurationError with all errors. This module chooses the engine host, which gives
engines to the sensors: the launcher that starts engines in this process, or the client that calls engines in another process.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from sluice.cdc_engine.keeping.in_use import conf_in_use, stamp, troubles_now
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.real_ports import real_ports

if TYPE_CHECKING:
    from sluice.orchestration.base.ports import EngineHost
    from sluice.orchestration.rpc.remote_host import RemoteHost

BUILT_FROM = stamp()  # `reload` compares this stamp with that of the conf/ in use.
_READ = conf_in_use()
IN_USE = _READ.config
IS_REMOTE = IN_USE.engine.kind == "remote"


@functools.cache
def _remote() -> RemoteHost:
    from sluice.orchestration.rpc.remote_host import RemoteHost  # noqa: PLC0415  loading the definitions does not need it

    return RemoteHost(IN_USE)


def _host() -> EngineHost:
    if IS_REMOTE:
        return _remote()
    from sluice.cdc_engine.keeping import launcher  # noqa: PLC0415  starts nothing; not used by runs

    return launcher


def _conf_troubles(destination: str) -> tuple[str, ...]:
    there = _remote().conf_troubles(destination, _READ.files.digest(destination)) if IS_REMOTE else ()
    return (*troubles_now(destination), *there)


defs = build_definitions(IN_USE, real_ports(_READ.files, _host, _conf_troubles, _remote if IS_REMOTE else None))
