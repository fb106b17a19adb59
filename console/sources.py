"""Asks a configured source about itself, once, as the engine would; for `sluice check` and `sluice position`."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from cdc_engine.config import DestinationConfig, SluiceConfig, path_clashes
from cdc_engine.contracts import DestinationDir
from cdc_engine.errors import ConfigurationError
from cdc_engine.table_meta.history.tables_file import TABLES_FILE, read_tables

if TYPE_CHECKING:  # the engine takes seconds to import, and `sluice up` needs nothing of it here
    from cdc_engine.parser.server_facts import ServerFacts
    from cdc_engine.source.server import Source


@dataclasses.dataclass(frozen=True)
class Asked:
    """A source and what it said."""

    source: Source
    facts: ServerFacts


def ask_source(destination: DestinationConfig) -> Asked:
    """Connects, asks, and closes. Raises ConfigurationError, SourceConnectionError."""
    from cdc_engine.instance.wiring import source_of  # noqa: PLC0415
    from cdc_engine.parser.connection import SourceConnection  # noqa: PLC0415
    from cdc_engine.parser.server_facts import read_facts  # noqa: PLC0415

    source = source_of(destination)
    with contextlib.closing(SourceConnection(source)) as connection:
        return Asked(source, read_facts(connection))


def known_path_clashes(config: SluiceConfig) -> list[str]:
    """`config.path_clashes` of the tables that the engines, or the last look at the sources, wrote down."""
    tables = {
        name: sorted(table.name for table in read_tables(config.destination_dir(name) / TABLES_FILE))
        for name in config.destinations
    }
    return path_clashes(config, tables)


def require_destination(config: SluiceConfig, name: str) -> DestinationConfig:
    """Raises ConfigurationError naming those that there are."""
    if name in config.groups:
        members = ", ".join(config.groups[name].members)
        raise ConfigurationError(
            f"{name} is a group, without a source and a lake of its own; say one of its members: {members}"
        )
    if name not in config.destinations:
        known = ", ".join(sorted(config.destinations)) or "none; add conf/destinations/NAME.yaml"
        raise ConfigurationError(f"there is no destination {name!r}; configured: {known}")
    return config.destinations[name]


def engine_dir(config: SluiceConfig, name: str) -> DestinationDir:
    """Of what has an engine: a destination or a group. Raises ConfigurationError."""
    if name not in config.groups:
        require_destination(config, name)
    return config.destination_dir(name)
