"""Checks, for `sluice check`, whether dagster.yaml has the settings that Sluice needs. The file is the user's own, or the one in the
package.

`findings_of` only reads the settings and conf/. `storage_problem` connects to Dagster's storage if the storage is in Postgres.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.conf_files import mapping_of
from sluice.console.run_launcher_check import launcher_findings
from sluice.extras import Extra, missing_sentence
from sluice.orchestration.base.batch_reference import DESTINATION_TAG
from sluice.package_files import conf_file, package_file

CONNECT_SECONDS_MAX = 5
# dagster.yaml must list these loggers, so that Dagster stores their messages in the log of a run.
LOGGERS = ("sluice.orchestration", "sluice.spark_jobs")
# The Python driver for Postgres that dagster-postgres installs and needs. `storage_problem` reports any other driver: in newer versions of
# SQLAlchemy, a URL that begins with `postgresql://` selects psycopg.
DRIVER = "psycopg2"
# Tags by which a dagster.yaml of an earlier version of Sluice limits runs → the tags that runs have now instead.
FORMER_TAGS = {"sluice/backfill": "sluice/rows", "sluice/repair": "sluice/rows"}

Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class DagsterFinding:
    """The result of checking dagster.yaml. `problems` prevent Sluice from running, and `warnings` do not."""

    file: Path
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_dagster(conf: Path, config: SluiceConfig) -> DagsterFinding:
    """Checks the dagster.yaml that `sluice up` copies to Dagster's home: the user's own in conf/, or the one in the package. Returns all
    problems and warnings. If the file cannot be read, this is the only problem.
    """
    file = conf_file(conf, "dagster.yaml")
    unread: list[str] = []
    try:
        settings = mapping_of(file.name, file.read_text(), unread)
    except (OSError, UnicodeDecodeError) as error:
        unread.append(f"{file.name} cannot be read ({error}): correct its permissions, or write it as UTF-8")
    if unread:
        return DagsterFinding(file, tuple(unread))
    problems = list(_unset(settings))
    # Skips this check for the package's own dagster.yaml, whose classes are always installed. The check takes a second, because it imports
    # all of Dagster.
    if file.resolve() != package_file("conf/dagster.yaml").resolve():
        problems.extend(_not_importable(settings))
    if not problems and (why := storage_problem(settings)):
        problems.append(why)
    return DagsterFinding(file, tuple(problems), tuple(findings_of(settings, config)))


def findings_of(settings: Settings, config: SluiceConfig) -> Iterator[str]:
    """Yields a message for each setting of dagster.yaml that makes Sluice slower or less reliable. The message says what to set instead."""
    coordinator = _part(settings, "run_coordinator")
    if coordinator.get("class", "QueuedRunCoordinator") != "QueuedRunCoordinator":
        yield "run_coordinator: without QueuedRunCoordinator nothing limits the runs of a destination; remove the setting"
    elif not _limits_a_destination(settings):
        yield (
            f"concurrency.runs.tag_concurrency_limits has no limit 1 per unique value of {DESTINATION_TAG}, "
            "so runs of one destination that wait for each other take slots of other runs; add this limit"
        )
    for former in sorted({str(each.get("key")) for each in _limits(settings)} & FORMER_TAGS.keys()):
        yield (
            f"concurrency.runs.tag_concurrency_limits limits the tag {former}, which runs no longer have: replace this "
            f"tag by {FORMER_TAGS[former]}"
        )
    if _part(settings, "run_retries").get("enabled"):
        yield (
            "run_retries.enabled: the engine hands out a failed batch again as a new delivery, and refuses a run that "
            "Dagster retries; set run_retries.enabled to false"
        )
    if len(config.destinations) > 1 and not _part(settings, "sensors").get("use_threads"):
        yield (
            "sensors.use_threads is not true, so a slow source of one destination delays the ticks of all "
            "destinations; set sensors.use_threads to true"
        )
    loggers = _part(settings, "python_logs").get("managed_python_loggers") or []
    if not set(LOGGERS) <= set(loggers):
        yield (
            f"python_logs.managed_python_loggers lacks {' or '.join(LOGGERS)}, so the logs of runs lack lines of "
            "Sluice; add both names"
        )
    yield from launcher_findings(settings, config)


def storage_problem(settings: Settings) -> str:
    """Returns why Dagster cannot use its storage in Postgres. Returns "" if Dagster can use the storage, or if the storage is not in
    Postgres. Never raises an error. The returned text contains no password.
    """
    configured = _postgres_of(settings)
    if configured is None:
        return ""
    from dagster._core.storage.sql import create_engine  # noqa: PLC0415  dagster takes seconds to import
    from dagster_postgres.utils import pg_url_from_config  # noqa: PLC0415  an extra

    try:
        url = pg_url_from_config(_resolved(configured))
        engine = create_engine(url, connect_args={"connect_timeout": CONNECT_SECONDS_MAX})
        try:
            if engine.dialect.driver != DRIVER:
                return (
                    f"storage: Dagster's notifications between its processes work only with the driver {DRIVER}, and "
                    f"this address selects {engine.dialect.driver}; begin the address with "
                    f"postgresql+{DRIVER}://, or set postgres_db.scheme: postgresql+{DRIVER}"
                )
            with engine.connect():
                return ""
        finally:
            engine.dispose()
    # If the driver has raised the error, shows the driver's message (`orig`), which contains no password. Otherwise shows only the type of
    # the error, because SQLAlchemy's message about a malformed address may contain the password.
    except Exception as error:
        if refused := getattr(error, "orig", None):
            return (
                f"storage: Postgres refuses the connection or does not answer ({' '.join(str(refused).split())}): "
                "start Postgres, or correct storage.postgres"
            )
        return (
            f"storage: Dagster's settings of Postgres cannot be used ({type(error).__name__}): write storage.postgres.postgres_db, or "
            "an address whose password has / and @ as %2F and %40"
        )


def _postgres_of(settings: Settings) -> dict[str, Any] | None:
    """Returns dagster-postgres's settings of the storage. Returns None if dagster.yaml names no storage or one that is not in Postgres."""
    storage = _part(settings, "storage")
    if isinstance(storage.get("postgres"), dict):
        return dict(storage["postgres"])
    if str(storage.get("module", "")).startswith("dagster_postgres") and isinstance(storage.get("config"), dict):
        return dict(storage["config"])
    return None


