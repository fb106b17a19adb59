"""Converts Canal's conf folder to Sluice's conf/, and builds a report. `console.main` defines the command.

The import overwrites no file. After it has written conf/, it loads and checks conf/ as `sluice up` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.contracts import ZooKeeperServers
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.meta.left_consumers import LeftConsumer, write_left_consumers
from sluice.cdc_engine.meta.managers import ledger_text
from sluice.console.canal_import.cursors import Cursors, from_file, from_zookeeper
from sluice.console.canal_import.keys import remaining
from sluice.console.canal_import.properties import ImportReport, Settings, instances, read_properties
from sluice.console.canal_import.rules import destination_name, destination_of, server_of
from sluice.extras import Extra, require

SERVER_FILE, INSTANCE_FILE = "canal.properties", "instance.properties"
SESSION_SECONDS = 30.0
DESTINATION = "canal.instance.destination"  # Canal itself sets this key to the instance's name, for placeholders.
# If the ledger is in ZooKeeper, the destination starts at the cursor that Canal's client with this id has in ZooKeeper.
LAKE_CLIENT = 1001
HEAD = "# Made by `sluice import-canal`.\n"


@dataclasses.dataclass
class Imported:
    """The result of an import. `files` are the files that were written. `findings` has the report of each destination by the destination's
    name, and the report of canal.properties by the name "".
    """

    files: list[Path]
    findings: dict[str, ImportReport]

    def sentences(self) -> list[str]:
        """Returns the report as lines: which settings were converted, which were not, and which secrets an operator must set."""
        said = [f"written: {file}" for file in self.files]
        for name, found in self.findings.items():
            where = name or SERVER_FILE
            said += [f"{where}: imported: {text}" for text in found.taken]
            said += [f"{where}: NOT imported: {text}" for text in found.left]
            said += [f"{where}: no meaning in Sluice: {text}" for text in found.no_meaning]
        secrets = {key: text for found in self.findings.values() for key, text in found.secrets.items()}
        said += [f"set the environment variable {key} to {text}" for key, text in sorted(secrets.items())]
        return said


def import_canal(folder: Path, target: Path) -> Imported:
    """Converts Canal's configuration. `folder` is Canal's conf folder, which contains canal.properties. `target` is Sluice's conf/, in
    which the files to write must not exist yet.

    Raises ConfigurationError if a file cannot be converted or the result is invalid. Raises the errors of the record store if the ledger
    that conf/ names cannot be read. After such an error, conf/ has none of the new files.
    """
    if not (folder / SERVER_FILE).exists():
        raise ConfigurationError(f"there is no {SERVER_FILE} in {folder}: name Canal's conf folder")
    shared = read_properties(folder / SERVER_FILE)
    server = Settings((shared,), os.environ)
    found = {"": ImportReport()}
    texts: dict[Path, dict[str, Any]] = {target / "sluice.yaml": server_of(server, found[""])}
    clients: dict[str, Cursors] = {}
    hosts = texts[target / "sluice.yaml"].get("meta", {}).get("hosts", "")
    names = instances(folder, server)
    if not names:
        raise ConfigurationError(
            f"{folder} has no instance: set canal.destinations, or name a conf folder with an {INSTANCE_FILE} in each instance's folder"
        )
    _say_where(server, names, found[""])
    for name in names:
        own_file = read_properties(folder / name / INSTANCE_FILE)
        settings = Settings(({DESTINATION: name}, own_file, shared), os.environ)
        cursors = _cursors(name, hosts) if hosts else from_file(_data_folder(folder, server) / name)
        own, findings = destination_name(name), ImportReport()
        if own != name:
            findings.left.append(
                f"the name {name} is not valid for a destination: the destination is called {own}, and "
                f"clients must request the name {own}"
            )
        path = target / "destinations" / f"{own}.yaml"
        if path in texts:
            raise ConfigurationError(
                f"{name} and another instance would both be called {own}: rename one of their folders"
            )
        texts[path] = destination_of(name, settings, cursors, findings)
        remaining(settings, _with_value(own_file), findings)
        found[own], clients[own] = findings, cursors
    said = [each for each in found.values() if each is not found[""]]
    remaining(server, [key for key in _with_value(shared) if not any(each.names(key) for each in said)], found[""])
    _refuse_present(texts)
    with contextlib.ExitStack() as undo:
        for path in texts:
            undo.callback(path.unlink, missing_ok=True)
        _write(texts, target)
        config, left = load_config(target), list[Path]()
        for own, cursors in clients.items():
            left += _leave_consumers(config, own, cursors, found[own])
        undo.pop_all()
    return Imported([*texts, *left], found)


def _with_value(file: Mapping[str, str]) -> list[str]:
    return [key for key, value in file.items() if value]


def _say_where(server: Settings, names: list[str], report: ImportReport) -> None:
    if keys := server.given("canal.destinations", "canal.destinations.expr", "canal.auto.scan"):
        report.taken.append(f"{keys}: each of the instances {', '.join(names)} became a file in conf/destinations")
    if keys := server.given("canal.file.data.dir", "canal.conf.dir"):
        report.taken.append(f"{keys}: the import searched the cursors of Canal's clients in this folder")


def _data_folder(folder: Path, server: Settings) -> Path:
    """Returns the folder in which Canal keeps its clients' cursors (canal.file.data.dir). In Canal, a relative path starts in Canal's
    folder bin/.
    """
    named = server.get("canal.file.data.dir") or server.get("canal.conf.dir", "../conf")
    path = Path(named)
    if path.is_absolute():
        return path
    return folder if named.rstrip("/") == "../conf" else (folder.parent / "bin" / path).resolve()


def _cursors(name: str, hosts: str) -> Cursors:
    require(Extra.ZOOKEEPER, ConfigurationError)
    from sluice.cdc_engine.records.zookeeper_client import (  # noqa: PLC0415  most imports do without kazoo
        destination_path,
        end_shared_clients,
        shared_client,
    )

    try:
        return from_zookeeper(shared_client(ZooKeeperServers(hosts=hosts), SESSION_SECONDS), destination_path(name))
    finally:
        end_shared_clients()


def _refuse_present(texts: Iterable[Path]) -> None:
    """Raises ConfigurationError if one of the files to write exists."""
    there = [path for path in texts if path.exists()]
    if there:
        raise ConfigurationError(f"{there[0]} exists: the import overwrites no files; name another folder with --to")


def _write(texts: dict[Path, dict[str, Any]], target: Path) -> None:
    (target / "destinations").mkdir(parents=True, exist_ok=True)
    for path, record in texts.items():
        replace_file(path, HEAD + yaml.safe_dump(record, sort_keys=False, allow_unicode=True))


def _leave_consumers(config: SluiceConfig, name: str, cursors: Cursors, findings: ImportReport) -> list[Path]:
    """Writes a file with the ids and filters of those Canal clients that have a cursor. At its first start, the engine creates a consumer
    for each client in this file. These consumers begin at the destination's start position. If the start position may be after a client's
    cursor, adds a line to the report, because the client would miss changes.

    Returns a list with the file. The list is empty if no client has a cursor, or if the destination has a ledger already.
    """
    if _has_ledger(config, name):
        findings.left.append(
            f"the position of Canal: {name} has a ledger already ({config.ledger_location(name).directory}, meta.kind "
            f"{config.meta.kind}), so the destination continues from that ledger with the consumers in it. To begin at "
            "Canal's position, set another data_dir (a new ledger) in sluice.yaml, and import again"
        )
        return []
    lake = [each.cursor for each in cursors.clients if each.client_id == LAKE_CLIENT and each.cursor is not None]
    if config.meta.kind == "zookeeper" and lake and lake[0] != cursors.begin:
        findings.left.append(
            f"the destination starts at the cursor of client {LAKE_CLIENT} in ZooKeeper, and another client has an "
            "older cursor: Sluice does not deliver the changes between the two cursors to that client; let the client "
            "catch up before you stop Canal"
        )
    known = [LeftConsumer(each.client_id, each.filter) for each in cursors.clients if each.cursor is not None]
    if not known:
        return []
    file = write_left_consumers(config.destination_dir(name), known)
    numbers = ", ".join(str(each.client_id) for each in known)
    findings.taken.append(
        f"clients {numbers} continue at the position where the destination begins, and get the changes after "
        f"this position again. {file} has these clients until the first start: if you move conf/, data_dir "
        "or staging before that, move this file too. Otherwise the clients begin at the engine's position "
        "when they connect"
    )
    return [file]


def _has_ledger(config: SluiceConfig, name: str) -> bool:
    location = config.ledger_location(name)
    try:
        return bool(ledger_text(location))
    finally:
        if location.kind == "zookeeper":
            from sluice.cdc_engine.records.zookeeper_client import end_shared_clients  # noqa: PLC0415  needs kazoo

            end_shared_clients()
