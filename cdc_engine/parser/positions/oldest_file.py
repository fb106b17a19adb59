"""Tracks the oldest binlog file of a source. The age of this file shows how long the source really retains its binlog, whatever the
settings say. Does no I/O.

`instance.engine.source_watch` queries the source once per minute, and reads the creation time of each oldest file once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping

from sluice.cdc_engine.parser.providers.decision import DAY_HOURS, DAY_SECONDS, Provider, provider_of
from sluice.cdc_engine.parser.renumbering import comes_before
from sluice.cdc_engine.parser.server_facts import ServerFacts, oldest_file
from sluice.cdc_engine.parser.source_check import advice_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class OldestFile:
    """The source's oldest binlog file at the last query of the source. `purged` tells whether the source has purged files since this engine
    began to watch the source.

    `creations` has the known creation times by file name, in seconds since 1970: of files that the source still has, and of the newest
    purged file.
    """

    file: str = ""
    server_uuid: str = ""
    creations: Mapping[str, int] = dataclasses.field(default_factory=dict)
    purged: bool = False

    @property
    def created(self) -> int:
        """When the oldest file was created, in seconds since 1970. If this time is not known yet, because the file has just become the
        oldest one, returns the creation time of the newest purged file. Returns 0 if no creation time is known.
        """
        return next(
            (self.creations[each] for each in _newest_first(self.creations) if not comes_before(self.file, each)), 0
        )

    def unknown(self, facts: ServerFacts) -> tuple[str, ...]:
        """Returns the oldest file in `facts` if the next query must read its creation time. This is the case if the file was not the oldest
        one at the last query, or if its creation time is not known. Otherwise returns ().
        """
        file = oldest_file(facts)
        return () if not file or (file == self.file and file in self.creations) else (file,)

    def seen(self, facts: ServerFacts) -> OldestFile:
        """Returns an updated `OldestFile` after a query of the source that returned `facts`."""
        file, same = oldest_file(facts), facts.server_uuid == self.server_uuid
        if not file:
            return self
        renumbered = comes_before(file, self.file)
        purged = same and (comes_before(self.file, file) or (self.purged and not renumbered))
        known = {**(self.creations if same and not renumbered else {}), **facts.created}
        there = {log.file for log in facts.logs}
        gone = [each for each in _newest_first(known) if comes_before(each, file)]
        return OldestFile(
            file=file,
            server_uuid=facts.server_uuid,
            creations={each: known[each] for each in known if each in there or each in gone[:1]},
            purged=purged,
        )

    def age_seconds(self, now: float) -> float | None:
        """Returns the age of the oldest file in seconds, or None if the age is unknown."""
        return max(0.0, now - self.created) if self.created else None

    def kept_seconds(self, facts: ServerFacts, now: float) -> float:
        """Returns for how many seconds the source was observed to retain its binlog, or infinity if no observation contradicts its
        settings.

        After a purge, the result is the age of the oldest file. Before a purge, or if this age is unknown, the result is infinity.
        Exception: on Cloud SQL, no query shows the retention, which is at least a day. There, the result before a purge is the age of the
        oldest file, but at least a day.
        """
        age = self.age_seconds(now)
        if age is not None and self.purged:
            return age
        if age is not None and provider_of(facts.provider) is Provider.CLOUD_SQL:
            return max(DAY_SECONDS, age)
        return math.inf


def purges_early(oldest: OldestFile, facts: ServerFacts, now: float, hours_min: float = DAY_HOURS) -> str:
    """Returns a sentence if the source purged binlog files younger than `hours_min` hours, otherwise ""."""
    if not oldest.purged or oldest.kept_seconds(facts, now) >= hours_min * 3600:
        return ""
    return (
        f"the source purged its binlog up to {oldest.file}, a file that is less than {hours_min:g} h old, "
        "although its settings keep files longer: if the source purges a file that a stopped engine still "
        f"needs, the engine loses its position (POSITION_LOST); {advice_of(facts).keep_more}"
    )


def _newest_first(files: Iterable[str]) -> list[str]:
    """Returns binlog file names with the highest number first."""

    def order(one: str, two: str) -> int:
        return comes_before(one, two) - comes_before(two, one)

    return sorted(files, key=functools.cmp_to_key(order))
