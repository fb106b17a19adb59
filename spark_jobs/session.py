"""Creates Spark sessions, attached to a Spark Connect server or inside this process. Only this module creates them.

Each table gets a Spark session of its own, because `txnAppId` and `txnVersion` are settings of a session and tables are merged in parallel.
`run_batch` opens the sessions. Their IDs are stored in a small file, so that a later run can end what a killed run left running on the
server."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import logging
import os
import re
import socket
import sys
import urllib.parse
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.secret_values import SecretUnavailable, filled_text
from sluice.spark_jobs.errors import LAKE_TROUBLE, SparkUnavailableError, TableError
from sluice.spark_jobs.fence import READ_ONLY, Fence
from sluice.spark_jobs.old_spark import explained, fill_old_field
from sluice.spark_jobs.uploaded_files import UploadedFiles, UploadSettings, uploaded_files

logger = logging.getLogger(__name__)

CONNECT_PORT = 15002  # Spark Connect's default
CONNECT_SECONDS_MAX = 10.0
RETRIES_MAX = 4  # The attempts per call, 50 ms to 2 s apart. A server that does not answer for some 4 s is down.
RETRY_MILLISECONDS_MAX = 2000
TOKEN = re.compile(r";token=([^;]*)")
USER_ID = "sluice"  # Sessions belong to a user. A later run under another account must find them.
TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
TABLE_DEFAULTS = "spark.databricks.delta.properties.defaults."
# Sluice always sets this property itself, so a default has no effect.
KNOWN_DEFAULTS = frozenset({f"{TABLE_DEFAULTS}enableDeletionVectors"})
COMMITS = re.compile(
    r"\s*(MERGE|INSERT|UPDATE|DELETE|TRUNCATE|ALTER|OPTIMIZE|VACUUM|RESTORE|CREATE\s+(OR\s+REPLACE\s+)?TABLE)\b",
    re.IGNORECASE,
)
# Only one of the causes of Spark's error says this: the message of the task that failed to write.
DISK_TROUBLE = re.compile(r"no space left|disk quota exceeded|read-only file system", re.IGNORECASE)
AWAY = ("UNAVAILABLE", "INVALID_HANDLE", "SESSION_CHANGED", "SESSION_CLOSED", "SESSION_NOT_FOUND", "RETRIES_EXCEEDED")

SESSION_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # If the setting stayed after its write, the next write would get the wrong version.
    "spark.databricks.delta.write.txnVersion.autoReset.enabled": "true",
    # Staged files never change, so the source need not be copied before the merge.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
# By default Spark replaces `${name}` in statements. A key of the source may contain it, and in a comment `${env:NAME}` would show a
# variable of Spark's process.
UNCHANGED_STATEMENTS: Mapping[str, str] = {"spark.sql.variable.substitute": "false"}
SESSIONS_MIN, SESSIONS_MAX = 2, 16  # The upper bound is the driver's: it plans and commits each MERGE.
SLOTS_A_SESSION = 2  # A MERGE has phases of one task, in which another one uses the slots.
SPLITS = re.compile(r"\bsplits=(?:Some\()?(\d+)")  # in the plan of a range
NO_OPTIONS: Mapping[str, str] = {}
# A session with files of its own also gets Python workers of its own, whose daemon starts with the session and outlives
# it. Our sessions have no files.
SHARED_WORKERS: Mapping[str, str] = {"spark.sql.artifact.isolation.enabled": "false"}
# In a small merge, compiling generated code costs more than processing the rows, and every new session compiles again.
# On a warm server without code generation, 50 changes per table take half the time; 75 k changes into 75 k rows take
# half the CPU; at 300 k into 375 k both take the same.
SMALL_SETTINGS: Mapping[str, str] = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # Rewriting a few small files is faster than deletion vectors, which need another Spark job and keep the old files.
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
}
# The changes plus the rows of files that they may match. Above this number, compiled code is faster.
SMALL_ROWS_MAX = 200_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """How Spark is reached. `master` takes precedence if it is set. `options`: session settings (with `master`, also `spark.jars` and
    others).

    `environment`: credentials for the process of a `master`, because a setting would be visible in its command line. `uploads`: where
    files of the run are uploaded for Spark. `sessions`: how many sessions a batch may use; 0: as many as Spark's task slots suffice for.
    """

    remote: str = f"sc://127.0.0.1:{CONNECT_PORT}"
    master: str = ""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    sessions_file: Path | None = None
    uploads: UploadSettings = dataclasses.field(default_factory=UploadSettings)
    sessions: int = 0


class LakeSession:
    """One Spark session. Threads that merge at the same time must not share it.

    `shares_workers`: its Python tasks run in workers that earlier sessions used; otherwise each session leaves a process on the executor.
    """

    def __init__(self, spark: Any, *, shares_workers: bool = True) -> None:
        self.spark = spark
        self.shares_workers = shares_workers
        self.uploaded = UploadedFiles(UploadSettings())
        self.fence = READ_ONLY
        self._small = False

    def configure(self, settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            self.spark.conf.set(name, value)

    def sql(self, statement: str) -> None:
        """Executes a statement that commits nothing, without fetching its result. Raises ValueError if the statement commits."""
        if COMMITS.match(statement):
            raise ValueError(
                f"a statement that commits must go through LakeSession.commit, which checks the fence: {statement[:40]}"
            )
        logger.debug("%s", statement)
        self.spark.sql(statement)

    def commit(self, name: str, statement: str) -> None:
        """Executes a statement that writes the Delta table of `name` ("database.table"). Raises TableError if the fence refuses it."""
        logger.debug("%s", statement)
        self.fence.check(name)
        self.spark.sql(statement)

    def commit_as(self, app_id: str, version: int, user_metadata: str) -> None:
        """Sets the transaction of the next Delta write of this session. Delta drops the write if the table has the transaction already."""
        self.configure({TXN_APP_ID: app_id, TXN_VERSION: str(version), USER_METADATA: user_metadata})

    def defaults_of_tables(self) -> tuple[str, ...]:
        """Returns the default properties that this Spark sets on new Delta tables, except those that Sluice always sets."""
        return tuple(
            name for name in self.spark.conf.getAll if name.startswith(TABLE_DEFAULTS) and name not in KNOWN_DEFAULTS
        )

    def commit_without_version(self, user_metadata: str) -> None:
        """Makes the next Delta write carry no transaction, so that Delta always executes it."""
        for name in (TXN_APP_ID, TXN_VERSION):
            self.spark.conf.unset(name)
        self.configure({USER_METADATA: user_metadata})

    def expect(self, rows: int) -> None:
        """Chooses how Spark executes the next statements, by the number of rows that it will read."""
        small = rows <= SMALL_ROWS_MAX
        if small and not self._small:
            self.configure(SMALL_SETTINGS)
        elif self._small and not small:
            for name in SMALL_SETTINGS:
                self.spark.conf.unset(name)
        self._small = small


@contextlib.contextmanager
def open_sessions(settings: SparkSettings, count: int, fence: Fence = READ_ONLY) -> Iterator[list[LakeSession]]:
    """Opens `count` Spark sessions, or fewer if `settings` allows fewer, and releases them at the end. `fence`: checked before each of
    their commits; without a fence they only read.

    Raises SparkUnavailableError within CONNECT_SECONDS_MAX plus a few retries.
    """
    opened = _classic_sessions(settings, count) if settings.master else _remote_sessions(settings, count)
    with uploaded_files(settings.uploads) as uploaded, opened as sessions:
        for session in sessions:
            session.uploaded, session.fence = uploaded, fence
        yield sessions


def is_away(error: BaseException) -> bool:
    """Returns whether an error means that the connection to Spark was lost or restarted, and not that Spark refused a statement."""
    if type(error).__name__ in {
        "RetriesExceeded",
        "SparkConnectGrpcException",
        "Py4JNetworkError",
        "ConnectionRefusedError",
    }:
        return True
    name = getattr(error, "getCondition", lambda: "")() or ""
    return any(word in name for word in AWAY) or "StatusCode.UNAVAILABLE" in str(error)


@contextlib.contextmanager
def _classic_sessions(settings: SparkSettings, count: int) -> Iterator[list[LakeSession]]:
    from pyspark.sql import SparkSession  # noqa: PLC0415  starts no JVM; takes a second to import

    if settings.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # The tasks of small merges need our packages.
    os.environ.update(settings.environment)
    builder = SparkSession.builder.master(settings.master).appName("sluice")
    for name, value in {**_delta_settings(), **settings.options}.items():
        builder = builder.config(name, value)
    try:
        first = builder.getOrCreate()
    except Exception as error:
        raise SparkUnavailableError(
            f"no Spark session could be made with master {settings.master}: {first_line(error)}"
        ) from error
    sessions = [LakeSession(first.newSession()) for _ in range(_allowed(first, count, settings))]
    for session in sessions:
        session.configure(_session_settings())
    yield sessions


def _allowed(spark: Any, wanted: int, settings: SparkSettings) -> int:
    """Returns how many of the wanted sessions may be opened."""
    if settings.sessions or wanted <= SESSIONS_MIN:
        return min(wanted, settings.sessions or SESSIONS_MIN)
    return min(wanted, SESSIONS_MAX, max(SESSIONS_MIN, task_slots(spark) // SLOTS_A_SESSION))


def task_slots(spark: Any) -> int:
    """Returns how many tasks Spark runs at the same time; 0 if it does not say so. Runs no job: a range has as many parts by default."""
    (plan,) = spark.sql("EXPLAIN SELECT * FROM range(0, 1000000)").collect()
    found = SPLITS.search(str(plan[0]))
    return int(found[1]) if found else 0


def _session_settings(options: Mapping[str, str] = NO_OPTIONS) -> dict[str, str]:
    """Returns the settings of a session. `options`: of conf/, which cannot change UNCHANGED_STATEMENTS."""
    return {**SESSION_SETTINGS, **options, **UNCHANGED_STATEMENTS}


def _delta_settings() -> dict[str, str]:
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
    }


@contextlib.contextmanager
def _remote_sessions(settings: SparkSettings, count: int) -> Iterator[list[LakeSession]]:
    """Yields copies of one session. A session's first request decides whether it shares workers, so this is set before the session is
    copied.
    """
    _require_listening(settings.remote)
    end_left_over_sessions(settings)
    first, *ids = (str(uuid.uuid4()) for _ in range(count + 1))
    _remember(settings, [first, *ids])
    model, sessions = LakeSession(_attach(settings.remote, first)), list[LakeSession]()
    try:
        _open(model, sessions, ids, settings)
        yield sessions
    finally:
        for session in (model, *sessions):
            _release(session.spark)
        _forget(settings)


def _open(model: LakeSession, sessions: list[LakeSession], ids: list[str], settings: SparkSettings) -> None:
    """Configures the model and its copies. Raises SparkUnavailableError if Spark accepted the connection and is gone at the first
    request.
    """
    try:
        model.configure({**_session_settings(settings.options), **SHARED_WORKERS})
        allowed = _allowed(model.spark, len(ids), settings)
        sessions.extend(_copy(model, session_id, settings) for session_id in ids[:allowed])
    except Exception as error:
        if is_away(error):
            sentence = f"the connection to Spark was lost while sessions were opened at {settings.remote} ({first_line(error)})"
            raise SparkUnavailableError(f"{sentence}; Sluice tries again") from error
        raise


def _copy(model: LakeSession, session_id: str, settings: SparkSettings) -> LakeSession:
    """Returns a session with the settings of `model`. If the server cannot copy sessions (before Spark 4.1), returns a new one that does
    not share workers.
    """
    try:
        spark = model.spark.cloneSession(session_id)
    except Exception as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
        session = LakeSession(_attach(settings.remote, session_id), shares_workers=False)
        session.configure(_session_settings(settings.options))
        return session
    spark.client.set_retry_policies([_retry_policy()])
    return LakeSession(spark)


def end_left_over_sessions(settings: SparkSettings) -> None:
    """Ends the sessions that a killed run left on this server."""
    end_sessions(settings.remote, _remembered(settings))


def end_sessions(remote: str, ids: Sequence[str]) -> bool:
    """Interrupts and releases sessions, including those that are gone. Returns whether a statement was running in one of them."""
    found = False
    for session_id in ids:
        session = _attach(remote, session_id)
        try:
            found = bool(session.interruptAll()) or found
        except Exception as error:  # The session ended with its server or was released; nothing is left to end.
            logger.debug("session %s of an earlier run no longer exists: %s", session_id, first_line(error))
        _release(session)
    return found


def _attach(remote: str, session_id: str) -> Any:
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415  takes two seconds to import

    remote = with_token(remote)
    base = remote if "/;" in remote else remote.rstrip("/") + "/"
    user = "" if "user_id=" in remote else f";user_id={USER_ID}"
    session = SparkSession.builder.remote(f"{base}{user};session_id={session_id}").create()
    # The error itself is raised with our own message.
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]", category=UserWarning)
    session.client.set_retry_policies([_retry_policy()])
    fill_old_field(session.client)
    return session


def with_token(remote: str) -> str:
    """Returns the address of a Spark with its token, which is read again at each attach. Records and messages have the address without the
    token. Raises SparkUnavailableError.
    """
    found = TOKEN.search(remote)
    if found is None:
        return remote
    try:
        token = filled_text(urllib.parse.unquote(found[1]), "spark.token")
    except SecretUnavailable as error:
        raise SparkUnavailableError(f"{error}; Sluice tries again") from None
    return f"{remote[: found.start()]};token={urllib.parse.quote(token, safe='')}{remote[found.end() :]}"


def _retry_policy() -> Any:
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    return DefaultPolicy(
        max_retries=RETRIES_MAX, max_backoff=RETRY_MILLISECONDS_MAX, max_server_retry_delay=RETRY_MILLISECONDS_MAX
    )


def _release(session: Any) -> None:
    try:
        session.client.release_session()
    except Exception as error:  # This is not essential, because the server drops an idle session by itself.
        logger.debug("a session could not be released: %s", first_line(error))
    session.client.close()  # An open client would call the server again when the process ends.
    if at_exit := getattr(session.client, "_cleanup_ml_cache", None):
        atexit.unregister(at_exit)  # Otherwise a draining run keeps each closed client until it ends.
    # pyspark closes its client again when the session is garbage-collected, under a lock that the collecting thread may
    # hold. A run was observed to hang there forever.
    vars(session).pop("_client", None)


def _require_listening(remote: str) -> None:
    parts = urllib.parse.urlsplit(remote)
    host, port = parts.hostname or "127.0.0.1", parts.port or CONNECT_PORT
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS_MAX).close()
    except OSError as error:
        raise SparkUnavailableError(
            f"no Spark Connect server answers at {host}:{port} ({error.strerror or error}); "
            "start it with `sluice up`, the batch is tried again"
        ) from error


def _remembered(settings: SparkSettings) -> list[str]:
    if settings.sessions_file is None:
        return []
    try:
        record = json.loads(settings.sessions_file.read_bytes())
        return [str(uuid.UUID(item)) for item in record["sessions"]] if record["remote"] == settings.remote else []
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning(
            "%s cannot be read (%s); statements that a killed run left in Spark may run for a while",
            settings.sessions_file,
            error,
        )
        return []


def _remember(settings: SparkSettings, ids: list[str]) -> None:
    if settings.sessions_file is not None:
        settings.sessions_file.parent.mkdir(parents=True, exist_ok=True)
        temporary = settings.sessions_file.with_name(f"{settings.sessions_file.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"remote": settings.remote, "sessions": ids}))
        temporary.replace(settings.sessions_file)


def _forget(settings: SparkSettings) -> None:
    if settings.sessions_file is not None:
        settings.sessions_file.unlink(missing_ok=True)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, with advice if there is any. Spark appends the server's stack trace to it."""
    return explained(str(error).strip().partition("\n")[0]) or type(error).__name__


def table_error(table: str, error: Exception, what: str = "Spark could not merge it") -> TableError:
    """Returns the error of one table, either unchanged or with `what` could not be done. An error of a disk or a store is not the table's
    own.
    """
    if isinstance(error, TableError):
        return error
    line, disk = first_line(error), DISK_TROUBLE.search(_causes(error))
    line = line if str(error) and not isinstance(error, LookupError) else f"{type(error).__name__} {error}".strip()
    why = f"{line} ({disk[0]})" if disk and disk[0] not in line else line
    return TableError(table, f"{what}: {why}", own=not (disk or LAKE_TROUBLE.search(line)))


def _causes(error: Exception) -> str:
    """Returns the causes of an error within Spark, as far as its server reports them."""
    trace = getattr(error, "getStackTrace", lambda: None)()
    return f"{error}\n{trace or ''}"
