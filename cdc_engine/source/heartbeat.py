"""Checks whether a source is available, by repeating a query over one open connection."""

from __future__ import annotations

import pymysql

from sluice.cdc_engine.errors import AccessDeniedError, ConfigurationError, SluiceError
from sluice.cdc_engine.limits import HEARTBEAT_QUERY_SECONDS_MAX as SECONDS_MAX
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.session import SourceSession, error_code, open_session, session_error


class Heartbeat:
    """Checks whether one source is available. `sql` is any query that the account may run. An instance must be used from one thread
    only.
    """

    def __init__(self, source: Source, sql: str) -> None:
        self._source, self._sql = source, sql
        self._session: SourceSession | None = None

    def failure(self) -> str:
        """Sends the query. Returns "" if the source answered, otherwise the reason, which contains no secret. After a failure, the next
        call reconnects.

        Raises ConfigurationError if the source cannot be queried for another reason: a password, TLS file or package is missing on this
        host, or the source refuses the account. Such an error is no failure of the source, and a failover would not help, because a standby
        source would refuse the same password.
        """
        try:
            self._session = self._session or open_session(self._source, SECONDS_MAX, SECONDS_MAX)
            with self._session.cursor() as cursor:
                cursor.execute(self._sql)
                cursor.fetchall()
        except pymysql.err.MySQLError as error:
            translated = session_error(self._source, error_code(error), str(error.args[-1] if error.args else error))
            if isinstance(translated, AccessDeniedError):
                self.close()
                raise translated from error
            failure = str(translated)
        # Passes the error on, because a wrong configuration of this host is not a failure of the source.
        except ConfigurationError:
            self.close()
            raise
        except (OSError, SluiceError) as error:
            failure = f"{self._source.address}: {error}"
        else:
            return ""
        self.close()
        return failure

    def close(self) -> None:
        """Closes the connection without waiting for the server."""
        session, self._session = self._session, None
        if session is not None:
            session.drop()
