"""Pulls conf/ from the git repository or archive in conf/remote.yaml, and stores the last valid revision. Called when processes start, and
then at intervals.

  fetch ─▶ the texts of the files ─▶ all of conf/ is valid ─▶ the record is replaced ─▶ `ConfWatch` finds changed texts
   │                                  └─▶ refused: the earlier revision stays in use, and `sluice status` says why
   └─▶ away: the server does not answer; the earlier revision stays in use, and `sluice status` says why

The record in the data directory contains the files of the revision in use. The record is replaced as a whole, so after a crash it contains
either the earlier revision or the new one. A process that starts while the repository or archive cannot be read uses the record.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import structlog

from sluice.cdc_engine.config.conf_files import ConfFiles, read_remote, remote_record
from sluice.cdc_engine.config.reading import config_of
from sluice.cdc_engine.config.remote.record import RemoteRecord, read_record, short, write_record
from sluice.cdc_engine.config.remote.settings import RemoteConfig, url_problem
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError, SecretUnavailableError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.keeping.remote_conf.archive import fetch_archive
from sluice.cdc_engine.keeping.remote_conf.fetched import Fetched, RemoteAwayError, texts_of
from sluice.cdc_engine.keeping.remote_conf.git import fetch_git

LOCK_FILE = "remote-conf.lock"
LOOK_SECONDS = 0.2
# How long a pull waits for the pull of another process. A pull runs three git commands, and each waits for the server for at most a minute.
PULL_SECONDS_MAX = 240.0
# The interval at which a host looks for a newer revision. One request per minute is a negligible load for the server. `sluice conf pull`
# does not wait for the interval.
LOOK_AGAIN_SECONDS = 60.0
FIRST_SECONDS = 1.0  # The interval at which conf/remote.yaml is checked while it is missing or invalid.

log = structlog.get_logger()


def pull(directory: Path, *, again: bool = True, wait_seconds: float = 0.0) -> RemoteRecord | None:
    """Pulls the newest revision, and returns the record. Returns None if conf/remote.yaml does not exist. With `again`, checks the newest
    revision even if it was refused before. Raises ConfigurationError if conf/remote.yaml is invalid, or if the record cannot be written.

    If another process of this host is pulling, waits up to `wait_seconds` until that pull ends, and then pulls too, because the other
    process may have fetched an older revision. Raises ConfigurationError if that pull does not end in time. If another process is pulling
    and `wait_seconds` is 0, does not wait, and returns the record unchanged.
    """
    remote = read_remote(directory)
    if remote is None:
        return None
    lock = FileLock(remote.data_dir / LOCK_FILE)
    try:
        if not _acquired(lock, wait_seconds):
            if wait_seconds:
                raise ConfigurationError(
                    f"another process has been pulling {remote.shown} for {wait_seconds:g} s: try again, or stop that process"
                )
            return read_record(remote.record_file)
        before = read_record(remote.record_file)
        after = _after(remote, directory, before, again=again)
        if after != before:
            write_record(remote.record_file, after)
            _say(before, after)
    except OSError as error:
        raise ConfigurationError(
            f"{remote.record_file} cannot be written ({error.strerror}): correct data_dir in conf/remote.yaml, or free space there"
        ) from None
    finally:
        lock.release()
    return after


def _acquired(lock: FileLock, wait_seconds: float) -> bool:
    until = time.monotonic() + wait_seconds
    while not lock.try_acquire():
        if time.monotonic() >= until:
            return False
        threading.Event().wait(LOOK_SECONDS)
    return True


def pull_at_start(directory: Path) -> None:
    """Pulls when a process starts. If the pull fails, logs why, and the process uses the last valid revision. If there is no such revision,
    raises the error.
    """
    try:
        record = remote_record(directory)
        pull(directory, wait_seconds=0.0 if record is not None and record.revision else PULL_SECONDS_MAX)
    except Exception as error:
        # Catches all errors, because a damaged repository or a full disk must not prevent the process from starting with an earlier
        # revision.
        record = remote_record(directory)
        if record is None or not record.revision:
            raise
        log.error("conf_not_pulled", reason=f"{type(error).__name__}: {error}")


def poll(directory: Path, stopping: threading.Event) -> None:
    """Pulls at intervals until `stopping` is set. Logs errors, and then continues."""
    logged = ""
    while not stopping.wait(_interval(directory)):
        try:
            pull(directory, again=False)
            logged = ""
        except Exception as error:  # Catches all errors: if this loop ended, conf/ would not be pulled any more.
            if (why := f"{type(error).__name__}: {error}") != logged:
                log.error("conf_not_pulled", reason=why)
            logged = why


def _interval(directory: Path) -> float:
    try:
        remote = read_remote(directory)
    except ConfigurationError:
        return FIRST_SECONDS
    return LOOK_AGAIN_SECONDS if remote is not None else FIRST_SECONDS


def _after(remote: RemoteConfig, directory: Path, before: RemoteRecord | None, *, again: bool) -> RemoteRecord:
    """Fetches the newest revision and checks it. Returns the new record. If the newest revision is not used, the record says why. `before`
    is the present record, or None if nothing was pulled yet. With `again`, also checks a revision that was refused before.
    """
    last = before
    # A record of another repository or archive is of use only if its revision is in use.
    if last is None or (last.identity != remote.identity and not last.revision):
        last = RemoteRecord(identity=remote.identity, shown=remote.shown)
    same = last.identity == remote.identity
    known = [each for each in (last.revision, "" if again else last.newer) if each and same]
    try:
        found = _fetch(remote, known, last.etag if same else "")
    except (RemoteAwayError, SecretUnavailableError) as error:
        since = last.since if last.away else time.time()
        return dataclasses.replace(last, away=str(error), since=since)
    # If the newest revision is the revision in use, for example because a refused revision was reverted, the record names no refused
    # revision any more.
    if found is not None and same and found.revision == last.revision:
        return dataclasses.replace(last, newer="", refused="", etag=found.etag, away="", since=0.0)
    if found is None or found.revision in known:
        return dataclasses.replace(last, away="", since=0.0)
    try:
        main, destinations = texts_of(found.archive, remote.folder)
        config_of(ConfFiles(directory, main, destinations))
    except ConfigurationError as error:
        # Does not store the ETag: if the download was incomplete, the server would answer "unchanged" at the next pull, and the whole
        # archive would never be downloaded.
        # Names the repository or archive of conf/remote.yaml, because the record still names that of the revision in use.
        why = f"{remote.shown}: {str(error).removeprefix(f'{directory}: ')}"
        return dataclasses.replace(last, newer=found.revision, refused=why, etag="", away="", since=0.0)
    return RemoteRecord(
        identity=remote.identity,
        shown=remote.shown,
        revision=found.revision,
        etag=found.etag,
        main=main,
        destinations=destinations,
        applied_at=time.time(),
    )


def _fetch(remote: RemoteConfig, known: list[str], etag: str) -> Fetched | None:
    url, token = filled(remote.url, "remote.yaml: url"), filled(remote.token, "remote.yaml: token")
    if problem := url_problem(remote.kind, url, secret=True):
        raise RemoteAwayError(f"{remote.shown}: {problem}")
    if remote.kind == "git":
        return fetch_git(remote, url, token, known)
    return fetch_archive(remote, url, token, etag)


def _say(before: RemoteRecord | None, after: RemoteRecord) -> None:
    if after.revision and (before is None or before.revision != after.revision):
        log.info("conf_pulled", source=after.shown, revision=short(after.revision))
    if after.refused and (before is None or before.newer != after.newer):
        log.error("conf_refused", revision=short(after.newer), reason=after.refused)
    if after.away and (before is None or not before.away):
        log.warning("conf_source_not_reached", reason=after.away)
