"""Builds the real ports: the functions through which definitions call the engines, the files of a destination, and Spark. The caller
chooses the engine host. Sluice's own code location and that of a user call this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cdc_engine.keeping.in_use import change_since
from sluice.orchestration.base.ports import DestinationFiles, EngineHost, Ports, RunEngine
from sluice.orchestration.checks.equality import compare_with_source
from sluice.orchestration.run.spark_merge import spark_merge
from sluice.orchestration.run.spark_publish import spark_publish

if TYPE_CHECKING:
    from sluice.cdc_engine.config.conf_files import ConfFiles
    from sluice.orchestration.rpc.remote_host import RemoteHost


def real_ports(
    files: ConfFiles,
    host: Callable[[], EngineHost],
    conf_troubles: Callable[[str], tuple[str, ...]],
    remote: Callable[[], RemoteHost] | None,
    conf_changed: Callable[[str], str] | None = None,
) -> Ports:
    """Returns the ports, the functions through which Dagster's definitions call the rest of Sluice. The definitions were built from
    `files`, the texts of conf/. `remote` is the host that calls engines in other processes, or None if the engines are in the code server.
    By default, `files` is compared with the conf/ in use to find changes; `conf_changed` replaces this comparison.
    """
    return Ports(
        host=host,
        files=_files,
        merge=spark_merge,
        compare=compare_with_source,
        publish=spark_publish,
        run_engine=functools.partial(_run_engine, remote),
        conf_troubles=conf_troubles,
        conf_changed=conf_changed or functools.partial(change_since, files),
    )


def _files() -> DestinationFiles:
    from sluice.cdc_engine import destination_files  # noqa: PLC0415  loading the definitions does not need it

    return destination_files


def _run_engine(remote: Callable[[], RemoteHost] | None, directory: Path, destination: str) -> RunEngine:
    from sluice.orchestration.rpc.run_caller import caller_of_code_server, caller_of_hosts  # noqa: PLC0415  only runs need it

    if remote is not None:
        return caller_of_hosts(remote(), destination)
    return caller_of_code_server(directory, destination)
