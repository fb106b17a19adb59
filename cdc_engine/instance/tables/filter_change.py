"""Finds the tables whose earlier rows are missing in the lake, or were merged with other settings. Requests snapshots of these tables, or
stops them. Such tables are all tables of a new destination, tables that conf/ newly includes, and tables whose row settings changed.
`wiring` calls this module when an engine starts, and `engine_acts` calls it when tables are resumed or re-snapshotted.

`filters.json` stores the include and exclude patterns and the row settings with which the engine last started. A table that the source
created after this start has no settings of its own there. Its settings follow from the settings that are not under `tables`.

- A newly included table may have rows that no change in the stream contains. If `snapshot` in conf/ allows it, a snapshot reads these rows.
  Otherwise the table stops (NEWLY_INCLUDED), so that the lake never has only a part of the table's rows, and an operator decides.
- A table stops (RULES_CHANGED) if its row settings changed: row filter, masks, transform, or a setting that the module `row_shape`
  classifies. The lake keeps the rows that were merged with the old settings until the table is re-snapshotted.
- If a table whose row settings changed is already stopped for another reason, `filters.json` keeps its old settings. When an operator
  resumes the table, it stays stopped, now in the state RULES_CHANGED. A second resume accepts the new settings.
- While conf/ excludes a table, `filters.json` keeps the settings of the rows that the lake has of this table.
- `filters.json` also has the position at which the engine noticed the last change of a table's settings. The Delta table's versions from
  before this position have rows of other settings, so `backfill --into` builds no past state from them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.config import DestinationConfig
from sluice.cdc_engine.contracts import StoppedTable, TableVersion
from sluice.cdc_engine.destination_files.lake_tables import LakeTables
from sluice.cdc_engine.errors import ConfigurationError, MetaError
from sluice.cdc_engine.instance.tables.resnapshot import unhealed
from sluice.cdc_engine.instance.tables.row_shape import (
    Shape,
    changed_settings,
    settings_of_others,
    shape_of,
    shape_of_other,
)
from sluice.cdc_engine.instance.tables.value_policies import policies_of, policy_of
from sluice.cdc_engine.meta.manager import MetaManager, stops
from sluice.cdc_engine.meta.manager import Transition as LedgerTransition
from sluice.cdc_engine.meta.resume_requests import ResumeRequest
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.record import SnapshotRecord, wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords, Transition
from sluice.cdc_engine.states import SnapshotState, TableState

FILE = "filters.json"
NOT_CAPTURED = "the table was not captured for some time"
RULES = ("rows, masks, transform or current_state",)
# The states of tables that stopped because their row rules do not fit their columns, or because their transform failed.
_UNFIT = frozenset({TableState.ROWS_RULE, TableState.TRANSFORM_FAILED})
# The states in which a table stops because conf/ changed.
_OF_CONF = frozenset({TableState.NEWLY_INCLUDED, TableState.RULES_CHANGED})
_UNDER_WAY = frozenset({SnapshotState.READING, SnapshotState.READ})
T = TypeVar("T")


def take_up_new_tables(  # noqa: PLR0917  one caller
    config: DestinationConfig,
    directory: Path,
    tables: Iterable[TableVersion],
    meta: MetaManager,
    begin: Position,
    known: Collection[str] = (),
    *,
    policies: Mapping[str, ValuePolicy] | None = None,
    dropped: Collection[str] = (),
) -> None:
    """Compares conf/ with the settings of the engine's last start. Requests a snapshot of each newly included table. If conf/ allows no
    snapshot, stops the table. In a new destination, such a table does not stop: the lake begins without the table's existing rows. Stops
    each table whose row settings changed. Then saves the current settings.

    `tables` are the captured tables at `begin`. `known` are all tables ("database.table") with a record in the schema history. `policies`
    are the value policies with which the engine decodes; None means the policies of the current conf/. `dropped` are the tables of `known`
    that were dropped before `begin`. May be repeated after a crash. Raises MetaError or ConfigurationError.
    """
    tables = tuple(tables)
    refuse_misspelled(config, {*(each.name for each in tables), *(stop.name for stop in meta.ledger.stopped_tables)})
    rules = _digests(config, policies_of(config) if policies is None else policies)
    there = {*(table.name for table in tables), *known, *(stop.name for stop in meta.ledger.stopped_tables)}
    shapes = _shapes(config, there)
    now: dict[str, Any] = {
        "include": config.include,
        "exclude": config.exclude,
        "rules": rules,
        "shapes": shapes,
        "others": settings_of_others(config),
    }
    before = _kept(directory)
    if before is not None and {part: before.get(part) for part in now} == now:
        return
    captured = TableFilter(before["include"], before["exclude"]) if before is not None else None
    old, up_to_date = _with_others(before, there) if before is not None else now, set[str]()
    snapshots, outdated, changed_at = _Snapshots(directory), set[str](), dict[str, Any]()
    for table in tables:
        why = _changes(old, now, table.name, table)
        if why:
            changed_at[table.name] = begin.to_json()
        if captured is not None and captured.keeps(table.database, table.table):
            if why:
                snapshots.read_again(table.name, begin, _new_settings(why), heals=TableState.RULES_CHANGED)
            if (why and _stop_changed(config, meta, table, begin, why)) or not why:
                up_to_date.add(table.name)
        elif config.reads_first_rows(table.database, table.table):
            _want_rows(snapshots, table, begin)
        elif captured is not None:
            snapshots.read_again(table.name, begin, NOT_CAPTURED, heals=TableState.NEWLY_INCLUDED)
            meta.update(stops(_stop(table, begin)))
            outdated |= {table.name} if snapshots.has_rows(table.name) else set()
    gone = _gone(dropped, shapes) - {stop.name for stop in meta.ledger.stopped_tables}
    waits = outdated if captured is None else outdated | _waiting(config, captured, old, there - up_to_date - gone)
    parts = ("rules", "shapes")
    kept = {part: _mixed(now[part] if old.get(part) is None else old[part], now[part], waits) for part in parts}
    positions = {name: each for name, each in (before or {}).get("changed_at", {}).items() if name in there}
    _keep(directory, {**now, **kept}, positions | changed_at)


def _waiting(
    config: DestinationConfig, captured: TableFilter, old: Mapping[str, Any], names: Collection[str]
) -> set[str]:
    """Returns the tables whose saved settings must stay as they are in `old`, because the lake has rows that were merged with these
    settings. The result has the tables that conf/ excludes now. It also has the tables in `names` that the earlier patterns (`captured`)
    include: the engine has not handled their changed settings yet, for example because the table is stopped for another reason.
    """
    now = TableFilter(config.include, config.exclude)
    known = {*names, *config.tables, *old["rules"], *(old.get("shapes") or {})}
    excluded = {name for name in known if not now.keeps(*name.partition(".")[::2])}
    return excluded | {name for name in names if captured.keeps(*name.partition(".")[::2])}


def _gone(dropped: Collection[str], shapes: Mapping[str, Shape]) -> set[str]:
    """Returns the tables in `dropped` whose saved settings are no longer needed: if the source creates such a table again, the earlier rows
    are deleted first. With `deletes: soft` (in `shapes`), the earlier rows are only marked as deleted and keep the form of the earlier
    settings, so these settings are still needed.
    """
    return {name for name in dropped if shapes.get(name, {}).get("deletes") != "soft"}


def refuse_misspelled(config: DestinationConfig, names: Collection[str]) -> None:
    """Raises ConfigurationError if conf/ has row rules for a captured table but spells the table's name in another letter case. Without
    this error, the table would be captured without the rules, because `include` ignores letter case, and the names under `tables` are
    case-sensitive. `names` are the captured tables ("database.table").
    """
    spelled = {name.lower(): name for name in names}
    for name, table in config.tables.items():
        there = spelled.get(name.lower(), name)
        if table.has_rules and name not in names and there != name:
            raise ConfigurationError(
                f"tables.{name} of {config.name} has `rows`, `masks` or `transform`, but the table in the "
                f"source is called {there}: write {there}, because names in these settings are case-sensitive"
            )


def may_resume(
    config: DestinationConfig,
    directory: Path,
    policies: Mapping[str, ValuePolicy],
    wanted: Sequence[ResumeRequest],
    meta: MetaManager,
) -> list[ResumeRequest]:
    """Returns the requests to resume tables whose settings did not change while the tables were stopped. Every other requested table gets
    the state RULES_CHANGED, its request is removed, and the current settings are saved. So a second request resumes the table. `policies`
    are the value policies with which the engine decodes.
    """
    now = {"rules": _digests(config, policies), "shapes": _shapes(config, [each.name for each in wanted])}
    before = _kept(directory)
    old = _with_others(before, [each.name for each in wanted]) if before is not None else now
    snapshots, may, accepted = _Snapshots(directory), list[ResumeRequest](), set[str]()
    for each in wanted:
        stop = meta.ledger.stopped(each.database, each.table)
        why = _changes(old, now, each.name, None) or _before_canceled(snapshots, stop)
        if stop is None or not why:
            may.append(each)
            continue
        # Removes the request first. If it remained after a crash, it would count as the second request, which resumes the table.
        each.done()
        snapshots.read_again(each.name, stop.position, _new_settings(why), heals=TableState.RULES_CHANGED)
        meta.update(_restates(_changed(config, stop, stop.position, why)))
        accepted.add(each.name)
    take_rules(config, directory, policies, accepted, meta.ledger.cursor)
    return may


def take_rules(
    config: DestinationConfig,
    directory: Path,
    policies: Mapping[str, ValuePolicy],
    names: Collection[str],
    cursor: Position | None,
) -> None:
    """Saves the engine's current settings of the tables `names` in `filters.json`, so that the engine no longer stops these tables because
    of an earlier change of their settings. Called if tables are re-snapshotted, or if an operator resumes tables although their older rows
    were merged with other settings.

    `policies` are the value policies with which the engine started. The engine uses these policies until it stops, even for the changes
    that a snapshot buffers. If a salt or the module of a transform has changed since the start, the engine notices the change at its next
    start.
    """
    before = _kept(directory)
    if before is not None and names:
        now: dict[str, Any] = {
            "rules": _digests(config, policies),
            "shapes": _shapes(config, {*names, *(before.get("shapes") or {})}),
        }
        old, snapshots = _with_others(before, names), _Snapshots(directory)
        changed = [name for name in sorted(names) if _changes(old, now, name, None)]
        for name in changed:
            snapshots.note(name, TableState.RULES_CHANGED)
        parts = [part for part in now if before.get(part) is not None]
        kept = {part: _mixed(before[part], now[part], {*before[part], *now[part]} - {*names}) for part in parts}
        positions = {name: cursor.to_json() for name in changed if cursor is not None}
        _keep(directory, {**before, **kept}, before.get("changed_at", {}) | positions)


def has_earlier_settings(
    config: DestinationConfig, directory: Path, name: str, end: Position, *, is_published: bool
) -> bool:
    """Returns whether a version of the Delta table of "database.table" has rows that were made with other settings than conf/ has now.
    `end` is the position up to which the version has changes. `is_published`: whether the publication of a snapshot made the version.

    Does not know changes of settings under earlier versions of Sluice, which did not save the positions of such changes.
    """
    before = _kept(directory)
    if before is None:
        return False
    policies = {name: policy_of(config, *name.split(".", 1))}
    now = {"rules": _digests(config, policies), "shapes": _shapes(config, [name])}
    if _changes(_with_others(before, [name]), now, name, None):
        return True
    found = before.get("changed_at", {}).get(name)
    if found is None:
        return False
    changed = Position.from_json(found).order_key
    # A publication at the position of the change has the new settings, because a snapshot begins again after a change of settings.
    return end.order_key < changed or (end.order_key == changed and not is_published)


def _keep(directory: Path, record: Mapping[str, Any], changed_at: Mapping[str, Any]) -> None:
    """Saves `record` in `filters.json` with `changed_at`, the positions of the last changes of settings by table. An empty `changed_at` is
    left out.
    """
    record_store(directory).put(FILE, json.dumps({**record, **({"changed_at": changed_at} if changed_at else {})}))


def _shapes(config: DestinationConfig, names: Collection[str]) -> dict[str, Shape]:
    """Returns the row settings (module `row_shape`) of each table by "database.table", without row rules and masks.

    Leaves out a table whose settings all have their default values. But if conf/ changes a default for tables without an entry in `tables`
    (`settings_of_others`), the result has {} for the table. Without this {}, `_with_others` would later give the table the changed
    defaults.
    """
    found = {name: shape_of(config, name) for name in sorted({*names, *config.tables})}
    others = settings_of_others(config)
    return {name: shape for name, shape in found.items() if shape or shape_of_other(others, name)}


def _with_others(record: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns the saved record with row settings for each table in `names`. If the record lacks a table, for example because the table was
    created later, uses the settings that conf/ had for tables without an entry in `tables` when the record was saved (`others`). Returns
    the record unchanged if an older version of Sluice wrote it, without `others`.
    """
    shapes, others = record.get("shapes"), record.get("others")
    if shapes is None or others is None:
        return dict(record)
    return {**record, "shapes": {**{name: shape_of_other(others, name) for name in names}, **shapes}}


