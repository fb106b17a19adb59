"""Stores records in ZooKeeper under <destination>/sluice/<name>, next to Canal's own nodes. The version of a record is the node's version
plus one, because a new node has version 0, and 0 means that a record does not exist (NOT_THERE).

The content of a node is a line with the token, and then the record's text. A text that is too large for a node is compressed, for example a
ledger with thousands of stopped tables. Before a read, the ZooKeeper server synchronizes with the leader, so that a run never reads an
outdated ledger.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from sluice.cdc_engine.contracts import ZooKeeperServers
from sluice.cdc_engine.errors import MetaError, NotSharedError, StaleWriteError
from sluice.cdc_engine.records import zookeeper_client
from sluice.cdc_engine.records.contract import NOT_THERE, NOTHING, RecordStore, StoredRecord
from sluice.cdc_engine.records.zookeeper_client import OWN, answer, as_not_shared_error, destination_path

CREATED_MAX = 50  # `write_all` creates at most this many records at the same time.
COMPRESSED = "compressed"  # The key in the first line of a node whose text is compressed.
WRITTEN_ELSEWHERE = (BadVersionError, NodeExistsError, NoNodeError)


class ZooKeeperRecordStore(RecordStore):
    """A record store in ZooKeeper. `write` also gets values for programs other than Sluice (`also`), by their paths under the destination's
    node.
    """

    def __init__(self, servers: ZooKeeperServers, destination: str, session_seconds: float) -> None:
        self._servers, self._destination, self._session_seconds = servers, destination, session_seconds

    def read(self, name: str) -> StoredRecord | None:
        path = self._path(name)
        with as_not_shared_error(f"{name} in {self} cannot be read"):
            client = self._client()
            try:
                answer(client.sync_async(path))
                data, stat = answer(client.get_async(path))
            except NoNodeError:
                return None
        return _kept(data, stat.version, f"{name} in {self}")

    def read_all(self, prefix: str) -> Mapping[str, StoredRecord]:
        inside, slash, begin = prefix.rpartition("/")
        folder = self._path(inside) if inside else destination_path(self._destination, OWN)
        with as_not_shared_error(f"{prefix}… in {self} cannot be read"):
            client = self._client()
            try:
                answer(client.sync_async(folder))
                children = answer(client.get_children_async(folder))
            except NoNodeError:
                return {}
            names = [f"{inside}{slash}{child}" for child in sorted(children) if child.startswith(begin)]
            requested = {name: client.get_async(self._path(name)) for name in names}
            found = {}
            for name, each in requested.items():
                # Leaves out a record that was removed since the names were read.
                with contextlib.suppress(NoNodeError):
                    data, stat = answer(each)
                    if data:  # A node without data is a folder, not a record.
                        found[name] = _kept(data, stat.version, f"{name} in {self}")
        return found

    def write(self, name: str, text: str, *, version: int, token: int = 0, also: Mapping[str, str] = NOTHING) -> int:
        data = self._content(name, text, token)
        before = self.read(name)
        if (before.version if before else NOT_THERE) != version or (before is not None and before.token > token):
            raise self._stale(name, version)
        with as_not_shared_error(f"{name} in {self} cannot be written"):
            results = self._write(name, data, version, also)
        if isinstance(results[0], WRITTEN_ELSEWHERE):
            raise self._stale(name, version)
        failed = [each for each in results if isinstance(each, Exception)]
        if failed:
            raise NotSharedError(f"{name} in {self} cannot be written: {failed[-1]!r}; Sluice tries again")
        return version + 1

    def write_all(self, texts: Mapping[str, str], *, token: int = 0) -> None:
        """Creates or replaces many records. Creates up to CREATED_MAX new records at the same time, and replaces existing records one by
        one.
        """
        names = list(texts)
        for begin in range(0, len(names), CREATED_MAX):
            some = names[begin : begin + CREATED_MAX]
            with as_not_shared_error(f"{some[0]} in {self} cannot be written"):
                created = self._created({name: texts[name] for name in some}, token)
            super().write_all({name: texts[name] for name in some if name not in created}, token=token)

    def _created(self, texts: Mapping[str, str], token: int) -> set[str]:
        """Creates the nodes of the records that do not exist yet. Returns the names of the records that were created."""
        client = self._client()
        for parent in {self._path(name).rpartition("/")[0] for name in texts}:
            answer(client.ensure_path_async(parent))
        contents = {name: self._content(name, text, token) for name, text in texts.items()}
        requested = {name: client.create_async(self._path(name), content) for name, content in contents.items()}
        created = set[str]()
        for name, each in requested.items():
            with contextlib.suppress(NodeExistsError):
                answer(each)
                created.add(name)
        return created

    def _content(self, name: str, text: str, token: int) -> bytes:
        """Returns the content of a record's node. Raises MetaError if the content is larger than a node may be, although compressed."""
        data = f"{json.dumps({'token': token})}\n{text}".encode()
        if len(data) > zookeeper_client.NODE_BYTES_MAX:
            head = json.dumps({"token": token, COMPRESSED: True})
            data = f"{head}\n".encode() + zlib.compress(text.encode())
        if len(data) > zookeeper_client.NODE_BYTES_MAX:
            raise MetaError(f"{name} of {self} has {len(data)} bytes, more than a node may have: use `meta.kind: sql`")
        return data

    def _write(self, name: str, data: bytes, version: int, also: Mapping[str, str]) -> list[Any]:
        """Writes the record, and values for programs other than Sluice (`also`), in one transaction. Returns one result per operation. The
        first result is that of the record.
        """
        client, path = self._client(), self._path(name)
        others = {destination_path(self._destination, inside): text.encode() for inside, text in also.items()}
        for parent in {each.rpartition("/")[0] for each in (path, *others)}:
            answer(client.ensure_path_async(parent))
        step = client.transaction()
        if version == NOT_THERE:
            step.create(path, data)
        else:
            step.set_data(path, data, version=version - 1)
        for other, content in others.items():
            if answer(client.exists_async(other)) is None:
                step.create(other, content)
            else:
                step.set_data(other, content)
        results: list[Any] = answer(step.commit_async())
        return results

    def remove(self, name: str, version: int | None = None) -> bool:
        node_version = -1 if version is None else version - 1  # ZooKeeper takes -1 as any version.
        with as_not_shared_error(f"{name} in {self} cannot be removed"):
            try:
                answer(self._client().delete_async(self._path(name), version=node_version))
            except (NoNodeError, BadVersionError):
                return False
        return True

    def publish(self, also: Mapping[str, str]) -> None:
        """Writes values for programs other than Sluice, by path under the destination's node. Replaces existing values. Raises MetaError if
        ZooKeeper does not answer.
        """
        with as_not_shared_error(f"the nodes for clients in {self} cannot be written"):
            client = self._client()
            for inside, text in also.items():
                path = destination_path(self._destination, inside)
                answer(client.ensure_path_async(path))
                answer(client.set_async(path, text.encode()))

    def canal(self, inside: str) -> str | None:
        """Returns the text of a node that Canal created under the destination's node, or None if the node does not exist."""
        with as_not_shared_error(f"{inside} in {self} cannot be read"):
            try:
                data, _ = answer(self._client().get_async(destination_path(self._destination, inside)))
            except NoNodeError:
                return None
        return str((data or b"").decode())

    def __str__(self) -> str:
        return f"ZooKeeper {self._servers} ({destination_path(self._destination, OWN)})"

    def _client(self) -> Any:
        return zookeeper_client.shared_client(self._servers, self._session_seconds)

    def _path(self, name: str) -> str:
        return destination_path(self._destination, OWN, name)

    def _stale(self, name: str, version: int) -> StaleWriteError:
        return StaleWriteError(
            f"{name} in {self} no longer has version {version}: another process has written this node"
        )


def _kept(data: bytes, node_version: int, where: str) -> StoredRecord:
    head, _, content = data.partition(b"\n")
    try:
        fields = json.loads(head)
        token = int(fields["token"])
        content = zlib.decompress(content) if fields.get(COMPRESSED) else content
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise MetaError(
            f"{where} does not have the content that Sluice writes ({error}); restore the content that Sluice "
            "wrote, or remove the node"
        ) from error
    return StoredRecord(content.decode("utf-8", "replace"), node_version + 1, token)
