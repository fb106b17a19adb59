"""Finds the captured tables without a key, and checks whether the account may lock them, for `sluice init` and `sluice check`.

A snapshot of a table without a key must know the exact binlog position at which it reads. MariaDB reports this position without a lock if
the table's storage engine has transactions. On MySQL, a table lock gives the position at once. Without a lock, a snapshot on MySQL needs
GTIDs, and may need several attempts (`cdc_engine.snapshot.exact_position`).
"""

from __future__ import annotations

import contextlib
import dataclasses

from sluice.cdc_engine.errors import ConfigurationError, SluiceError
from sluice.cdc_engine.instance.discovery import SourceSchema
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.snapshot.exact_position import reads_unlocked, require_lock
from sluice.cdc_engine.snapshot.reader import open_reader
from sluice.cdc_engine.snapshot.statements import quoted
from sluice.cdc_engine.table_meta.table_list.sentences import keyless_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keyless:
    """The captured tables without a key. If the account may not lock tables in a database with such a table, there is one message about
    this database. The message is in `notes` if a snapshot can read the table without a lock, and otherwise in `problems`.
    """

    names: tuple[str, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_keyless(schema: SourceSchema) -> Keyless:
    """Finds the captured tables without a key, and tries to lock one of them in each database, because a snapshot of such a table may need
    the lock. Tries no lock if the destination takes no snapshots (`snapshot: never`). Raises SluiceError if the source does not answer.
    """
    destination, tables = schema.destination, schema.captured
    names = keyless_names(tables, lambda database, table: destination.table(database, table).key)
    if destination.snapshot == "never":
        return Keyless(names=names)
    by_database = {each.database: each for each in tables if each.name in names}
    problems: list[str] = []
    notes: list[str] = []
    with contextlib.closing(open_reader(source_of(destination))) as reader:
        for table in by_database.values():
            try:
                require_lock(reader, table)
            except ConfigurationError as error:
                if reads_unlocked(reader, table):
                    notes.append(_unlocked_sentence(table.database, reader.source.user))
                else:
                    problems.append(str(error))
            # This error means that another session has locked or dropped the table. The server checks the privilege LOCK TABLES first, so
            # the account has the privilege.
            except SluiceError:
                continue
    return Keyless(names=names, problems=tuple(problems), notes=tuple(notes))


def _unlocked_sentence(database: str, user: str) -> str:
    return (
        f"the user {user} may not lock tables of {database}, so a snapshot of a table without a key may need "
        "several attempts while other sessions write to the table. After GRANT LOCK TABLES ON "
        f"{quoted(database)}.* TO this user, one attempt is enough"
    )