def _changes(
    old: Mapping[str, Any], new: Mapping[str, Any], name: str, version: TableVersion | None
) -> tuple[str, ...]:
    """Returns the names of the settings of the table `name` whose change makes the table's rows in the lake wrong. `old` has the saved
    settings, and `new` the present ones. `version` is the table, or None if its columns are unknown. If `old` has no `shapes`, because an
    older version of Sluice wrote it, the settings that the module `row_shape` classifies count as unchanged.
    """
    rules = RULES if old["rules"].get(name, "") != new["rules"].get(name, "") else ()
    if old.get("shapes") is None:
        return rules
    return (*rules, *changed_settings(old["shapes"].get(name, {}), new["shapes"].get(name, {}), version))


def _mixed(old: Mapping[str, T], new: Mapping[str, T], waits: Collection[str]) -> dict[str, T]:
    """Returns the settings to save for each table: the old settings for the tables in `waits`, and the new settings for all others."""
    sources = {name: old if name in waits else new for name in sorted({*old, *new})}
    return {name: source[name] for name, source in sources.items() if name in source}


def _digests(config: DestinationConfig, policies: Mapping[str, ValuePolicy]) -> dict[str, str]:
    """Returns a digest of each table's row rules, by "database.table". A digest reveals no salt.

    For a table without a current-state table, the digest also contains whether it has a change log or a history. So the table stops if
    conf/ later adds a current-state table, or replaces the change log by a history: the new Delta table would lack all earlier rows.
    """
    rules = {name: rules_digest(policy.rules) for name, policy in policies.items() if policy.rules}
    alone = {name: table for name, table in config.tables.items() if not table.current_state}
    instead = {name: "history" if table.history else "log" for name, table in alone.items()}
    return {name: "/".join(filter(None, (rules.get(name), instead.get(name)))) for name in sorted({*rules, *instead})}


