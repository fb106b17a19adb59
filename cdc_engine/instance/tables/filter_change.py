"""Handles tables that start in the middle of a stream: all tables of a new destination, tables that conf/ newly includes, and tables whose
row settings changed. Called by `wiring`.

`filters.json` stores the patterns and the row settings with which the engine last started.

- A newly included table may have rows that no change in the stream contains. If `snapshot` in conf/ says so, a snapshot reads them.
  Otherwise the table stops (NEWLY_INCLUDED), so that the lake never has only some of its rows, and an operator decides.
- A table stops (RULES_CHANGED) if its row settings changed: row filter, masks, transform, and each setting of `row_shape`. The lake keeps
  the rows that were merged under the old settings until the table is re-snapshotted.
- A table that stopped for another reason keeps its old settings. When it resumes, it stops for the changed settings before anything is
  staged under them."""

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
from sluice.cdc_engine.errors import ConfigurationError, MetaError
from sluice.cdc_engine.instance.tables.row_shape import Shape, changed_settings, shape_of
from sluice.cdc_engine.instance.tables.value_policies import policies_of
from sluice.cdc_engine.meta.manager import MetaManager, Transition, stops
from sluice.cdc_engine.meta.resume_requests import ResumeRequest
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.records.location import record_store
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.snapshot.record import wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState, TableState

FILE = "filters.json"
RULES = ("rows, masks, transform or current_state",)
# States of tables that stopped because their rules did not fit or their transform failed.
_UNFIT = frozenset({TableState.ROWS_RULE, TableState.TRANSFORM_FAILED})
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
) -> None:
    """Requests a snapshot of each newly included table, or stops it, and stops tables whose row settings changed. Then saves the current
    patterns and settings.

    `tables`: the captured tables as of `begin`. `known`: "database.table" of all tables that the schema history ever had, also of stopped
    ones. `policies`: those with which the engine decodes; None for those of the current conf/. Idempotent: after a crash the next start
    repeats the call. Raises MetaError, ConfigurationError.
    """
    tables = tuple(tables)
    refuse_misspelled(config, {*(each.name for each in tables), *(stop.name for stop in meta.ledger.stopped_tables)})
    rules = _digests(config, policies_of(config) if policies is None else policies)
    there = {*(table.name for table in tables), *known, *(stop.name for stop in meta.ledger.stopped_tables)}
    shapes = _shapes(config, there)
    now: dict[str, Any] = {"include": config.include, "exclude": config.exclude, "rules": rules, "shapes": shapes}
    before = _kept(directory)
    if before == now:
        return
    captured = TableFilter(before["include"], before["exclude"]) if before is not None else None
    old, up_to_date = before if before is not None else now, set[str]()
    records = SnapshotRecords(directory)
    for table in tables:
        if captured is not None and captured.keeps(table.database, table.table):
            why = _changes(old, now, table.name, table)
            if (why and _stop_changed(config, meta, table, begin, why)) or not why:
                up_to_date.add(table.name)
        elif config.reads_first_rows(table.database, table.table):
            _want_rows(records, table, begin)
        elif captured is not None:
            meta.update(stops(_stop(table, begin)))
    waits = {name for name in there - up_to_date if captured is not None and captured.keeps(*name.split(".", 1))}
    parts = ("rules", "shapes")
    kept = {part: _mixed(now[part] if old.get(part) is None else old[part], now[part], waits) for part in parts}
    record_store(directory).put(FILE, json.dumps({**now, **kept}))


def refuse_misspelled(config: DestinationConfig, names: Collection[str]) -> None:
    """Raises ConfigurationError if a rule would not apply because conf/ writes the table's name in another letter case. `include` ignores
    letter case, and rules do not.

    `names`: "database.table" of the captured tables.
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
    """Returns the resume requests of tables whose settings did not change while they were stopped. The other tables get the state
    RULES_CHANGED. `policies`: those with which the engine decodes.
    """
    now = {"rules": _digests(config, policies), "shapes": _shapes(config, [each.name for each in wanted])}
    before = _kept(directory)
    old = before if before is not None else now
    may, accepted = list[ResumeRequest](), set[str]()
    for each in wanted:
        stop = meta.ledger.stopped(each.database, each.table)
        why = _changes(old, now, each.name, None)
        if stop is None or not why:
            may.append(each)
            continue
        meta.update(_restates(_changed(config, stop, stop.position, why)))
        accepted.add(each.name)
    take_rules(config, directory, policies, accepted)
    for each in wanted:
        if each.name in accepted:
            each.done()
    return may


def take_rules(
    config: DestinationConfig, directory: Path, policies: Mapping[str, ValuePolicy], names: Collection[str]
) -> None:
    """Saves the engine's settings of these tables as the settings with which their rows in the lake are made. Called when the tables are
    re-snapshotted, or when an operator resumes them although older rows differ.

    `policies`: those with which the engine decodes. They have the transform and the salt with which the engine started: changes that it
    buffers for the snapshot are made with these. If a module or a salt has changed since, the next start detects that.
    """
    before = _kept(directory)
    if before is not None and names:
        now: dict[str, Any] = {
            "rules": _digests(config, policies),
            "shapes": _shapes(config, {*names, *(before.get("shapes") or {})}),
        }
        parts = [part for part in now if before.get(part) is not None]
        kept = {part: _mixed(before[part], now[part], {*before[part], *now[part]} - {*names}) for part in parts}
        record_store(directory).put(FILE, json.dumps({**before, **kept}))


def _shapes(config: DestinationConfig, names: Collection[str]) -> dict[str, Shape]:
    """Returns conf/'s settings for rows, except rules and masks, by "database.table"; without tables that have only defaults."""
    found = {name: shape_of(config, name) for name in sorted({*names, *config.tables})}
    return {name: shape for name, shape in found.items() if shape}