def _resolved(value: Any) -> Any:
    """Returns a part of dagster.yaml with each reference to an environment variable replaced by its value."""
    if isinstance(value, dict):
        if set(value) == {"env"}:
            return os.environ.get(str(value["env"]), "")
        return {key: _resolved(part) for key, part in value.items()}
    return value


def _unset(settings: Any, key: str = "") -> Iterator[str]:
    """Yields a message for each environment variable that dagster.yaml names and that is not set."""
    if isinstance(settings, list):
        for part in settings:
            yield from _unset(part, key)
    if not isinstance(settings, dict):
        return
    if set(settings) == {"env"} and isinstance(settings["env"], str):
        if settings["env"] not in os.environ:
            yield (
                f"{key}: the environment variable {settings['env']} is not set: set this variable where Dagster starts"
            )
        return
    for name, part in settings.items():
        yield from _unset(part, f"{key}.{name}" if key else str(name))


def _not_importable(settings: Settings) -> Iterator[str]:
    """Yields a message for each class in dagster.yaml that cannot be imported. For a missing module, the message says what to install."""
    named = [(key, _part(settings, key)) for key in settings]
    storage = _part(settings, "storage")
    if "postgres" in storage:
        named.append(("storage", {"module": "dagster_postgres", "class": "DagsterPostgresStorage"}))
    for key, part in named:
        module, name = part.get("module"), part.get("class")
        if not isinstance(module, str) or not isinstance(name, str):
            continue
        try:
            if not hasattr(importlib.import_module(module), name):
                yield f"{key}: the module {module} has no class {name}"
        except ImportError as error:
            missing = module.partition(".")[0]
            remedy = (
                missing_sentence(Extra.POSTGRES)
                if missing == "dagster_postgres"
                else f"install this module in the environment where {key} is used"
            )
            yield f"{key}: the module {module} cannot be imported ({error}); {remedy}"


def _limits_a_destination(settings: Settings) -> bool:
    return any(_is_limit(each) for each in _limits(settings))


def _limits(settings: Settings) -> list[dict[str, Any]]:
    """Returns the limits of runs by tag, from `concurrency.runs` and from `run_coordinator.config`. A dagster.yaml for an older version of
    Dagster has these limits in `run_coordinator.config`.
    """
    runs = _part(_part(settings, "concurrency"), "runs")
    older = _part(_part(settings, "run_coordinator"), "config")
    limits = [*(runs.get("tag_concurrency_limits") or []), *(older.get("tag_concurrency_limits") or [])]
    return [each for each in limits if isinstance(each, dict)]


def _is_limit(limit: Settings) -> bool:
    value = limit.get("value")
    unique = isinstance(value, dict) and bool(value.get("applyLimitPerUniqueValue"))
    return limit.get("key") == DESTINATION_TAG and limit.get("limit") == 1 and unique


def _part(settings: Settings, key: str) -> dict[str, Any]:
    part = settings.get(key)
    return part if isinstance(part, dict) else {}