def rules_digest(rules: RowRules) -> str:
    """Returns a digest of a table's row rules. The digest reveals no salt."""
    text = json.dumps(rules.as_settings(), sort_keys=True)
    return hashlib.scrypt(text.encode(), salt=b"sluice rules", n=1 << 12, r=8, p=1, dklen=8).hex()


def _stop_changed(
    config: DestinationConfig, meta: MetaManager, table: TableVersion, begin: Position, why: Sequence[str]
) -> bool:
    """Stops a table because the settings `why` changed. Returns whether the table is now stopped for this reason.

    A table that already stopped because its rules did not fit, or because its transform failed, gets the new reason, so that it is
    re-snapshotted with the new rules. A table that is stopped for any other reason keeps that reason; its rules are checked when it
    resumes.
    """
    there = meta.ledger.stopped(table.database, table.table)
    if there is None:
        meta.update(stops(_changed(config, table, begin, why)))
    elif there.state in _UNFIT:
        meta.update(_restates(_changed(config, table, there.position, why)))
    return there is None or there.state in {*_UNFIT, TableState.RULES_CHANGED}


def _restates(stop: StoppedTable) -> LedgerTransition:
    return lambda ledger: ledger.restate_stop(stop)


def _changed(
    config: DestinationConfig, table: TableVersion | StoppedTable, position: Position, settings: Sequence[str]
) -> StoppedTable:
    options = config.table(table.database, table.table)
    path = options.path or config.folder(table.database, table.table)
    wanted = {"__log": options.change_log, "__history": options.history}
    side_tables = " and ".join(f"{path}{suffix}" for suffix, there in wanted.items() if there)
    reason = (
        f"{_new_settings(settings)}, and the rows in the lake still have the "
        "form of the earlier conf/. Sluice re-snapshots the table by itself, unless `snapshot` is never. In that case, re-snapshot "
        "the table with `sluice snapshot start`, or restore the earlier settings in conf/"
    )
    if side_tables:
        reason += f". Rows in {side_tables} stay as they are: move these tables away, and Sluice creates new tables"
    return StoppedTable(
        database=table.database, table=table.table, state=TableState.RULES_CHANGED, reason=reason, position=position
    )


