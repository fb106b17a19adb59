"""The code location: `dagster api grpc -m orchestration.definitions` loads it, and so does every run process.

Importing it reads conf/ and one file a destination; it opens no connection and starts no engine and no Spark. A wrong conf/ is one
ConfigurationError with all that is wrong. Here the ports get what is real: the launcher of this process, the client, and Spark.
"""

from __future__ import annotations

from pathlib import Path

from cdc_engine.config import load_config
from orchestration.code_location import build_definitions
from orchestration.equality_check import compare_with_source
from orchestration.ports import DestinationFiles, EngineHost, Feed, Ports
from orchestration.run.spark_merge import spark_merge
from orchestration.run.spark_publish import spark_publish


def _launcher() -> EngineHost:
    from cdc_engine import launcher  # noqa: PLC0415  starts nothing; a run never comes here

    return launcher


def _files() -> DestinationFiles:
    from cdc_engine import destination_files  # noqa: PLC0415  as the launcher: imported where it is used

    return destination_files


def _feed(directory: Path, destination: str) -> Feed:
    from orchestration.drain.caller import Caller  # noqa: PLC0415  of runs that drain

    return Caller(directory, destination)


defs = build_definitions(
    load_config(),
    Ports(
        host=_launcher,
        files=_files,
        merge=spark_merge,
        compare=compare_with_source,
        publish=spark_publish,
        feed=_feed,
    ),
)
