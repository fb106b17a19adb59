"""Reads the state of the processes and destinations, for `sluice status`. Reads only files and records, and calls no engine.
`find_problems` decides from this state which problems there are.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import Holder, TableVersion
from sluice.cdc_engine.destination_files import lease_holder, ledger_text
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.instance.health import NO_TICK
from sluice.cdc_engine.keeping import orders
from sluice.cdc_engine.position import position_text
from sluice.cdc_engine.states import SnapshotState, ended, engine_way_out, way_out
from sluice.cdc_engine.status_file import engine_status
from sluice.cdc_engine.table_meta.table_list.reading import count_of_list, read_cascades, read_tables
from sluice.cdc_engine.table_meta.table_list.sentences import (
    ForeignKeyNote,
    foreign_key_notes,
    keyless_names,
    keyless_sentence,
)
from sluice.console.stack import processes
from sluice.console.stack.dagster_storage import daemon_sentence, lost_storage, storage_bytes
from sluice.console.stack.processes import ProcessFile
from sluice.console.status.consumers import consumer_problems, consumer_table, consumers_of, group_table, shown_lag
from sluice.console.status.include_check import unmatched_warnings
from sluice.console.status.snapshots import failed_sentence, open_snapshots

# `sluice status` reports a snapshot that has made no progress for this long. A shorter pause is normal: after a failed run, the snapshot
# sensor starts another run within five minutes.
SNAPSHOT_STILL_SECONDS_MAX = 600.0
# An engine writes its status about once per second. If a status is older than this, the engine does not write it any more.
STALE_SECONDS = 15.0
WHAT_TO_DO = "see docs/reference/states.md"
NEVER_RAN = "no engine of this destination has run yet; start the engine with `sluice up`"
NONE_HERE = "no process of `sluice up` runs on this host; this is correct if services or containers run the engines, Dagster and Spark"
WELL = ("RUNNING", "STARTING", "CONNECTING", "STANDBY")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DestinationStatus:
    """The status of one destination.
    - `state`: the state that the engine reports. STOPPED if an operator stopped the engine, or if no process writes its status. STALE if
      the status is old although a process holds the lease. STANDBY if another host runs the engine.
    - `cursor`, `position`: the acked position, and the position up to which the engine has read, as `file:offset@epoch`.
    - `waiting`: why the next attempt to merge the batch in flight has not begun. `troubles`: problems of the engine or the record store.
    - `lag_seconds`, `tick_age_seconds`, `ack_age_seconds`: None if the engine has reported no lag, tick or ack since its start.
    - `shared`: the destination shares one stream of its server with other destinations. `age_seconds`: the age of the engine's status.
    - `holder`: the process that holds the lease, or empty if no process holds it. `outstanding`: the batches in flight.
    - `group`: for a group, its members and the members for which it waits. Otherwise None.
    """

    name: str
    state: str
    reason: str = ""
    waiting: str = ""
    cursor: str = ""
    position: str = ""
    lag_seconds: float | None = None
    retention_left_hours: float | None = None
    oldest_binlog_hours: float | None = None
    rows_per_second: float = 0.0
    ring_bytes: int = 0
    ring_bytes_max: int = 0
    ring_events: int = 0
    shared: bool = False
    age_seconds: float = 0.0
    tick_age_seconds: float | None = None
    ack_age_seconds: float | None = None
    troubles: Sequence[str] = ()
    holder: str = ""
    outstanding: Sequence[dict[str, Any]] = ()
    stopped_tables: Sequence[dict[str, Any]] = ()
    foreign_keys: Sequence[ForeignKeyNote] = ()
    keyless: Sequence[str] = ()
    snapshots: Sequence[dict[str, Any]] = ()
    consumers: Sequence[dict[str, Any]] = ()
    group: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class StatusReport:
    """Everything that `sluice status` shows. The exit code is 0 if there are no `problems`; `warnings` do not change the exit code.
    `dagster_bytes` is the size of Dagster's storage, or None if the storage is not in files of this host. `conf` describes the pulled
    revision of conf/ that is in use, and is empty if conf/ is not pulled from a repository or archive.
    """

    processes: list[dict[str, Any]]
    destinations: list[DestinationStatus]
    problems: list[str]
    warnings: list[str] = dataclasses.field(default_factory=list)
    dagster_bytes: int | None = None
    conf: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"ok": not self.problems, **dataclasses.asdict(self)}


def read_status(config: SluiceConfig, now: float | None = None) -> StatusReport:
    """Returns the status, from the files in the data directory and the record stores. `now` is in seconds since 1970."""
    records = ProcessFile(config.data_dir / "processes.json")
    running = [processes.to_json(record) for record in records.load()]
    now = time.time() if now is None else now
    destinations = [
        dataclasses.replace(
            read_destination(config.destination_dir(name), name, now),
            foreign_keys=_foreign_keys(config, name),
            keyless=_keyless(config, name),
            snapshots=open_snapshots(config, name, now),
        )
        for name in sorted(config.destinations)
    ]
    destinations += [read_group(config, name, now) for name in sorted(config.groups)]
    if any(process["alive"] for process in running):
        destinations = [_first_start(each, config) for each in destinations]
    apart = config.engine.kind == "remote" and not processes.engine_port(config)
    problems = [*_never_begun(config, running), *find_problems(running, destinations, apart=apart)]
    warnings = [NONE_HERE] if apart and not running else []
    warnings += [f"{each.name} is {each.state}: {each.reason}" for each in destinations if each.state == "STANDBY"]
    daemon = records.running().get("daemon")
    home = config.data_dir / "dagster"
    if daemon is not None and (lost := lost_storage(home, daemon.age_seconds())):
        problems.append(lost)
    elif (home / "dagster.yaml").exists() and any(
        trouble.startswith(NO_TICK) for each in destinations for trouble in each.troubles
    ):
        problems.append(daemon_sentence(home, now))
    return StatusReport(running, destinations, problems, [*warnings, *_unmatched_warnings(config)], storage_bytes(home))


def _first_start(one: DestinationStatus, config: SluiceConfig) -> DestinationStatus:
    """Returns the status of a destination whose processes run. If its engine has never run, the engine is probably starting, and the status
    gets a `reason` that says so.
    """
    if one.reason != NEVER_RAN:
        return one
    logs = config.data_dir / "logs"
    reason = f"the engine has written no status yet. An engine does this within seconds; if it does not, read the logs in {logs}"
    return dataclasses.replace(one, reason=reason)


def _never_begun(config: SluiceConfig, running: Sequence[dict[str, Any]]) -> list[str]:
    """Returns a message for each process of `sluice up` that was never started while other processes of `sluice up` run. This happens, for
    example, if `sluice up` is killed during the start. After `sluice up --without-dagster`, Dagster's processes are not reported.
    """
    there = {process["name"] for process in running}
    foreign = () if there.intersection(processes.DAGSTER_PARTS) else processes.DAGSTER_PARTS
    if processes.ENGINE not in there:
        foreign = ()
    return [
        f"the {name} was never started; start the {name} with `sluice up`"
        for name in (processes.part_names(config) if there else ())
        if name not in {*there, *foreign}
    ]


def _foreign_keys(config: SluiceConfig, name: str) -> tuple[ForeignKeyNote, ...]:
    """Returns the foreign keys that change captured tables without row events. Empty until the engine has recorded the foreign keys."""
    try:
        cascades = read_cascades(config.destination_dir(name))
    except MetaError:
        return ()
    return foreign_key_notes(cascades, config.destinations[name].cascade_policy)


def _unmatched_warnings(config: SluiceConfig) -> list[str]:
    """Returns a message for each setting that matches no captured table. Empty until the engine has recorded its tables."""
    return [
        warning
        for name, destination in sorted(config.destinations.items())
        if (known := _known_tables(config, name)) is not None
        for warning in unmatched_warnings(destination, known)
    ]


def _known_tables(config: SluiceConfig, name: str) -> Sequence[TableVersion] | None:
    """Returns the captured tables in the list that the engine wrote, or None if the engine has not written a list."""
    directory = config.destination_dir(name)
    try:
        return None if count_of_list(directory) is None else read_tables(directory)
    except MetaError:
        return None


def _keyless(config: SluiceConfig, name: str) -> tuple[str, ...]:
    """Returns the names of the captured tables without a key. Empty until the engine has recorded the destination's tables."""
    try:
        tables = read_tables(config.destination_dir(name))
    except MetaError:
        return ()
    return keyless_names(tables, lambda database, table: config.destinations[name].table(database, table).key)