def _want_rows(snapshots: _Snapshots, table: TableVersion, begin: Position) -> None:
    there = snapshots.records.get(table.name)
    if there is None or not there.is_open:
        snapshots.records.begin(wanted(table.name, begin, time.time()).healing(TableState.NEWLY_INCLUDED))
    else:
        states = {*_UNDER_WAY, SnapshotState.FAILED}
        snapshots.read_again(table.name, begin, NOT_CAPTURED, heals=TableState.NEWLY_INCLUDED, states=states)


class _Snapshots:
    """The snapshots of a destination, and what the lake has of their tables."""

    def __init__(self, directory: Path) -> None:
        self.records, self._lake = SnapshotRecords(directory), LakeTables(directory)

    def has_rows(self, name: str) -> bool:
        """Returns whether the lake has rows of the table "database.table"."""
        return bool(self._lake.kept(name))

    def read_again(
        self,
        name: str,
        begin: Position,
        why: str,
        *,
        heals: TableState,
        states: Collection[SnapshotState] = _UNDER_WAY,
    ) -> None:
        """Lets a table's open snapshot in one of `states` read all rows again, and buffer only changes after `begin`. `why` is the reason.
        Its earlier chunks and buffered changes were made with earlier settings, or lack the changes from the time in which conf/ excluded
        the table. A paused snapshot stays paused. In any state, also does what `note` does.
        """
        buffered_after = begin.order_key
        self._change(
            name,
            heals,
            lambda now: now.again(why, buffered_after=buffered_after) if now.state in states else now,
        )

    def note(self, name: str, heals: TableState) -> None:
        """Records in a table's open snapshot that only its publication removes the cause of the state `heals`, if `unhealed` says so. If
        the snapshot is canceled, the reason of the table's stop then says what remains wrong in the lake.
        """
        self._change(name, heals, lambda now: now)

    def _change(self, name: str, heals: TableState, change: Transition) -> None:
        left, there = unhealed(heals, has_rows=self.has_rows(name)), self.records.get(name)

        def changed(now: SnapshotRecord) -> SnapshotRecord:
            # A run may have published the snapshot since `there` was read.
            return change(now.healing(*left)) if now.is_open else now

        if there is not None and there.is_open:
            self.records.update(name, changed)


