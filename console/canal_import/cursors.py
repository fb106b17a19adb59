"""Reads the cursors of an instance's Canal clients from the file meta.dat in the instance's folder, or from ZooKeeper."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.meta import canal_cursor
from sluice.cdc_engine.meta.canal_cursor import CanalCursor

META_FILE = "meta.dat"


@dataclasses.dataclass(frozen=True)
class Client:
    client_id: int
    filter: str
    cursor: CanalCursor | None


@dataclasses.dataclass(frozen=True)
class Cursors:
    """The cursors of an instance's clients. `begin` is the oldest cursor, or None if no client has a cursor. `where` names the file or the
    ZooKeeper node from which the cursors were read.
    """

    clients: tuple[Client, ...] = ()
    where: str = ""

    @property
    def begin(self) -> CanalCursor | None:
        known = [client.cursor for client in self.clients if client.cursor is not None]
        return min(known, key=lambda each: (each.time_ms, each.file, each.offset), default=None)


def from_file(folder: Path) -> Cursors:
    """Reads the cursors from meta.dat in an instance's folder. Raises ConfigurationError if the file is damaged: without the cursors, the
    destination would silently start at another position.
    """
    file = folder / META_FILE
    if not file.exists():
        return Cursors(where=f"{file}, which does not exist")
    try:
        record = json.loads(file.read_text())
        clients = tuple(_client(each) for each in record["clientDatas"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{file} cannot be read ({error}): Canal overwrites this file, so a crash can leave it empty; "
            "restore a copy, or remove the file to begin at the position in the properties"
        ) from error
    return Cursors(clients, str(file))


def _client(record: dict[str, Any]) -> Client:
    who = record["clientIdentity"]
    left = record.get("cursor")
    return Client(
        client_id=int(who["clientId"]),
        filter=who.get("filter") or "",
        cursor=canal_cursor.from_text(json.dumps(left)) if left else None,
    )


def from_zookeeper(client: Any, path: str) -> Cursors:
    """Reads the cursors from ZooKeeper. `client` is a connected kazoo client, and `path` is the node that has a child node for each Canal
    client. Raises ConfigurationError if a cursor cannot be parsed.
    """
    if client.exists(path) is None:
        return Cursors(where=f"ZooKeeper {path}, which does not exist")
    found = []
    for name in sorted(client.get_children(path)):
        if not name.isdigit():
            continue
        cursor, table_filter = (_node(client, f"{path}/{name}/{part}") for part in ("cursor", "filter"))
        try:
            found.append(Client(int(name), table_filter, canal_cursor.from_text(cursor) if cursor else None))
        except ValueError as error:
            raise ConfigurationError(
                f"the cursor of client {name} in ZooKeeper cannot be read: {error}; correct the node "
                f"{path}/{name}/cursor, or remove this node to import without the position of this client"
            ) from error
    return Cursors(tuple(found), f"ZooKeeper {path}")


def _node(client: Any, path: str) -> str:
    return client.get(path)[0].decode() if client.exists(path) is not None else ""
