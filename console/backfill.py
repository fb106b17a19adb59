"""`sluice backfill` as a person sees it: the plan as a table. The rules and the reading: `cdc_engine.instance.backfill`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.table import Table

from cdc_engine.config import SluiceConfig
from cdc_engine.instance.backfill.plan import Plan, make_plan
from cdc_engine.instance.backfill.rules import Asked
from cdc_engine.time_words import time_us
from console.sources import require_destination

MIB = 1 << 20


def asked(from_word: str, to_word: str, tables: str) -> Asked:
    """Raises ConfigurationError for a word that is no time."""
    now_us = time.time_ns() // 1000
    names = tuple(dict.fromkeys(name.strip() for name in tables.split(",") if name.strip()))
    return Asked(from_us=time_us(from_word, now_us), to_us=time_us(to_word, now_us) if to_word else None, tables=names)


def plan(config: SluiceConfig, destination: str, wanted: Asked) -> Plan:
    """Raises as `make_plan`, and ConfigurationError for a destination that is none."""
    given = require_destination(config, destination)
    return make_plan(given, config.destination_dir(destination), wanted, time.time_ns() // 1000)


def sentences(made: Plan) -> Iterator[str]:
    """What is to be known of the whole."""
    to = made.to_time or "now"
    yield f"{made.destination}: changes from {made.from_time} to {to}"
    yield f"earliest time on offer: {made.earliest_time} ({made.earliest_file})"
    size, files = made.bytes / MIB, f"{made.files[0]} to {made.files[-1]}" if made.files else "none"
    yield f"to read: {size:.1f} MiB of binlog, {len(made.files)} files ({files}), {made.begin} to {made.read_to}"
    how = "counted" if made.counted else f"estimated by the first {made.sample_bytes / MIB:.1f} MiB"
    yield f"changes: {made.changes} ({how}); time: about {made.seconds:.0f} s"


def rows(made: Plan) -> Table:
    shown = Table("table", "changes", "schema history", "statements", "")
    for each in made.tables:
        back = "reaches back" if each.reaches_back else "begins later"
        changes = str(each.changes) if made.counted else f"~{each.changes}"
        shown.add_row(each.name, changes, back, str(len(each.statements)), each.refused or "ready")
    return shown
