"""Opens Spark sessions, on a Spark Connect server or in this process. No other module opens sessions.

Tables that are merged at the same time need separate sessions, because `txnAppId` and `txnVersion` are settings of a session. A small file
stores the ids of the open sessions. If a run is killed, a later run reads these ids, and ends the statements that the killed run left on
the server.
"""

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sluice.secret_values import SecretUnavailable, filled_text
from sluice.spark_jobs.errors import LAKE_TROUBLE, SparkUnavailableError, TableError
from sluice.spark_jobs.fence import READ_ONLY, Fence
from sluice.spark_jobs.old_spark import explained, fill_old_field
from sluice.spark_jobs.uploaded_files import UploadedFiles, UploadSettings, uploaded_files

logger = logging.getLogger(__name__)

CONNECT_PORT = 15002  # The default port of a Spark Connect server.
CONNECT_SECONDS_MAX = 10.0
# A failed call is repeated this many times, after waits of 50 ms to 2 s. A server that does not answer within about 4 s is considered
# down.
RETRIES_MAX = 4
RETRY_MILLISECONDS_MAX = 2000
GRPC_ERROR = "of RPC that terminated with:"  # The text of every gRPC error contains this.
GRPC_DETAILS = re.compile(r'^\s*details = "(.+)"$', re.MULTILINE)
TOKEN = re.compile(r";token=([^;]*)")
# All Spark sessions of Sluice have this owner, whatever account the run has. So a run under another account can find and end the sessions
# of a killed run.
USER_ID = "sluice"
TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
TABLE_DEFAULTS = "spark.databricks.delta.properties.defaults."
# Sluice sets these properties on each table itself, so a default of Spark for them has no effect.
KNOWN_DEFAULTS = frozenset({f"{TABLE_DEFAULTS}enableDeletionVectors"})
COMMITS = re.compile(
    r"\s*(MERGE|INSERT|UPDATE|DELETE|TRUNCATE|ALTER|OPTIMIZE|VACUUM|RESTORE|CREATE\s+(OR\s+REPLACE\s+)?TABLE)\b",
    re.IGNORECASE,
)
# Matches the message of a write task that failed because of its disk. Spark reports this message only among the causes of an error.
DISK_TROUBLE = re.compile(r"no space left|disk quota exceeded|read-only file system", re.IGNORECASE)
# Delta's error for a row that violates a CHECK constraint, and the advice for it.
VIOLATED = "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"
UNCONSTRAIN = "drop the constraint (ALTER TABLE … DROP CONSTRAINT), because the lake gets each row of the source"
AWAY = ("UNAVAILABLE", "INVALID_HANDLE", "SESSION_CHANGED", "SESSION_CLOSED", "SESSION_NOT_FOUND", "RETRIES_EXCEEDED")

SESSION_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # Without this setting, the txn version of a write would also apply to the session's next write, and Delta would skip the next write.
    "spark.databricks.delta.write.txnVersion.autoReset.enabled": "true",
    # A MERGE reads its source twice. By default Delta copies the source first, because the source could change between the two reads.
    # Staged files never change, so the copy is not needed.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
# The setting with which Spark executes statements unchanged. By default Spark replaces `${name}` in statements. A statement may have such a
# text in a key's value or a column's comment, which come from the source. `${env:NAME}` in a comment would publish an environment variable
# of Spark's process.
UNCHANGED_STATEMENTS: Mapping[str, str] = {"spark.sql.variable.substitute": "false"}
# Limits for the number of sessions of a batch. The maximum protects Spark's driver, which plans and commits every MERGE.
SESSIONS_MIN, SESSIONS_MAX = 2, 16
# One session is opened per this many task slots. A MERGE with many tasks can use more slots. While it has only one task, other sessions use
# the slots.
SLOTS_A_SESSION = 2
SPLITS = re.compile(r"\bsplits=(?:Some\()?(\d+)")  # Finds the number of parts in Spark's plan of a range.
NO_OPTIONS: Mapping[str, str] = {}
# The setting with which sessions share Python workers. By default, each session starts its own workers, whose daemon process stays after
# the session. Separate workers are needed only for sessions that send files to Spark with `addArtifacts`. Sluice's sessions send none.
SHARED_WORKERS: Mapping[str, str] = {"spark.sql.artifact.isolation.enabled": "false"}
# Spark's settings for merges of few rows. They switch off code generation: compiling generated code takes longer than processing few rows,
# and every new session compiles it again. On a warm server with these settings, 50 changes per table take half the time, 75 k changes into
# 75 k rows take half the CPU time, and 300 k changes into 375 k rows take the same time.
SMALL_SETTINGS: Mapping[str, str] = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # Rewriting a few small files is faster than writing deletion vectors, which need another Spark job and leave the old files in the
    # table.
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
}
# SMALL_SETTINGS are used if a merge reads at most this many rows: its changes, and the rows of the files that may have rows to change. For
# more rows, compiled code is faster.
SMALL_ROWS_MAX = 200_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """How to connect to Spark.

    - `remote` is the address of a Spark Connect server.
    - `master` is the Spark master for a Spark that starts in this process. If it is set, `remote` is not used.
    - `options` are session settings. With `master`, settings for the start of Spark are possible too, such as `spark.jars`.
    - `environment` has credentials for Spark's process, if `master` is set. They are not settings, because the command line of the process
      shows its settings.
    - `sessions_file` stores the ids of open sessions. If it is None, no run can end the sessions of a killed run.
    - `uploads` says where files of the run are uploaded for Spark.
    - `sessions` is the maximum number of sessions of a batch. 0 means as many as Spark's task slots allow.
    """

    remote: str = f"sc://127.0.0.1:{CONNECT_PORT}"
    master: str = ""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    sessions_file: Path | None = None
    uploads: UploadSettings = dataclasses.field(default_factory=UploadSettings)
    sessions: int = 0


