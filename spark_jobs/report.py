"""What a merge is told about a table, and what it tells about it afterwards. The callers of `merge_batch` see these two values."""

from __future__ import annotations

import dataclasses
from typing import Literal

from spark_jobs.errors import TableError
from spark_jobs.small.ways import Way, Wish
from spark_jobs.tables.layout import PLAIN, Layout
from spark_jobs.tables.shards import Shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableTarget:
    """The Delta table of a source table. `path`: absolute, or a URL that Spark and deltalake both know.

    `merge`: the way that conf/ asks for. `change_log`, `history`: the tables beside it, empty where there are none. `mirror`: whether there
    is a table with its rows at `path` at all, or only what would be beside it. `shard`: which rows of it are the source table's, where
    others have some too. `clash`: why no table may be made at its paths, a sentence; empty where one may.
    """

    path: str
    deletes: Literal["hard", "soft"] = "hard"
    deletion_vectors: bool = True
    merge: Wish = "spark"
    layout: Layout = PLAIN
    change_log: str = ""
    history: str = ""
    mirror: bool = True
    shard: Shard | None = None
    clash: str = ""

    def refuse_clash(self, name: str) -> None:
        """Raises TableError before a table of "database.table" is made that would lie at, or inside, another one's path."""
        if self.clash:
            raise TableError(name, f"{self.clash}; then `sluice schema resume`", for_good=True)

    @property
    def shared(self) -> bool:
        """Whether others have rows in it."""
        return self.shard is not None

    @property
    def beside(self) -> bool:
        """Whether there are tables beside it."""
        return bool(self.change_log or self.history)

    @property
    def kept(self) -> str:
        """The path of what has most of it."""
        return self.path if self.mirror else self.history or self.change_log


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableReport:
    """What one batch did to one table, from `delta_version_before` to `delta_version`.

    `source_inserts`, `source_updates`, `source_deletes`: changes of the source, by kind. Row counts are Delta's own of the commits of this
    call; a soft delete counts as an update, an appended image of a table without a key as an insert. `skipped`: the table had the whole
    batch already. `held`: its rows are being read, so the changes wait beside the lake. Order keys are those of the batch's first and last
    change. `way`: who merged it, and `reason`, why. `rows_copied`: rows that no change was of, written anew with their files.
    `files_scanned`, `files_pruned`: files that merges looked into, and that the keys' statistics spared them.
    `table_rows`, `table_bytes`: what the table has since, as far as its log says.
    """

    database: str
    table: str
    path: str
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    source_rows: int
    bytes: int
    merge_ms: int
    files_added: int
    files_removed: int
    delta_version: int
    delta_version_before: int
    source_inserts: int
    source_updates: int
    source_deletes: int
    start_order_key: int
    end_order_key: int
    first_commit_time_us: int
    last_commit_time_us: int
    columns: tuple[tuple[str, str], ...]
    skipped: bool
    way: Way = "spark"
    reason: str = ""
    held: bool = False
    rows_copied: int = 0
    files_scanned: int = 0
    files_pruned: int = 0
    table_rows: int | None = None
    table_bytes: int | None = None

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"
