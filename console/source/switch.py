"""Implements `sluice source`: lists the sources of a destination, says from which sources the stream can continue, and switches to another
source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rich.table import Table

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import ActRefusedError, ConfigurationError
from sluice.cdc_engine.instance.failover.by_time import by_time_of
from sluice.cdc_engine.instance.failover.failover import sources_of, takeover_answer
from sluice.cdc_engine.instance.failover.takeover import TakeoverAnswer, in_order, refusal
from sluice.cdc_engine.parser.start_position import Epochs
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.source.in_use import use
from sluice.cdc_engine.source.server import Source
from sluice.console.source.query import require_destination


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedSource:
    """One source of a destination. `number` is the source's number in conf/, starting at 1. `reading`: the engine reads this source now.
    `server_uuid` is empty if the source did not answer. `refused` says why the stream cannot continue from this source, and is empty if the
    stream can continue.
    """

    number: int
    address: str
    reading: bool
    server_uuid: str
    refused: str


def listed(
    config: SluiceConfig, name: str, query: Callable[[Source, str], TakeoverAnswer] = takeover_answer
) -> list[ListedSource]:
    """Returns the sources of a destination. Queries each source to find out whether the stream can continue from it. The stream would
    continue after the end of the last batch in flight or, if there is none, after the cursor. `query` gets a source and the binlog file of
    this position, or "" if there is no position, and returns the source's answer.
    """
    destination = require_destination(config, name)
    ledger = read_ledger(config.destination_dir(name))
    position, epochs = ledger.resume_position, Epochs(highest=ledger.epoch, unfinished=ledger.unfinished)
    captured, found = TableFilter(destination.include, destination.exclude).keeps, []
    for number, (address, source) in enumerate(sources_of(destination).items(), 1):
        answer = query(source, position.file if position else "")
        found.append(
            ListedSource(
                number=number,
                address=address,
                reading=address == destination.source.address,
                server_uuid=answer.facts.server_uuid if answer.facts else "",
                refused=refusal(position, answer, epochs, by_time_of(source, destination, captured)),
            )
        )
    return found


def render(sources: list[ListedSource]) -> Table:
    shown = Table("source", "address", "", "server", "can take over")
    for each in sources:
        state = "is read" if each.reading else "stands by"
        shown.add_row(str(each.number), each.address, state, each.server_uuid, each.refused or "yes")
    return shown


def switch(
    config: SluiceConfig, name: str, to: int = 0, query: Callable[[Source, str], TakeoverAnswer] = takeover_answer
) -> ListedSource:
    """Switches to source number `to`. If `to` is 0, switches to the next source from which the stream can continue. A running engine
    switches at its next heartbeat. Returns the source that will be read.

    Raises ConfigurationError if conf/ has no such source or only one source, and ActRefusedError if the stream cannot continue from it.
    """
    sources = listed(config, name, query)
    if len(sources) == 1:
        raise ConfigurationError(
            f"{name} has only one source; to switch, name standby sources under `sources` in conf/destinations/{name}.yaml"
        )
    if not 0 <= to <= len(sources):
        raise ConfigurationError(f"{name} has no source {to}: give a number from 1 to {len(sources)}")
    by_address = {each.address: each for each in sources}
    reading = next(each.address for each in sources if each.reading)
    candidates = [sources[to - 1]] if to else [by_address[each] for each in in_order(tuple(by_address), reading)]
    able = next((each for each in candidates if not each.refused), None)
    if able is None:
        why = "; ".join(f"{each.address}: {each.refused}" for each in candidates)
        raise ActRefusedError(f"nothing was changed, and the engine still reads {reading}: {why}")
    use(config.destination_dir(name), able.address, "by command")
    return able