def _before_canceled(snapshots: _Snapshots, stop: StoppedTable | None) -> tuple[str, ...]:
    """Returns a phrase instead of the names of changed settings if a table's snapshot was canceled that was necessary because conf/ had
    changed. Otherwise returns (). A comparison with `filters.json` finds no change, because the current settings were saved there when the
    snapshot was requested. If the lake has no rows of the table, no row has earlier settings, so the result is ().
    """
    if stop is None or stop.state != TableState.SNAPSHOT_CANCELED or not snapshots.has_rows(stop.name):
        return ()
    record = snapshots.records.get(stop.name)
    is_left = record is not None and record.state == SnapshotState.CANCELED and not _OF_CONF.isdisjoint(record.heals)
    return ("before the snapshot that was canceled",) if is_left else ()


def _new_settings(changed: Sequence[str]) -> str:
    return f"conf/ has changed for this table ({', '.join(changed)})"


def _kept(directory: Path) -> Mapping[str, Any] | None:
    records = record_store(directory)
    text = records.get(FILE)
    if text is None:
        return None
    try:
        record = json.loads(text)
        rules = {str(name): str(digest) for name, digest in record.get("rules", {}).items()}
        shapes = record.get("shapes")
        kept = {"include": str(record["include"]), "exclude": str(record["exclude"]), "rules": rules}
        others = {"others": dict(record["others"])} if "others" in record else {}
        positions = {str(name): dict(each) for name, each in record.get("changed_at", {}).items()}
        if others:
            shape_of_other(others["others"], "")  # Raises an error if the settings are incomplete.
        return {
            **kept,
            **others,
            **({"changed_at": positions} if positions else {}),
            "shapes": None if shapes is None else {str(name): dict(shape) for name, shape in shapes.items()},
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        where = records.where(FILE)
        raise MetaError(
            f"{where} cannot be read ({error}): restore this record from a backup, or remove it. Without this record, the "
            "engine re-snapshots each table whose `snapshot` is initial or when_needed. Sluice cannot tell which other tables conf/ "
            "newly includes, or which settings of rows changed: re-snapshot these tables with `sluice snapshot start`"
        ) from error


def _stop(table: TableVersion, begin: Position) -> StoppedTable:
    reason = (
        f"conf/ includes the table from {begin} on, so earlier rows and changes are not in the lake: "
        "re-snapshot the table with `sluice snapshot start`, or exclude it again; `sluice schema resume` "
        "captures the table from this position on without the earlier rows"
    )
    return StoppedTable(
        database=table.database, table=table.table, state=TableState.NEWLY_INCLUDED, reason=reason, position=begin
    )