class LakeSession:
    """One Spark session. Only one thread at a time may merge in it.

    If `shares_workers`, its Python tasks reuse the worker processes of earlier sessions. Otherwise each session leaves a process on the
    executor.
    """

    def __init__(self, spark: Any, *, shares_workers: bool = True) -> None:
        self.spark = spark
        self.shares_workers = shares_workers
        self.uploaded = UploadedFiles(UploadSettings())
        self.fence = READ_ONLY
        self._small = self._has_metadata = False
        self._before_small: Mapping[str, str] = {}  # The values that the session had before SMALL_SETTINGS were set.

    def configure(self, settings: Mapping[str, str]) -> None:
        """Sets several settings, with one request to a Spark Connect server."""
        conf = self.spark.conf
        if set_all := getattr(conf, "_set_all", None):
            set_all(dict(settings), silent=False)
            return
        # A Spark session in this process has no method that sets several settings at once.
        for name, value in settings.items():
            conf.set(name, value)

    def sql(self, statement: str) -> None:
        """Executes a statement that does not commit to a table, without fetching its result. Raises ValueError for a statement that
        commits, which must be executed with `commit`.
        """
        if COMMITS.match(statement):
            raise ValueError(
                f"a statement that commits must go through LakeSession.commit, which checks the fence: {statement[:40]}"
            )
        logger.debug("%s", statement)
        self.spark.sql(statement)

    def commit(self, name: str, statement: str) -> Any:
        """Executes a statement that commits to the Delta table of `name` ("database.table"), and returns its result as a DataFrame. Raises
        TableError if the fence refuses it.
        """
        logger.debug("%s", statement)
        self.fence.check(name)
        return self.spark.sql(statement)

    def commit_as(self, app_id: str, version: int, user_metadata: str) -> None:
        """Sets the Delta transaction and the metadata of this session's next write. Delta drops the write if the table already has a
        transaction of this app id with this version or a later one.
        """
        self.configure({TXN_APP_ID: app_id, TXN_VERSION: str(version), USER_METADATA: user_metadata})
        self._has_metadata = True

    def defaults_of_tables(self) -> tuple[str, ...]:
        """Returns the table properties that this Spark sets on new Delta tables by default, except those that Sluice always sets."""
        return tuple(
            name for name in self.spark.conf.getAll if name.startswith(TABLE_DEFAULTS) and name not in KNOWN_DEFAULTS
        )

    def commit_without_version(self, user_metadata: str) -> None:
        """Removes the txn version from this session's next write, so that Delta never skips the write. The commit of this write gets
        `user_metadata`.
        """
        for name in (TXN_APP_ID, TXN_VERSION):
            self.spark.conf.unset(name)
        self.configure({USER_METADATA: user_metadata})
        self._has_metadata = True

    def commit_without_metadata(self) -> None:
        """Removes the metadata of this session's previous commit. Otherwise the next commits would have it too."""
        if self._has_metadata:
            self.spark.conf.unset(USER_METADATA)
            self._has_metadata = False

    def expect(self, rows: int) -> None:
        """Selects the session's settings for few rows or for many rows. `rows` is the number of rows that the session's next statements
        will read.
        """
        small = rows <= SMALL_ROWS_MAX
        if small and not self._small:
            there = self.spark.conf.getAll
            self._before_small = {name: there[name] for name in SMALL_SETTINGS if name in there}
            self.configure(SMALL_SETTINGS)
        elif self._small and not small:
            # `unset` would restore Spark's own default. So a setting that had a value from spark-defaults.conf or conf/ is set to this
            # value instead.
            for name in SMALL_SETTINGS.keys() - self._before_small.keys():
                self.spark.conf.unset(name)
            self.configure(self._before_small)
        self._small = small


