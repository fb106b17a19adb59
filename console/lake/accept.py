"""Implements `sluice lake accept`: takes over a Delta table that runs refuse, and re-snapshots it.

Runs refuse a Delta table that is missing, restored, replaced, owned by another ledger, or ahead of the ledger. A table is ahead of the
ledger if it has changes of an epoch or delivery that the ledger does not know.

A refused table may lack rows that the stream does not repeat. Therefore the command requests the snapshot before it takes the table over.
If the command crashes between these steps, the table stays stopped or is re-snapshotted, but it never continues with rows missing.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path

from sluice.cdc_engine.acts import snapshot
from sluice.cdc_engine.acts.stopped_destination import no_run, stopped_destination
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.meta.ledger import Ledger
from sluice.cdc_engine.states import OperatorAct
from sluice.cdc_engine.table_meta.table_list.reading import read_tables
from sluice.console.lake.lacking import Lacking
from sluice.console.lake.tables import DestinationLake, LakeTable
from sluice.console.toolchain.errors import SetupError
from sluice.spark_jobs.table_owner import Owner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The options of `sluice lake accept`. `name` is the table. With `as_it_is`, the table is not re-snapshotted, so missing rows stay
    missing.
    """

    destination: str
    name: str
    as_it_is: bool = False

    @property
    def resume(self) -> str:
        """The command with which an operator resumes the table, in backquotes, for messages."""
        return f"`sluice {OperatorAct.RESUME} {self.destination} {shlex.quote(self.name)}`"


def accept(
    config: SluiceConfig, acceptance: Acceptance, *, confirm: Callable[[str], bool], say: Callable[[str], None]
) -> None:
    """Takes over a Delta table that runs refuse: reports what the table lacks, requests a snapshot of the table, and makes the ledger the
    table's owner. With `as_it_is`, requests no snapshot. If the table is ahead of the ledger, because it has changes of an epoch or
    delivery that the ledger does not know, first raises the ledger's epoch and delivery number.

    Raises SetupError if the destination has no ledger, the operator declines, the Delta table's rows are not divided into shards as conf/
    says, or the table cannot be re-snapshotted. Raises ActRefusedError if the snapshot is refused. Raises LeaseLostError if a run merges,
    or if the table is ahead of the ledger while the engine runs.
    """
    lake, directory = DestinationLake(config, acceptance.destination), config.destination_dir(acceptance.destination)
    table, ledger = lake.table(acceptance.name), read_ledger(directory)
    if not ledger.ledger_id:
        raise SetupError(
            f"{acceptance.destination} has no ledger yet: first start the engine with `sluice up`, or set the "
            "position with `sluice position set`"
        )
    if table is not None and (why := lake.undivided(table, ledger.ledger_id)):
        raise SetupError(f"{acceptance.name} is not taken over, and nothing was changed: {why}")
    if not acceptance.as_it_is:
        _require_readable(directory, acceptance, ledger)
    owner = Owner(ledger_id=ledger.ledger_id, destination=acceptance.destination, table=acceptance.name)
    say(Lacking(lake=lake, owner=owner, table=table, cursor=str(ledger.cursor or "its start")).sentence())
    if not confirm(_question(config, acceptance, table)):
        raise SetupError(f"nothing was changed: you did not confirm that {acceptance.name} is taken over")
    if table is not None and (table.epoch > ledger.epoch or _delivery_of(table, ledger) >= ledger.next_delivery):
        with stopped_destination(directory) as stopped:
            delivery = _delivery_of(table, ledger)
            stopped.meta.update(lambda kept: kept.after(epoch=table.epoch, delivery=delivery))
            _take_over(lake, directory, acceptance, table, ledger)
    else:
        with no_run(directory):
            _take_over(lake, directory, acceptance, table, ledger)
    say(_done(acceptance))


def _take_over(
    lake: DestinationLake, directory: Path, acceptance: Acceptance, table: LakeTable | None, ledger: Ledger
) -> None:
    """Requests the snapshot, and then takes the table over. With `as_it_is`, requests no snapshot. A missing table (`table` is None) is
    created again by the next run. The caller must hold the run lock, so that no run publishes the snapshot between these two steps.
    """
    if not acceptance.as_it_is:
        snapshot.start(directory, [acceptance.name])
    if table is None:
        lake.forget(acceptance.name)
    else:
        lake.own(table, ledger.ledger_id)


def _require_readable(directory: Path, acceptance: Acceptance, ledger: Ledger) -> None:
    """Raises SetupError if no snapshot of the table is possible: the destination has no position yet, or does not capture the table."""
    if ledger.cursor is None:
        why = "has no position yet: start the engine with `sluice up`, then try again"
    elif acceptance.name not in snapshot.captured(directory):
        why = f"does not capture {acceptance.name} now"
    else:
        return
    raise SetupError(
        f"{acceptance.name} cannot be re-snapshotted, because {acceptance.destination} {why}; nothing was changed. `--as-it-is` takes the "
        "Delta table over without a re-snapshot"
    )


def _delivery_of(table: LakeTable, ledger: Ledger) -> int:
    ours = table.owner is not None and table.owner.ledger_id == ledger.ledger_id
    return table.delivery if ours else 0


def _question(config: SluiceConfig, acceptance: Acceptance, table: LakeTable | None) -> str:
    name, destination = acceptance.name, acceptance.destination
    then = (
        "Accept the table without a re-snapshot, so that missing rows stay missing?"
        if acceptance.as_it_is
        else f"Re-snapshot the table?{_consequences(config, acceptance)}"
    )
    if table is None:
        return f"Create the Delta table of {name} again. {then}"
    owner = f"of {table.owner.destination}, ledger {table.owner.ledger_id}" if table.owner else "without an owner"
    return (
        f"Take over {table.path} (version {table.version}, {owner}) for {name} of {destination}; after that, "
        f"no other program may write this Delta table. {then}"
    )


def _consequences(config: SluiceConfig, acceptance: Acceptance) -> str:
    """Returns sentences about the data that a re-snapshot of this table removes or does not restore, each with a leading blank. Returns ""
    if the re-snapshot restores everything.
    """
    options = config.destinations[acceptance.destination].table(*acceptance.name.split(".", 1))
    tables = read_tables(config.destination_dir(acceptance.destination))
    found = []
    if (
        options.current_state
        and not options.key
        and any(each.name == acceptance.name and not each.key for each in tables)
    ):
        found.append(
            "The table has no key: the re-snapshot replaces all its earlier changes by one insert for each row "
            "of the source."
        )
    if options.deletes == "soft" and options.current_state:
        found.append(
            "The re-snapshot removes the rows that are marked as deleted, because the source does not have them."
        )
    if options.history:
        found.append(
            "The history of the table gets new versions where rows differ; versions that the history lost stay missing."
        )
    if options.change_log:
        found.append(
            "The change log of the table gets one row with the operation `read`; changes that the log lost stay missing."
        )
    return "".join(f" {each}" for each in found)


def _done(acceptance: Acceptance) -> str:
    name, destination = acceptance.name, acceptance.destination
    if not acceptance.as_it_is:
        return (
            f"{name} is taken over and will be re-snapshotted; the table then resumes by itself. Until the "
            f"snapshot is published, the table in the lake may lack rows: `sluice snapshot status {destination}` "
            "shows the progress"
        )
    return (
        f"{name} is accepted as it is, and the lake differs from the source until the missing rows are read: "
        f"`sluice snapshot start {destination} --tables {shlex.quote(name)}` re-snapshots the table. If the table has "
        f"stopped, resume it with {acceptance.resume}"
    )
