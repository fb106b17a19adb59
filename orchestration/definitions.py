"""The code location, loaded by `dagster api grpc -m sluice.orchestration.definitions` and by every run process.

It reads the conf/ in use and one file per destination. It opens no connection and starts no engine and no Spark. An invalid conf/ raises
one ConfigurationError that lists all errors. This module fills the ports with the real implementations: this process's launcher, or the
client that calls engines in another process; and Spark.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cdc_engine.keeping.in_use import change_since, conf_in_use, stamp, troubles_now
from sluice.orchestration.base.ports import DestinationFiles, EngineHost, Ports, RunEngine
from sluice.orchestration.checks.equality import compare_with_source
from sluice.orchestration.code_location import build_definitions
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.orchestration.run.spark_publish import spark_publish

if TYPE_CHECKING:
    from sluice.orchestration.rpc.remote_host import RemoteHost

BUILT_FROM = stamp()  # read by `reload`
_READ = conf_in_use()
IN_USE = _READ.config


@functools.cache
def _elsewhere() -> RemoteHost:
    from sluice.orchestration.rpc.remote_host import RemoteHost  # noqa: PLC0415  as the launcher

    return RemoteHost(IN_USE)


def _host() -> EngineHost:
    if IN_USE.engine.kind == "remote":
        return _elsewhere()
    from sluice.cdc_engine.keeping import launcher  # noqa: PLC0415  starts nothing; not used by runs

    return launcher


def _conf_troubles(destination: str) -> tuple[str, ...]:
    remote = IN_USE.engine.kind == "remote"
    there = _elsewhere().conf_troubles(destination, _READ.texts.digest(destination)) if remote else ()
    return (*troubles_now(destination), *there)


def _files() -> DestinationFiles:
    from sluice.cdc_engine import destination_files  # noqa: PLC0415  as the launcher: imported where it is used

    return destination_files


def _feed(directory: Path, destination: str) -> RunEngine:
    from sluice.orchestration.rpc.run_caller import RunCaller  # noqa: PLC0415  for runs
    from sluice.orchestration.rpc.run_elsewhere import RunElsewhere  # noqa: PLC0415  for runs
    from sluice.orchestration.rpc.run_endpoint import RUN_ENDPOINT_FILE  # noqa: PLC0415  for runs

    if IN_USE.engine.kind == "remote" and not (directory / RUN_ENDPOINT_FILE).exists():
        return RunElsewhere(_elsewhere(), destination)
    return RunCaller(directory, destination)


defs = build_definitions(
    IN_USE,
    Ports(
        host=_host,
        files=_files,
        merge=spark_merge,
        compare=compare_with_source,
        publish=spark_publish,
        feed=_feed,
        conf_troubles=_conf_troubles,
        conf_changed=functools.partial(change_since, _READ.texts),
    ),
)