@contextlib.contextmanager
def open_sessions(settings: SparkSettings, count: int, fence: Fence = READ_ONLY) -> Iterator[list[LakeSession]]:
    """Opens `count` Spark sessions, or fewer if `settings` or Spark's task slots limit their number. Releases them when the context is
    closed. `fence` is checked before each of their commits. Without a fence the sessions can only read.

    Raises SparkUnavailableError if Spark does not answer within CONNECT_SECONDS_MAX and a few retries.
    """
    opened = _classic_sessions(settings, count) if settings.master else _remote_sessions(settings, count)
    with uploaded_files(settings.uploads) as uploaded, opened as sessions:
        for session in sessions:
            session.uploaded, session.fence = uploaded, fence
        yield sessions


def is_away(error: BaseException) -> bool:
    """Returns whether an error means that the connection to Spark was lost, or that Spark restarted. Returns False if Spark refused a
    statement.
    """
    if type(error).__name__ in {
        "RetriesExceeded",
        "SparkConnectGrpcException",
        "Py4JNetworkError",
        "ConnectionRefusedError",
    }:
        return True
    name = getattr(error, "getCondition", lambda: "")() or ""
    return any(sign in name for sign in AWAY) or "StatusCode.UNAVAILABLE" in str(error)


@contextlib.contextmanager
def _classic_sessions(settings: SparkSettings, count: int) -> Iterator[list[LakeSession]]:
    from pyspark.sql import SparkSession  # noqa: PLC0415  starts no JVM; takes a second to import

    if settings.master.startswith("local"):
        # The Python tasks of small merges import Sluice's packages, so they run with the Python of this process.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.update(settings.environment)
    builder = SparkSession.builder.master(settings.master).appName("sluice")
    for name, value in {**_delta_settings(), **settings.options}.items():
        builder = builder.config(name, value)
    try:
        first = builder.getOrCreate()
    except Exception as error:
        raise SparkUnavailableError(
            f"no Spark session could be started with spark.master {settings.master}: {first_line(error)}; check `spark` in conf/sluice.yaml"
        ) from error
    sessions = [LakeSession(first.newSession()) for _ in range(_allowed(first, count, settings))]
    for session in sessions:
        session.configure(_session_settings())
    yield sessions


