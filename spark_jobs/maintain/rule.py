"""When it pays to write files of a table anew, and how long files that are no longer of it must stay. Pure; `tables` asks.

Each merge leaves small files, or marks rows of files as deleted. A reader, and the next merge, pays for each file and each marked row; to
write them anew costs their bytes once. So they are let pile up to a bound, by which the next merge is still about as quick as on a fresh
table. Large files are written anew only where they have lost the order of the key, so that a merge meets most of them.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

MIB = 1 << 20
SMALL_BYTES, FILE_BYTES = 32 * MIB, 128 * MIB  # what is smaller is joined, up to files of this size
SMALL_FILES_MAX = 20
DELETED_SHARE_MAX = 0.05  # of the rows; from then on Delta takes a file for one to be written anew
DEPTH_MAX, DEPTH_FILES_MIN = 4.0, 8
FRESH_SHARE_MIN = 0.25  # of the large files: so many times its own bytes does a change cost at most
# minutes of work, for which merges wait; beyond it somebody must want it
COMPACT_BYTES_MAX = CLUSTER_BYTES_MAX = 16 << 30
RETENTION_HOURS = 168.0  # Delta's own, where a table says nothing
_INTERVAL = re.compile(r"interval (?P<count>\d+) (?P<unit>hour|day|week)s?", re.IGNORECASE)
_HOURS = {"hour": 1, "day": 24, "week": 168}
MARGIN_HOURS = 1.0  # beyond what the newest cut needs, for who reads it now


class Act(enum.StrEnum):
    """NOTHING; COMPACT: small files are joined, and marked rows left out; CLUSTER: all is written anew, in the order of the key."""

    NOTHING = "nothing"
    COMPACT = "compact"
    CLUSTER = "cluster"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFacts:
    """A version of a table. `deleted`: rows that are marked. `compact_bytes`: of what COMPACT writes anew: small files, and
    those whose own marked rows are above DELETED_SHARE_MAX. `depth`: how many of the large files share a key with one of them, itself
    counted, in the mean; 0 where nothing is known of keys. `fresh_files`: large ones that were written since all was last in order; a key
    whose first column has few values keeps its depth whatever is done. `rounded_files`: those with bounds that deltalake rounded.
    """

    files: int = 0
    small_files: int = 0
    rows: int = 0
    bytes: int = 0
    deleted: int = 0
    compact_bytes: int = 0
    large_files: int = 0
    fresh_files: int = 0
    depth: float = 0.0
    rounded_files: int = 0
    version: int = -1


def due(facts: FileFacts, *, wanted: bool = False) -> tuple[Act, str]:
    """What pays now, and why. `wanted`: whatever there is to do is done."""
    if facts.rounded_files:  # whatever it costs
        return Act.CLUSTER, f"{facts.rounded_files} of its files have rounded bounds, by which readers skip rows"
    if facts.large_files >= DEPTH_FILES_MIN and facts.depth > DEPTH_MAX and _helps(facts, wanted=wanted):
        return Act.CLUSTER, f"a key lies in the range of {facts.depth:.1f} large files in the mean"
    if facts.small_files > (1 if wanted else SMALL_FILES_MAX):
        return _compacted(facts, f"{facts.small_files} of its files are small", wanted=wanted)
    if facts.deleted > (0 if wanted else facts.rows * DELETED_SHARE_MAX):
        why = f"{facts.deleted} of {facts.rows} rows are marked as deleted in its files"
        return _compacted(facts, why, wanted=wanted)
    return Act.NOTHING, "its files are as they should be"


def _compacted(facts: FileFacts, why: str, *, wanted: bool) -> tuple[Act, str]:
    if wanted or facts.compact_bytes <= COMPACT_BYTES_MAX:
        return Act.COMPACT, why
    return Act.NOTHING, (
        f"{why}, but {facts.compact_bytes} bytes are too many to be written anew while merges wait, unless somebody wants it: "
        "`sluice maintain DESTINATION --tables DATABASE.TABLE --optimize`"
    )


def _helps(facts: FileFacts, *, wanted: bool) -> bool:
    """Whether enough has come since all was last in order, and merges can wait for so long."""
    if wanted:
        return facts.fresh_files > 0
    return facts.fresh_files >= facts.large_files * FRESH_SHARE_MIN and facts.bytes <= CLUSTER_BYTES_MAX


def depth_of(lows: Sequence[Any], highs: Sequence[Any]) -> float:
    """In the mean, how many ranges [low, high] share a value with one of them, itself counted; 0 where there are none."""
    if not len(lows):
        return 0.0
    low, high = np.asarray(lows), np.asarray(highs)
    begun = np.searchsorted(np.sort(low), high, side="right")
    ended = np.searchsorted(np.sort(high), low, side="left")
    return float(np.mean(begun - ended))


def hours_kept(retention_hours: float, newest_cut_age_hours: float | None) -> float:
    """How long files that left a table must stay, so that the newest cut can be read, whenever it was published.

    Whole hours, as Delta's properties want them. A destination that stands still while a batch is merged in part has tables that are
    further than its newest cut. Without a cut the margin stays: a VACUUM of no hours would take the files of a commit that is under way.
    """
    return float(math.ceil(max(retention_hours, (newest_cut_age_hours or 0.0) + MARGIN_HOURS)))


def log_hours(log_days: int, kept_hours: float) -> int:
    """How long a table's log must stay: for as long as the files that left it, and a day, or VACUUM would not know them."""
    return math.ceil(max(log_days * 24, kept_hours + 24))


def hours_of(interval: str) -> float:
    """Of a table's property, as Delta spells it; Delta's own where there is none."""
    found = _INTERVAL.fullmatch(interval.strip())
    return float(found["count"]) * _HOURS[found["unit"].lower()] if found else RETENTION_HOURS


def cut_hours(hours: float, logged_hours: float, newest_cut_age_hours: float | None) -> float:
    """Cuts of so many hours are whole once VACUUM has taken what left a table more than `hours` ago.

    `logged_hours`: so long a table's log has told which files left it, until now; what left before looks like nobody's, and goes. The
    newest cut stays in any case.
    """
    needed = 0.0 if newest_cut_age_hours is None else newest_cut_age_hours + MARGIN_HOURS
    return min(hours, max(logged_hours, needed))
