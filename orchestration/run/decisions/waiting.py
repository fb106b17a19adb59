"""Lists the decisions that an operator has to make, and what each choice does. The job `decide` shows the list. Listing changes nothing.

Each choice has a link to the launchpad with the config of the decision. The config describes the choice in comments. The operator has to
fill in only the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from sluice.cdc_engine.contracts import StoppedTable
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.states import OF_THE_LAKE, TableState, way_out
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.orchestration.base.markdown import code
from sluice.orchestration.base.shown_tables import ShownTables, others_source_key
from sluice.orchestration.base.table_catalog import source_key
from sluice.orchestration.checks.equality import EQUAL_CHECK, REASONS
from sluice.orchestration.run.decisions.launchpad import Launchpad, config_text

NOTHING = "nothing waits for a decision"
TO_FILL_IN = "write a reason, then launch the run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitingDecisions:
    """Builds the list of decisions that an operator has to make at a destination. The links lead to `launchpad`. `shown` tells which tables
    have assets of their own. `str()` of this object returns the list.
    """

    instance: dg.DagsterInstance
    directory: Path
    destination: str
    launchpad: Launchpad
    shown: ShownTables

    def __str__(self) -> str:
        """Returns the list as Markdown: pending schema changes with their plans, stopped tables, tables that differ, and consumers. Raises
        MetaError if the ledger cannot be read.
        """
        parts = (
            ("Schema changes (`act: approve`)", list(self._schema_changes())),
            ("Stopped tables (`act: resume`)", list(self._stops())),
            ("Tables that differ (`act: plan_repair`, then `act: repair`)", list(self._differing())),
            ("Consumers (`act: forget`)", list(self._consumers())),
        )
        return "\n\n".join("\n\n".join([f"## {title}", *lines]) for title, lines in parts if lines) or NOTHING

    def _decide(self, title: str, seen: tuple[str, ...], **fields: Any) -> str:
        act, rest = fields.pop("act"), fields
        config = {"act": act, "destination": self.destination, **rest, "reason": ""}
        return self.launchpad.link(title, config_text((*seen, TO_FILL_IN), config))

    def _schema_changes(self) -> Iterator[str]:
        from sluice.cdc_engine.acts import stopped_table  # noqa: PLC0415  only runs import the kernels

        for each in stopped_table.pending_changes(self.directory):
            name, record = _name(each.stop), each.record
            if record is None:
                yield self._stop(each.stop, requested=False)
                continue
            seen = [f"{name} waits for a decision about the statement at {record.position}:", f"    {record.statement}"]
            seen += [f"{what}: {plan}: {does}" for what, plans in record.items for plan, does in plans.items()]
            lines = [f"**{code(name)}**: {code(record.statement)} at {code(record.position)}"]
            if each.approved:
                lines.append(
                    f"The change is approved as {code(each.approved)}; the engine has not read the approval yet."
                )
            for what, plans in record.items:
                lines.append(
                    "\n".join([f"- {code(what)}", *(f"    - {code(plan)}: {does}" for plan, does in plans.items())])
                )
            fields = {"act": "approve", "table": name, "position": record.position}
            links = [self._decide(f"approve as {plan}", tuple(seen), **fields, plan=plan) for plan in record.choices]
            yield "\n\n".join([*lines, f"In the launchpad: {', '.join(links)}"])

    def _stops(self) -> Iterator[str]:
        from sluice.cdc_engine.acts import stopped_table  # noqa: PLC0415  only runs import the kernels

        requested = stopped_table.resumed_next(self.directory)
        for stop in read_ledger(self.directory).stopped_tables:
            if stop.state != TableState.DDL_HELD:
                yield self._stop(stop, requested=_name(stop) in requested)

    def _stop(self, stop: StoppedTable, *, requested: bool) -> str:
        name, position = _name(stop), str(stop.position)
        stopped = f"- **{code(name)}** ({stop.state}): {stop.reason}."
        if stop.state in OF_THE_LAKE:
            return f"{stopped} resume is refused here: {way_out(stop.state, self.destination, name)}"
        done = f"continues from the position of its stop, {position}, and reads the later changes again"
        seen = (f"{name} stopped ({stop.state}): {stop.reason}", f"resume: the table {done}")
        link = self._decide("resume", seen, act="resume", table=name, position=position)
        already = ". A resume is requested; the engine has not read the request yet" if requested else ""
        return f"{stopped} {link} {done}{already}"

    def _differing(self) -> Iterator[str]:
        """Yields a line for each table that its newest comparison did not find equal."""
        for name, why in self._reasons().items():
            does = "compares again, reads the rows that differ, and merges them"
            seen = (f"{name}: {why}", f"repair: {does}")
            plan = self._decide("plan_repair", seen, act="plan_repair", table=name)
            repair = self._decide("repair", seen, act="repair", table=name)
            yield f"- **{code(name)}**: {why}. {plan} changes nothing; {repair} {does}"

    def _reasons(self) -> dict[str, str]:
        """Returns the reason for each "database.table" that its newest comparison did not find equal.

        If tables share an asset, the check of that asset has the results. A table may have a check of its own from an earlier time, when it
        had its own asset. The results of that check are older and are not used.
        """
        tables, reasons = read_tables(self.directory), dict[str, str]()
        own = {source_key(self.destination, each.name): each.name for each in self.shown.own(tables)}
        shared = {others_source_key(self.destination, name): found for name, found in self.shown.others(tables).items()}
        own |= {key: found[0].name for key, found in shared.items() if len(found) == 1}
        keys = [dg.AssetCheckKey(key, EQUAL_CHECK) for key in dict.fromkeys((*own, *shared))]
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        for key, record in found.items():
            # The record of a comparison that has not ended has no result.
            evaluation = record.evaluation
            if not isinstance(evaluation, dg.AssetCheckEvaluation) or evaluation.passed:
                continue
            if name := own.get(key.asset_key):
                reasons[name] = evaluation.description or "it differs"
            elif REASONS in evaluation.metadata:
                listed: Any = evaluation.metadata[REASONS].value
                reasons |= listed
        return reasons

    def _consumers(self) -> Iterator[str]:
        from sluice.cdc_engine.acts import consumer  # noqa: PLC0415  only runs import the kernels

        requested, ledger = consumer.forgotten_next(self.directory), read_ledger(self.directory)
        cursors = {each.client_id: str(each.cursor) for each in ledger.consumers}
        cursors |= {each.client_id: str(each.cursor) for each in ledger.group_consumers}
        for client_id, cursor in cursors.items():
            does = f"deletes its cursor ({cursor}); the consumer then starts as a new consumer"
            seen = (f"consumer {client_id}: forget {does}",)
            link = self._decide("forget", seen, act="forget", consumer=client_id)
            already = ". This is requested; the engine has not read the request yet" if client_id in requested else ""
            yield f"- {client_id}: {link} {does}{already}"


def waiting(
    instance: dg.DagsterInstance,
    directory: Path,
    destination: str,
    launchpad: Launchpad,
    shown: ShownTables | None = None,
) -> str:
    """Returns the decisions that an operator has to make at a destination, as Markdown. `shown` tells which tables have assets of their
    own; by default all have. Raises MetaError if the ledger cannot be read.
    """
    each_own = ShownTables(destination=destination, grouped=False, named=frozenset())
    return str(
        WaitingDecisions(
            instance=instance,
            directory=directory,
            destination=destination,
            launchpad=launchpad,
            shown=shown or each_own,
        )
    )


def _name(stop: StoppedTable) -> str:
    return f"{stop.database}.{stop.table}"
