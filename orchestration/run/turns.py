"""The turns of a destination's runs at Delta tables that other destinations write too, by the locks beside the ledgers. Runs call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cdc_engine.destination_files import LakeTables, TableLock, installation_id
from orchestration.run.lake_settings import target

if TYPE_CHECKING:
    from cdc_engine.config import SluiceConfig
    from spark_jobs.report import TableTarget
    from spark_jobs.turns import Turns


def turns_of(config: SluiceConfig, destination: str, run: str = "") -> Turns:
    """Of one run. `run`: its id, for who waits for it."""
    from spark_jobs.turns import Turns  # noqa: PLC0415  pyspark takes a second to import

    place = config.meta_place(destination)

    def lock(path: str) -> TableLock:
        return TableLock(place, path.removeprefix(config.lake))

    who = f"run {run} of {destination}" if run else f"a run of {destination}"
    return Turns(lock=lock, who=who)


def written_target(config: SluiceConfig, destination: str) -> Callable[[str], TableTarget]:
    """Where tables are, for who writes them, by "database.table". It raises MetaError where the place of the locks does not answer, which
    nobody asks where no table is a shard.
    """
    known: list[str] = []

    def find(name: str) -> TableTarget:
        found = target(config, destination, name)
        if found.shard is None:
            return found
        if not known:
            known.append(installation_id(config.meta_place(destination)))
        return target(config, destination, name, locks=known[0])

    return find


def writers_of(config: SluiceConfig, destination: str, name: str) -> dict[str, tuple[str, ...]]:
    """The destinations of conf/ with shards in the Delta table of this one, and the "database.table" of these: their cuts need its files
    too. Raises MetaError.
    """
    place = target(config, destination, name)
    others = [each for each in config.destinations if place.shared and each != destination]
    found = {each: LakeTables(config.destination_dir(each)).names for each in others}
    sharing = {
        each: tuple(one for one in names if target(config, each, one).path == place.path)
        for each, names in found.items()
    }
    return {destination: (name,), **{each: names for each, names in sharing.items() if names}}