def _allowed(spark: Any, wanted: int, settings: SparkSettings) -> int:
    """Returns how many of the `wanted` sessions to open: at most `settings.sessions`. If `settings.sessions` is 0, the limit is one session
    per SLOTS_A_SESSION task slots, but at least SESSIONS_MIN and at most SESSIONS_MAX.
    """
    if settings.sessions or wanted <= SESSIONS_MIN:
        return min(wanted, settings.sessions or SESSIONS_MIN)
    return min(wanted, SESSIONS_MAX, max(SESSIONS_MIN, task_slots(spark) // SLOTS_A_SESSION))


def task_slots(spark: Any) -> int:
    """Returns how many tasks Spark runs at the same time, or 0 if this is unknown. Runs no Spark job: reads the number from the plan of a
    range, which by default has one part per task slot.
    """
    (plan,) = spark.sql("EXPLAIN SELECT * FROM range(0, 1000000)").collect()
    found = SPLITS.search(str(plan[0]))
    return int(found[1]) if found else 0


def _session_settings(options: Mapping[str, str] = NO_OPTIONS) -> dict[str, str]:
    """Returns the settings of a session. `options` come from conf/, and cannot override UNCHANGED_STATEMENTS."""
    return {**SESSION_SETTINGS, **options, **UNCHANGED_STATEMENTS}


def _delta_settings() -> dict[str, str]:
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
    }


@contextlib.contextmanager
def _remote_sessions(settings: SparkSettings, count: int) -> Iterator[list[LakeSession]]:
    """Yields sessions that are copies of one model session. The first request of a session decides whether it shares Python workers. So the
    model first gets the setting SHARED_WORKERS, and is then copied.
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
        opened = [each.spark for each in (model, *sessions)]
        # Spark takes 20 ms to release a session, so the sessions are released in parallel.
        with ThreadPoolExecutor(len(opened), thread_name_prefix="release") as pool:
            list(pool.map(_release, opened))
        _forget(settings)


def _open(model: LakeSession, sessions: list[LakeSession], ids: list[str], settings: SparkSettings) -> None:
    """Configures the model, and appends its copies to `sessions`. Raises SparkUnavailableError if Spark accepted the connection but does
    not answer requests.
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
    """Returns a copy of `model`. If the server cannot copy sessions (before Spark 4.1), returns a new session with the same settings, which
    does not share Python workers.
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
    """Ends the sessions of a run that was killed before it released them."""
    end_sessions(settings.remote, _remembered(settings))


def has_left_over_sessions(settings: SparkSettings) -> bool:
    """Returns whether a run was killed before it released its sessions on a Spark Connect server. With `settings.master`, returns False."""
    return not settings.master and bool(_remembered(settings))


def end_sessions(remote: str, ids: Sequence[str]) -> bool:
    """Interrupts and releases sessions. Ignores sessions that no longer exist. Returns whether a statement was running in one of them."""
    found = False
    for session_id in ids:
        session = _attach(remote, session_id)
        try:
            found = bool(session.interruptAll()) or found
        except Exception as error:  # The session was released, or it ended with its server.
            logger.debug("the Spark session %s of an earlier run no longer exists: %s", session_id, first_line(error))
        _release(session)
    return found


def _attach(remote: str, session_id: str) -> Any:
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415  takes two seconds to import

    remote = with_token(remote)
    base = remote if "/;" in remote else remote.rstrip("/") + "/"
    user = "" if "user_id=" in remote else f";user_id={USER_ID}"
    session = SparkSession.builder.remote(f"{base}{user};session_id={session_id}").create()
    # pyspark warns when its retries end. Sluice raises its own error for this, so the warning is not needed.
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]", category=UserWarning)
    session.client.set_retry_policies([_retry_policy()])
    fill_old_field(session.client)
    return session


def with_token(remote: str) -> str:
    """Replaces the reference to the token in a Spark address by the token itself. Records and messages keep the address with the
    reference. Raises SparkUnavailableError if the token cannot be read.
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
    except Exception as error:  # The server drops idle sessions anyway.
        logger.debug("a Spark session could not be released: %s", first_line(error))
    session.client.close()  # An open client would call the server again when the process ends.
    if at_exit := getattr(session.client, "_cleanup_ml_cache", None):
        atexit.unregister(at_exit)  # The handler would keep each closed client in memory until a draining run ends.
    # pyspark closes the client again when the session is garbage-collected. Closing takes a lock. If the thread that collects already holds
    # this lock, the run hangs.
    vars(session).pop("_client", None)


def _require_listening(remote: str) -> None:
    parts = urllib.parse.urlsplit(remote)
    host, port = parts.hostname or "127.0.0.1", parts.port or CONNECT_PORT
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS_MAX).close()
    except OSError as error:
        raise SparkUnavailableError(
            f"no Spark Connect server answers at {host}:{port} ({error.strerror or error}); start the server "
            "with `sluice up`; Sluice tries the batch again"
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
            "the file %s cannot be read (%s), so statements of a killed run may continue in Spark until they end",
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
    """Returns the first line of an error's text, with advice if there is any. The other lines are the stack trace of Spark's server. For an
    error of gRPC, returns the details that Spark's server sent.
    """
    found = GRPC_DETAILS.search(str(error)) if GRPC_ERROR in str(error) else None
    line = found[1] if found else str(error).strip().partition("\n")[0]
    if VIOLATED in line:
        return f"{line.removesuffix(' with values:')}; {UNCONSTRAIN}"
    return explained(line) or type(error).__name__


def table_error(table: str, error: Exception, what: str = "Spark could not merge the table") -> TableError:
    """Converts an error to a TableError. Returns a TableError unchanged. `what` says in the message what could not be done. An error of a
    disk or an object store gets `own=False`, so it does not stop the table.
    """
    if isinstance(error, TableError):
        return error
    line, disk = first_line(error), DISK_TROUBLE.search(_causes(error))
    line = line if str(error) and not isinstance(error, LookupError) else f"{type(error).__name__} {error}".strip()
    why = f"{line} ({disk[0]})" if disk and disk[0] not in line else line
    return TableError(table, f"{what}: {why}", own=not (disk or LAKE_TROUBLE.search(line)))


def _causes(error: Exception) -> str:
    """Returns the error's text and the causes that Spark's server reports with it."""
    trace = getattr(error, "getStackTrace", lambda: None)()
    return f"{error}\n{trace or ''}"