def stop_order(directory: Path) -> orders.Order | None:
    """Returns the operator's request to stay stopped, or None if there is none. Also returns None if the record store does not answer,
    because the status already has a trouble about this (`_kept`).
    """
    try:
        return orders.stopped(directory)
    except MetaError:
        return None


def read_destination(directory: Path, name: str, now: float) -> DestinationStatus:
    """Returns the status of one destination. The values come from status.json, which the engine writes, from the ledger and from the lease.
    The ledger has the acked position. The lease names the process that runs the engine. `now` is in seconds since 1970.
    """
    engine = engine_status(directory)
    meta, lease, unknown = _kept(directory)
    held = lease is not None and lease.held
    age_seconds = now - engine.get("updated_at_us", 0) / 1e6
    # Uses the absolute value, because a clock that was set back leaves a time in the future in the file.
    stale = abs(age_seconds) > STALE_SECONDS
    away = lease.host if lease is not None and held and lease.host != os.uname().nodename else ""
    if away and stale:
        engine = {}  # Ignores the status, because this host's engine wrote it before another host took the lease.
    state = str(engine.get("state", "STOPPED"))
    reason = str(engine.get("reason", "") or "")
    if away and not engine:
        state, reason = (
            "STANDBY",
            f"the engine on {away} reads this destination; `sluice status` on that host and Dagster's plots show lag",
        )
    elif not engine:
        reason = NEVER_RAN
    elif stale:
        state, reason = _without_status(state, reason, age_seconds, held=held)
    if not held and (order := stop_order(directory)) is not None:
        state, reason = (
            "STOPPED",
            f"{order.by} stopped the engine at {order.when()}; start the engine with `sluice instance start {name}`",
        )
    return DestinationStatus(
        name=name,
        state=state,
        reason=reason,
        waiting="" if stale else str(engine.get("waiting") or ""),
        cursor=position_text(meta.get("cursor")),
        position=position_text(engine.get("position")),
        lag_seconds=round(float(engine["lag_seconds"]), 1) if "lag_seconds" in engine else None,
        retention_left_hours=_retention_left(engine.get("retention_left_hours"), age_seconds if stale else 0.0),
        oldest_binlog_hours=None if stale else engine.get("oldest_binlog_hours"),
        rows_per_second=round(float(engine.get("rows_per_second") or 0.0), 1),
        ring_bytes=int(engine.get("ring_bytes") or 0),
        ring_bytes_max=int(engine.get("ring_bytes_max") or 0),
        ring_events=int(engine.get("ring_events") or 0),
        shared=not stale and bool((engine.get("stream") or {}).get("shared")),
        age_seconds=round(age_seconds, 1) if engine else 0.0,
        tick_age_seconds=_age(engine.get("ticked_at_us"), now),
        ack_age_seconds=_age(engine.get("acked_at_us"), now),
        troubles=[*unknown, *(() if stale else (str(each) for each in engine.get("troubles") or ()))],
        holder=f"pid {lease.pid} on {lease.host}" if lease and held else "",
        outstanding=[_outstanding(batch) for batch in meta.get("outstanding") or []],
        stopped_tables=engine.get("stopped_tables") or meta.get("stopped_tables") or [],
        consumers=consumers_of(engine, meta),
    )


