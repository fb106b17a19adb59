"""Decides when to rewrite the files of a table, and for how long to keep files that are no longer part of it. Pure functions, which
`tables` calls.

Each merge adds small files, or marks rows of files as deleted. Every file and every marked row slows down readers and later merges, while a
rewrite reads and writes the bytes of the files only once. The limits below are chosen so that a merge stays about as fast as on a newly
written table. Large files are rewritten only if they are no longer ordered by key, because a merge then reads most of them.
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
# Files smaller than SMALL_BYTES are joined into files of up to FILE_BYTES.
SMALL_BYTES, FILE_BYTES = 32 * MIB, 128 * MIB
SMALL_FILES_MAX = 20
DELETED_SHARE_MAX = 0.05  # Delta's OPTIMIZE rewrites a file whose share of deleted rows is larger than this.
DEPTH_MAX, DEPTH_FILES_MIN = 4.0, 8
# A rewrite of the whole table in the order of the key (CLUSTER) is due only if at least this share of the large files is new since the last
# CLUSTER. With a smaller share, many rows would be rewritten for few new ones.
FRESH_SHARE_MIN = 0.25
# Without an operator's request, a rewrite is limited to this many bytes, because it takes minutes and merges wait meanwhile. The first
# limit is for the bytes of the files that are joined (COMPACT). The second limit is for the bytes of the whole table (CLUSTER).
COMPACT_BYTES_MAX = CLUSTER_BYTES_MAX = 16 << 30
# Delta's default: for how long it keeps files that are no longer part of a table.
RETENTION_HOURS = 168.0
# Delta accepts intervals with and without the word "interval", and with several units.
_PART = re.compile(r"(?P<count>\d+)\s+(?P<unit>second|minute|hour|day|week)s?\s*")
_HOURS = {"second": 1 / 3600, "minute": 1 / 60, "hour": 1, "day": 24, "week": 168}
# VACUUM keeps files this much longer than the newest consistent snapshot needs them, because a reader may still be reading that snapshot.
MARGIN_HOURS = 1.0


class MaintenanceAct(enum.StrEnum):
    """What maintenance does to a table. COMPACT joins small files and removes rows that are marked as deleted. CLUSTER rewrites all files
    in the order of the key.
    """

    NOTHING = "nothing"
    COMPACT = "compact"
    CLUSTER = "cluster"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Statistics of the files of one table version.

    - `deleted` is the number of rows that are marked as deleted.
    - `compact_bytes` is what COMPACT would rewrite: small files, and files whose share of marked rows is above DELETED_SHARE_MAX.
    - `depth` is the average number of large files whose key ranges overlap the key range of one large file, counting this file itself. It
      is 0 if key ranges are unknown.
    - `fresh_files` are the large files written since the last CLUSTER. CLUSTER is due only if there are enough of them. The depth alone
      does not suffice: if the key's first column has few values, CLUSTER does not reduce the depth, and would be due after every merge.
    - `rounded_files` are the files in whose statistics deltalake rounded the minimum and maximum.
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


def due(facts: FileFacts, *, wanted: bool = False) -> tuple[MaintenanceAct, str]:
    """Returns which maintenance is due now, and why. CLUSTER is due in any case if the minimum and maximum of a file are rounded.

    `wanted` says that an operator requested maintenance. COMPACT is then due as soon as there are two small files or one row that is marked
    as deleted. One new large file is enough for CLUSTER if the files overlap too much. The limits COMPACT_BYTES_MAX and CLUSTER_BYTES_MAX
    do not apply.
    """
    # The limits of bytes do not apply to this rewrite, because readers miss rows while the minimum or maximum of a file is wrong.
    if facts.rounded_files:
        return (
            MaintenanceAct.CLUSTER,
            f"the minimum and maximum of {facts.rounded_files} files are rounded, so readers can miss rows",
        )
    if facts.large_files >= DEPTH_FILES_MIN and facts.depth > DEPTH_MAX and _helps(facts, wanted=wanted):
        return MaintenanceAct.CLUSTER, f"a key lies within the key range of {facts.depth:.1f} large files on average"
    if facts.small_files > (1 if wanted else SMALL_FILES_MAX):
        return _compacted(facts, f"{facts.small_files} files of the table are small", wanted=wanted)
    if facts.deleted > (0 if wanted else facts.rows * DELETED_SHARE_MAX):
        why = f"{facts.deleted} of {facts.rows} rows in the files are marked as deleted"
        return _compacted(facts, why, wanted=wanted)
    return MaintenanceAct.NOTHING, "no file needs to be rewritten"


def _compacted(facts: FileFacts, why: str, *, wanted: bool) -> tuple[MaintenanceAct, str]:
    if wanted or facts.compact_bytes <= COMPACT_BYTES_MAX:
        return MaintenanceAct.COMPACT, why
    return MaintenanceAct.NOTHING, (
        f"{why}, but {facts.compact_bytes} bytes are too many to rewrite while merges wait; to rewrite the "
        "files anyway: `sluice maintain DESTINATION --tables DATABASE.TABLE --optimize`"
    )


def _helps(facts: FileFacts, *, wanted: bool) -> bool:
    """Returns whether CLUSTER is worthwhile: at least FRESH_SHARE_MIN of the large files are new since the last CLUSTER, and merges can
    wait for the rewrite, because the table has at most CLUSTER_BYTES_MAX bytes. If `wanted`, one new large file is enough.
    """
    if wanted:
        return facts.fresh_files > 0
    return facts.fresh_files >= facts.large_files * FRESH_SHARE_MIN and facts.bytes <= CLUSTER_BYTES_MAX


def depth_of(lows: Sequence[Any], highs: Sequence[Any]) -> float:
    """Counts, for each range [low, high], the ranges that overlap it, including the range itself. Returns the average of these numbers, or
    0 if there are no ranges.
    """
    if not len(lows):
        return 0.0
    low, high = np.asarray(lows), np.asarray(highs)
    begun = np.searchsorted(np.sort(low), high, side="right")
    ended = np.searchsorted(np.sort(high), low, side="left")
    return float(np.mean(begun - ended))


def hours_kept(retention_hours: float, newest_snapshot_age_hours: float | None) -> float:
    """Returns for how many hours to keep files that are no longer part of a table. The result is long enough that the newest consistent
    snapshot stays readable, however old it is.

    Returns whole hours, as Delta's properties require. A snapshot can be old: if a destination stops while a batch is merged in part, some
    of its tables are at later versions than the newest snapshot. MARGIN_HOURS applies even if there is no snapshot, because a VACUUM of
    zero hours would delete the files of a commit in progress.
    """
    return float(math.ceil(max(retention_hours, (newest_snapshot_age_hours or 0.0) + MARGIN_HOURS)))


def log_hours(log_days: int, kept_hours: float) -> int:
    """Returns for how many hours to keep a table's log: at least `log_days` days, and at least one day longer than `kept_hours`, the
    time for which files are kept after they are no longer part of the table. VACUUM finds these files in the log.
    """
    return math.ceil(max(log_days * 24, kept_hours + 24))


def hours_of(interval: str) -> float:
    """Returns the hours of a table property in Delta's interval format. Returns Delta's default if the property is empty or cannot be
    parsed.
    """
    text = re.sub(r"interval\s+", "", interval.strip().lower(), count=1)
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        return RETENTION_HOURS
    return math.fsum(int(part["count"]) * _HOURS[part["unit"]] for part in parts)


def snapshot_hours(hours: float, logged_hours: float, newest_snapshot_age_hours: float | None) -> float:
    """Returns the number of past hours whose consistent snapshots can all be read after a VACUUM that keeps removed files for `hours`.

    VACUUM also deletes files that the table's log does not name, and the log names removed files only for `logged_hours`. So the result is
    the smaller of `hours` and `logged_hours`. If the age of the newest snapshot plus MARGIN_HOURS is more than `logged_hours`, this sum
    counts instead of `logged_hours`, because the newest snapshot can always be read.
    """
    needed = 0.0 if newest_snapshot_age_hours is None else newest_snapshot_age_hours + MARGIN_HOURS
    return min(hours, max(logged_hours, needed))
