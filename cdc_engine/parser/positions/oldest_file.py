"""The oldest binlog file of a source, watched over time: what the source keeps in fact, whatever its settings say. Pure;
`instance.source_watch` calls it once per minute and reads the creation time of a file once.
"""

from __future__ import annotations

import dataclasses
import math

from sluice.cdc_engine.parser.providers.decision import DAY_SECONDS
from sluice.cdc_engine.parser.renumbering import comes_before
from sluice.cdc_engine.parser.server_facts import ServerFacts, oldest_file
from sluice.cdc_engine.parser.source_check import advice_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class OldestFile:
    """The oldest file when the source was last queried. `created`: in seconds since 1970, 0 if it is not known yet. `purged`: older files
    were purged while this engine watched.
    """

    file: str = ""
    server_uuid: str = ""
    created: int = 0
    purged: bool = False

    def unknown(self, facts: ServerFacts) -> tuple[str, ...]:
        """Returns the file whose creation time the next query should read; empty if it is known."""
        file = oldest_file(facts)
        return () if not file or (file == self.file and self.created) else (file,)

    def seen(self, facts: ServerFacts) -> OldestFile:
        """Returns what is known after another query."""
        file, same = oldest_file(facts), facts.server_uuid == self.server_uuid
        if not file:
            return self
        purged = same and (comes_before(self.file, file) or (self.purged and not comes_before(file, self.file)))
        known = self.created if same and file == self.file else 0
        return OldestFile(
            file=file,
            server_uuid=facts.server_uuid,
            created=facts.created.get(file, known),
            purged=purged,
        )

    def age_seconds(self, now: float) -> float | None:
        """Returns the age of the oldest file, None if it is not known."""
        return max(0.0, now - self.created) if self.created else None

    def kept_seconds(self, now: float) -> float:
        """Returns how long the source keeps its binlog as far as a purge was seen; otherwise infinity."""
        age = self.age_seconds(now)
        return math.inf if age is None or not self.purged else age


def purges_early(oldest: OldestFile, facts: ServerFacts, now: float) -> str:
    """Returns a sentence if the source was seen to purge binlog files that were less than a day old; otherwise an empty text."""
    if oldest.kept_seconds(now) >= DAY_SECONDS:
        return ""
    return (
        f"the source purged its binlog up to {oldest.file}, a file that is less than a day old, whatever its settings promise: an engine "
        f"that is stopped while a file that it needs is purged loses its position (POSITION_LOST); {advice_of(facts).keep_more}"
    )
