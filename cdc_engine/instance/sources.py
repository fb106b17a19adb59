"""Converts the sources and the archive in conf/ to the values that other packages use, and queries the source for its facts."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.destination_files import for_runs
from sluice.cdc_engine.source.archive import Archive
from sluice.cdc_engine.source.archive_fetch import ArchiveFetch
from sluice.cdc_engine.source.iam import iam_token
from sluice.cdc_engine.source.in_use import SOURCE_FILE
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.settings import SourceConfig, SshConfig
from sluice.cdc_engine.source.tunnel import Bastion

if TYPE_CHECKING:
    from sluice.cdc_engine.parser.server_facts import ServerFacts


def read_by_engine(config: DestinationConfig, directory: Path) -> DestinationConfig:
    """Returns a copy of the settings whose `source` is the source that the engine reads now, for a run on any host: reads the copy of the
    record that the engine provides for runs. Raises NotSharedError if the copy cannot be read, and ConfigurationError if it is invalid.
    """
    return config.reading_now(for_runs.local_copy(directory, SOURCE_FILE).parent)


def source_of(config: DestinationConfig) -> Source:
    """Returns the source that the destination reads now."""
    return source_at(config, config.source)


def source_at(config: DestinationConfig, given: SourceConfig) -> Source:
    """Converts a source in conf/ to the value that connections use."""
    return Source(
        destination=config.name,
        host=given.host,
        port=given.port,
        user=given.user,
        password=given.password_now if given.auth == "password" else functools.partial(iam_token, given),
        tls_mode=given.tls.mode,
        ca_file=given.tls.ca_file,
        certificate_file=given.tls.certificate_file,
        key_file=given.tls.key_file,
        server_id=given.server_id,
        installation=config.installation,
        bastion=bastion_of(given.ssh) if given.ssh is not None else None,
    )


def reader_of(config: DestinationConfig) -> Source | None:
    """Returns the replica that Sluice reads instead of the source for snapshots and to find positions by time. Returns None if conf/ names
    no replica.
    """
    return source_at(config, config.reader) if config.reader is not None else None


def bastion_of(given: SshConfig) -> Bastion:
    """Converts the SSH settings in conf/ to a bastion, the SSH host through which connections to a source go."""
    return Bastion(
        host=given.host,
        port=given.port,
        user=given.user,
        key_file=given.key_file,
        known_hosts_file=given.known_hosts_file,
    )


def archive_of(config: DestinationConfig) -> Archive | None:
    """Returns the binlog archive, if conf/ names one."""
    fetch = ArchiveFetch(command=config.archive_fetch.command) if config.archive_fetch is not None else None
    return Archive(config.archive, fetch) if config.archive else None


def source_facts(config: DestinationConfig) -> ServerFacts:
    """Queries the source for its facts. Raises SourceConnectionError or ConfigurationError."""
    from sluice.cdc_engine.parser.connection import SourceConnection  # noqa: PLC0415  kernels, and definitions import this module
    from sluice.cdc_engine.parser.server_facts import read_facts  # noqa: PLC0415

    with contextlib.closing(SourceConnection(source_of(config))) as connection:
        return read_facts(connection)