def read_group(config: SluiceConfig, name: str, now: float) -> DestinationStatus:
    """Returns the status of one group. If the engine has reported no members, the field `group` has the members in conf/."""
    directory = config.destination_dir(name)
    members = [{"name": member} for member in config.groups[name].members]
    group = engine_status(directory).get("group") or {"members": members}
    return dataclasses.replace(read_destination(directory, name, now), group=group)


def _kept(directory: Path) -> tuple[dict[str, Any], Holder | None, list[str]]:
    """Returns (content of the ledger, holder of the lease, []), or ({}, None, [message]) if the record store does not answer."""
    try:
        return _record(ledger_text(directory)), lease_holder(directory), []
    except MetaError as error:
        return {}, None, [f"{error}; while this lasts, the cursor and the process that runs the engine are unknown"]


def _without_status(state: str, reason: str, age_seconds: float, *, held: bool) -> tuple[str, str]:
    """Returns the state and reason of an engine whose status is older than STALE_SECONDS or has a time in the future. `state` and `reason`
    are those in this status. Returns STALE if a process holds the lease (`held`), `state` if the engine has ended by itself in this state,
    and STOPPED for all other engines.
    """
    heard = f"the engine wrote its last status {age_seconds:.0f} s ago, as {state}"
    if age_seconds < 0:
        heard = f"the engine wrote its last status, {state}, with a time {-age_seconds:.0f} s in the future (the clock was set back)"
    if held:
        return "STALE", (
            f"{heard}; its process holds the lease and hangs or is suspended: end this process, then run `sluice up`"
        )
    if ended(state):
        return state, f"{reason} ({heard}; no process has tried to start the engine since then: run `sluice up`)"
    return "STOPPED", f"{heard}; start the engine again with `sluice up`"


