"""Checks, for `sluice check`, whether change logs and histories in conf/ are possible for the tables that engines have recorded. Without
this check, only a failing run would report an impossible setting.
"""

from __future__ import annotations

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.table_meta.table_list.reading import read_tables

# Columns that Sluice adds to every history (spark_jobs/side_tables/versions.py). Their names do not begin with _sluice_, so a source table
# may have a column with the same name.
PERIOD_COLUMNS = frozenset({"valid_from", "valid_to", "is_current"})


def side_tables_sentence(config: SluiceConfig) -> str:
    """Returns a sentence that lists the configured change logs and histories."""
    sentences = []
    for kind in ("change_log", "history"):
        wanted = _wanting(config, kind)
        sentences.append(
            f"{kind}: {', '.join(f'{table} of {name}{_alone(config, name, table)}' for name, table in wanted) or 'none'}"
        )
    return f"change logs and histories: {'; '.join(sentences)}"


def _alone(config: SluiceConfig, destination: str, table: str) -> str:
    return "" if config.destinations[destination].tables[table].current_state else " (no current-state table)"


def side_table_problems(config: SluiceConfig) -> list[str]:
    """Returns a message for each impossible `history` in conf/: the table has no key, or has a column with the same name as one of Sluice's
    columns. Checks only tables that an engine, or the last discovery of the source, has recorded.
    """
    problems = []
    for name, table in _wanting(config, "history"):
        version = _known(config, name).get(table)
        if version is None:
            continue
        out = f"or remove `history` of {table} from conf/destinations/{name}.yaml"
        if not (config.destinations[name].tables[table].key or version.key):
            problems.append(
                f"{table} of {name} has no key, so rows cannot be identified for a history; name columns in "
                f"`key`, {out} (a change log needs no key)"
            )
        problems += [
            (
                f"{table} of {name} has a column {column.name}, and the history needs a column of its own "
                f"with this name; exclude the column, {out}"
            )
            for column in version.columns
            if column.name.lower() in PERIOD_COLUMNS
        ]
    return problems


def rules_problems(config: SluiceConfig) -> list[str]:
    """Returns a message for each table in conf/ with `rows`, `masks` or `transform` if no recorded table has exactly this name. Settings
    under such a name have no effect. Leaves out destinations for which no table is recorded.
    """
    problems = []
    for name, destination in sorted(config.destinations.items()):
        known = _known(config, name)
        spelled = {each.lower(): each for each in known}
        for table, options in sorted(destination.tables.items()):
            if known and table not in known and options.has_rules:
                there = spelled.get(table.lower())
                way = (
                    f"write it {there}"
                    if there
                    else "correct the name, or remove these settings until the table exists"
                )
                problems.append(
                    f"{table} of {name} has `rows`, `masks` or `transform`, and no captured table has exactly "
                    f"this name (letter case counts): {way}"
                )
    return problems


def _wanting(config: SluiceConfig, kind: str) -> list[tuple[str, str]]:
    return [
        (name, table)
        for name, destination in sorted(config.destinations.items())
        for table, options in sorted(destination.tables.items())
        if getattr(options, kind)
    ]


def _known(config: SluiceConfig, destination: str) -> dict[str, TableVersion]:
    return {table.name: table for table in read_tables(config.destination_dir(destination))}
