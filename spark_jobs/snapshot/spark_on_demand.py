"""Opens a Spark session only if a publication needs Spark. `publish`, and runs that publish many tables, use this module."""

from __future__ import annotations

import contextlib

from sluice.spark_jobs.fence import READ_ONLY, Fence
from sluice.spark_jobs.session import LakeSession, SparkSettings, has_left_over_sessions, open_sessions


class SparkOnDemand:
    """One Spark session that is opened at its first use and released by `release`. A later use opens another session.

    A run uses this object for all of its publications. The run calls `release` before it releases the run lock, because the next holder of
    the lock ends all sessions that are still open. `fence` is the fence of the current publication.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self.settings, self.fence = settings, READ_ONLY
        self._opened = contextlib.ExitStack()
        self._session: LakeSession | None = None
        self._defaults: tuple[str, ...] | None = None

    def begin(self, fence: Fence) -> None:
        """Begins a publication. If a killed run may have left statements in Spark, opens the session, which ends these statements.
        Otherwise such a statement could later replace a table that this run publishes without Spark. Raises SparkUnavailableError if Spark
        does not answer.
        """
        self.fence = fence
        if self._session is not None:
            self._session.fence = fence
        elif has_left_over_sessions(self.settings):
            _ = self.session

    @property
    def session(self) -> LakeSession:
        """The session, which is opened at its first use. Raises SparkUnavailableError if Spark does not answer."""
        if self._session is None:
            (self._session,) = self._opened.enter_context(open_sessions(self.settings, 1, self.fence))
        return self._session

    def defaults_of_tables(self) -> tuple[str, ...]:
        """Returns the table properties that this Spark sets on new Delta tables by default, except those that Sluice always sets. Reads
        them once per run, because a server's settings change only with its restart. Raises SparkUnavailableError if Spark does not answer.
        """
        if self._defaults is None:
            self._defaults = self.session.defaults_of_tables()
        return self._defaults

    def release(self) -> None:
        """Releases the session, if one is open."""
        self._session = None
        self._opened.close()