def _retention_left(hours: float | None, unsaid_seconds: float) -> float | None:
    """Returns the retention left now, in hours. `hours` is the value, or None, that the engine wrote `unsaid_seconds` ago."""
    return None if hours is None else round(max(0.0, hours - max(0.0, unsaid_seconds) / 3600), 2)


def _age(moment_us: Any, now: float) -> float | None:
    return round(max(0.0, now - moment_us / 1e6), 1) if moment_us else None


def find_problems(
    running: Sequence[dict[str, Any]], destinations: Sequence[DestinationStatus], *, apart: bool = False
) -> list[str]:
    """Returns a message for each problem. With `apart`, the engines run on other hosts, so this host needs no process."""
    dead = [
        f"the {process['name']} (pid {process['pid']}) does not run any more; start it again with `sluice up`"
        for process in running
        if not process["alive"]
    ]
    dead += [_stopped_sentence(process) for process in running if process.get("stopped")]
    found = dead if running or apart else ["no process of Sluice runs; start Sluice with `sluice up`"]
    for one in destinations:
        if one.state not in WELL:
            how = engine_way_out(one.state, one.name)
            found.append(f"{one.name} is {one.state}: {one.reason or WHAT_TO_DO}{f' ({how})' if how else ''}")
        if one.waiting:
            said = "" if one.tick_age_seconds is None else f" (reported {one.tick_age_seconds:.0f} s ago)"
            found.append(f"{one.name} is {one.waiting}{said}")
        found += [f"{one.name}: {trouble}" for trouble in one.troubles]
        found += consumer_problems(one)
        found += [_stop_sentence(one.name, table) for table in one.stopped_tables]
        found += [failed_sentence(one.name, each) for each in one.snapshots if each["state"] == SnapshotState.FAILED]
        found += [
            f"{one.name}: no run has read rows of {each['table']} for {each['still_seconds'] / 60:.0f} min, "
            f"and changes of the table are buffered: check whether the sensor {one.name}_snapshots is "
            "switched off (Dagster's UI, Automation), and whether its runs fail"
            for each in one.snapshots
            if each.get("still_seconds", 0.0) > SNAPSHOT_STILL_SECONDS_MAX
        ]
    return found


def _stopped_sentence(process: dict[str, Any]) -> str:
    ids = " ".join(str(pid) for pid in process["stopped"])
    return (
        f"processes of the {process['name']} are suspended ({ids}); continue these processes with `kill -CONT {ids}`, or "
        "restart Sluice with `sluice down` and `sluice up`"
    )


def _stop_sentence(destination: str, stop: dict[str, Any]) -> str:
    """Returns the message about a stopped table: why the table stopped, and the commands that resume it, if there are any."""
    table, state = f"{stop.get('database')}.{stop.get('table')}", str(stop.get("state"))
    how = way_out(state, destination, table)
    return f"{destination}: the table {table} stopped in the state {state}: {stop.get('reason')}{f' ({how})' if how else ''}"