def _changes(
    old: Mapping[str, Any], new: Mapping[str, Any], name: str, version: TableVersion | None
) -> tuple[str, ...]:
    """Returns the settings of a table that differ from the earlier ones, and because of which its rows in the lake do not match conf/.

    A record without shapes is from an older version: the lake then counts as made with the current settings.
    """
    rules = RULES if old["rules"].get(name, "") != new["rules"].get(name, "") else ()
    if old.get("shapes") is None:
        return rules
    return (*rules, *changed_settings(old["shapes"].get(name, {}), new["shapes"].get(name, {}), version))


def _mixed(old: Mapping[str, T], new: Mapping[str, T], waits: Collection[str]) -> dict[str, T]:
    """Returns the new settings; tables that wait keep their old ones."""
    sources = {name: old if name in waits else new for name in sorted({*old, *new})}
    return {name: source[name] for name, source in sources.items() if name in source}


def _digests(config: DestinationConfig, policies: Mapping[str, ValuePolicy]) -> dict[str, str]:
    """Returns digests that identify each table's set of rules, by "database.table". They reveal no salt.

    For a table without a current-state table, a digest also identifies its log or history: a current-state table that is added later, or a
    history in place of a change log, lacks all earlier rows.
    """
    rules = {name: rules_digest(policy.rules) for name, policy in policies.items() if policy.rules}
    alone = {name: table for name, table in config.tables.items() if not table.current_state}
    instead = {name: "history" if table.history else "log" for name, table in alone.items()}
    return {name: "/".join(filter(None, (rules.get(name), instead.get(name)))) for name in sorted({*rules, *instead})}


def rules_digest(rules: RowRules) -> str:
    """Returns a digest of a table's rules. It reveals no salt."""
    words = json.dumps(rules.words(), sort_keys=True)
    return hashlib.scrypt(words.encode(), salt=b"sluice rules", n=1 << 12, r=8, p=1, dklen=8).hex()


def _stop_changed(
    config: DestinationConfig, meta: MetaManager, table: TableVersion, begin: Position, why: Sequence[str]
) -> bool:
    """Stops a table because its settings changed. Returns whether its stop reports this. A table that stopped because its rules did not fit
    is re-snapshotted with the new rules. Any other stop keeps its reason; the rules are checked when the table resumes.
    """
    there = meta.ledger.stopped(table.database, table.table)
    if there is None:
        meta.update(stops(_changed(config, table, begin, why)))
    elif there.state in _UNFIT:
        meta.update(_restates(_changed(config, table, there.position, why)))
    return there is None or there.state in {*_UNFIT, TableState.RULES_CHANGED}


def _restates(stop: StoppedTable) -> Transition:
    return lambda ledger: ledger.restate_stop(stop)


def _changed(
    config: DestinationConfig, table: TableVersion | StoppedTable, position: Position, settings: Sequence[str]
) -> StoppedTable:
    options = config.table(table.database, table.table)
    path = options.path or config.folder(table.database, table.table)
    wanted = {"__log": options.change_log, "__history": options.history}
    side_tables = " and ".join(f"{path}{suffix}" for suffix, there in wanted.items() if there)
    reason = (
        f"conf/ has changed for this table ({', '.join(settings)}), and the rows in the lake still have the "
        "form of the earlier conf/. Unless `snapshot` is never, the table is re-snapshotted by itself. "
        "Otherwise re-snapshot it with `sluice snapshot start`, or restore the earlier settings in conf/"
    )
    if side_tables:
        reason += f". Rows in {side_tables} stay as they are: move these tables away, and Sluice creates new ones"
    return StoppedTable(
        database=table.database, table=table.table, state=TableState.RULES_CHANGED, reason=reason, position=position
    )


def _want_rows(records: SnapshotRecords, table: TableVersion, begin: Position) -> None:
    there = records.get(table.name)
    if there is None or not there.is_open:
        records.begin(wanted(table.name, begin, time.time()))
    elif there.state != SnapshotState.WANTED:
        records.update(
            table.name,
            lambda now: now.again("the table was not captured for some time", buffered_after=begin.order_key),
        )


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
        return {
            **kept,
            "shapes": None if shapes is None else {str(name): dict(shape) for name, shape in shapes.items()},
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        where = records.where(FILE)
        raise MetaError(
            f"{where} cannot be read ({error}): if the include and exclude patterns in conf/ were not "
            "changed, remove this record"
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
