"""Queries the source of a destination once, as the engine does at its start, for `sluice check`, `sluice init` and `sluice position`."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, path_clashes
from sluice.cdc_engine.contracts import DestinationDir
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.table_meta.table_list.reading import read_tables

if TYPE_CHECKING:  # Importing the engine takes seconds, and `sluice up` does not need it.
    from sluice.cdc_engine.parser.server_facts import ServerFacts
    from sluice.cdc_engine.source.server import Source


@dataclasses.dataclass(frozen=True)
class AnsweredSource:
    """A source, and the facts that the source reported about itself: version, binlog, GTIDs, privileges."""

    source: Source
    facts: ServerFacts


def query_source(destination: DestinationConfig) -> AnsweredSource:
    """Connects to the source of a destination, reads the source's facts, and disconnects. Raises ConfigurationError if the settings are
    invalid, and SourceConnectionError if the source does not answer.
    """
    from sluice.cdc_engine.instance.sources import source_of  # noqa: PLC0415
    from sluice.cdc_engine.parser.connection import SourceConnection  # noqa: PLC0415
    from sluice.cdc_engine.parser.server_facts import read_facts, with_oldest_file  # noqa: PLC0415

    source = source_of(destination)
    with contextlib.closing(SourceConnection(source)) as connection:
        return AnsweredSource(source, with_oldest_file(source, read_facts(connection)))


def oldest_sentence(facts: ServerFacts, now: float) -> str:
    """Returns a clause with the age of the source's oldest binlog file, which the caller appends to a sentence. Returns "" if the age is
    unknown. `now` is in seconds since 1970.
    """
    from sluice.cdc_engine.parser.server_facts import oldest_file  # noqa: PLC0415

    file = oldest_file(facts)
    created = facts.created.get(file, 0)
    return f"; its oldest binlog file {file} is {max(0.0, now - created) / 3600:.1f} h old" if created else ""


def known_path_clashes(config: SluiceConfig) -> list[str]:
    """Returns a message for each table whose Delta path equals the path of another table or is inside the other table's folder. Checks the
    tables that an engine, or the last discovery of the source, has recorded.
    """
    tables = {
        name: sorted(table.name for table in read_tables(config.destination_dir(name))) for name in config.destinations
    }
    return path_clashes(config, tables)


def require_destination(config: SluiceConfig, name: str) -> DestinationConfig:
    """Returns the settings of a destination. Raises ConfigurationError if the name is that of a group, or if conf/ does not have the
    destination. The message lists the group's members or the destinations in conf/.
    """
    if name in config.groups:
        members = ", ".join(config.groups[name].members)
        raise ConfigurationError(
            f"{name} is a group, which has no source and no lake; name one of its members: {members}"
        )
    if name not in config.destinations:
        known = ", ".join(sorted(config.destinations)) or "none; add conf/destinations/NAME.yaml"
        raise ConfigurationError(f"the destination {name!r} does not exist; configured destinations: {known}")
    return config.destinations[name]


def engine_dir(config: SluiceConfig, name: str) -> DestinationDir:
    """Returns the directory of a destination or group. Raises ConfigurationError if conf/ has no destination or group of this name."""
    if name not in config.groups:
        require_destination(config, name)
    return config.destination_dir(name)