def render(report: StatusReport, *, verbose: bool = False) -> Group:
    """Formats the whole status as tables and lines, problems first. With `verbose`, names each foreign key and each table without a key.
    Otherwise shows only how many there are.
    """
    shown = Table("process", "pid", "port", "state", "memory", title="processes", title_justify="left")
    for process in report.processes:
        state = _process_state(process)
        shown.add_row(
            process["name"], str(process["pid"]), str(process["port"] or ""), state, f"{process['rss_mb']} MB"
        )
    positions = Table(
        "destination",
        "state",
        "acked up to",
        "read up to",
        "lag",
        "kept",
        "oldest",
        "rows/s",
        "ring",
        "last tick",
        "last ack",
        "out",
        title="destinations",
        title_justify="left",
    )
    for one in (each for each in report.destinations if each.group is None):
        state = Text(f"{one.state}{', shared' if one.shared else ''}", "green" if one.state in WELL else "red")
        ring = f"{one.ring_bytes / 2**20:.1f} of {one.ring_bytes_max / 2**20:.0f} MB" if one.ring_bytes_max else ""
        out = ", ".join(f"#{batch['batch_id']} ({batch['rows']} rows)" for batch in one.outstanding)
        hours = (
            "" if each is None else f"{each:.0f} h" for each in (one.retention_left_hours, one.oldest_binlog_hours)
        )
        rates = (shown_lag(one.lag_seconds), *hours, f"{one.rows_per_second:.0f}")
        ages = ("never" if age is None else f"{age:.0f} s" for age in (one.tick_age_seconds, one.ack_age_seconds))
        positions.add_row(one.name, state, one.cursor, one.position, *rates, ring, *ages, out)
    reading = [
        _reading_line(one.name, each)
        for one in report.destinations
        for each in one.snapshots
        if each["state"] != SnapshotState.FAILED
    ]
    problems = [Text(f"✗ {problem}", "red") for problem in report.problems]
    warnings = [Text(f"! {warning}", "yellow") for warning in report.warnings]
    keys = [line for one in report.destinations for line in _notes(one, verbose=verbose)]
    consumers, groups = consumer_table(report.destinations), group_table(report.destinations)
    return Group(
        *problems,
        *warnings,
        *([Text(report.conf)] if report.conf else ()),
        shown,
        positions,
        *([groups] if groups else ()),
        *([consumers] if consumers else ()),
        *([Text(f"Dagster's storage has {report.dagster_bytes / 2**20:.0f} MB")] if report.dagster_bytes else ()),
        *keys,
        *reading,
        *(problems or [well(report)]),
    )


def _reading_line(destination: str, reading: Mapping[str, Any]) -> Text:
    """Returns a line with the progress of a table's snapshot. The line also says if the table in the lake is older than the cursor."""
    older = reading.get("lake_is_older")
    sentence = f"{destination}: a snapshot is reading {reading['table']}: {reading['rows']} of about {reading['rows_expected']} rows"
    return Text(f"{sentence}; {older}" if older else sentence, "yellow" if older else "cyan")


def well(report: StatusReport) -> Text:
    """Returns the last line of a status without problems. The line also says how many warnings there are, and how many tables in the lake
    are older than the cursor.
    """
    older = sum(bool(each.get("lake_is_older")) for one in report.destinations for each in one.snapshots)
    also = [f"{len(report.warnings)} warning(s)"] if report.warnings else []
    if older:
        also.append(f"{older} tables in the lake are older than 'acked up to' until their snapshots are published")
    return Text("; ".join(["no problems", *also]), "yellow" if also else "green")


def _notes(one: DestinationStatus, *, verbose: bool) -> list[Text]:
    """Returns lines that say how Sluice treats foreign keys that change rows without row events, and tables without a key."""
    keyless = [Text(keyless_sentence(one.name, one.keyless, verbose=verbose))] if one.keyless else []
    if verbose:
        return [
            Text(f"{one.name}: {note.table}: {note.sentence}", "" if note.followed else "yellow")
            for note in one.foreign_keys
        ] + keyless
    followed = sum(note.followed for note in one.foreign_keys)
    count = len(one.foreign_keys)
    note = f"{one.name}: {count} foreign key(s) change rows without row events; the lake gets the changes of {followed} (see --verbose)"
    return [*([Text(note, "" if followed == count else "yellow")] if count else []), *keyless]


def _process_state(process: dict[str, Any]) -> Text:
    if not process["alive"]:
        return Text("ended", "red")
    return Text("stopped", "red") if process.get("stopped") else Text("running", "green")


def _record(text: str) -> dict[str, Any]:
    """Parses a JSON object. Returns an empty dict for any other text."""
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _outstanding(batch: dict[str, Any]) -> dict[str, Any]:
    shown = {key: batch.get(key) for key in ("batch_id", "delivery", "rows", "bytes", "tables")}
    return {**shown, "end": position_text(batch.get("end"))}
