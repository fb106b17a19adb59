"""Collects the report of `sluice doctor`: versions, conf/, state, errors in logs, disk and ports. Connects to no source, and passes all
text through a `Redactor`.

The report is needed when something is broken. So a part that cannot be collected does not prevent the report: instead of the part, the
report says why the part is missing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import yaml

from sluice import __version__
from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.conf_files import MAIN, UNREADABLE, file_of, read_conf_files, yaml_value
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.keeping import log_files
from sluice.cdc_engine.keeping.in_use import as_kept
from sluice.console.doctor.redaction import Redactor, secrets_in, secrets_of_environment, shown_setting
from sluice.console.stack.processes import engine_port, port_owner
from sluice.console.status.report import read_status
from sluice.console.toolchain.cache import open_cache
from sluice.console.toolchain.ports import is_free
from sluice.package_files import checkout

PACKAGES = (
    *(
        "dagster",
        "dagster-webserver",
        "dagster-postgres",
        "pyspark",
        "delta-spark",
        "deltalake",
        "duckdb",
        "pyarrow",
        "numpy",
    ),
    *("numba", "mysql-replication", "pymysql", "grpcio", "protobuf", "sqlalchemy", "pydantic"),
)
VARIABLES = (
    "SLUICE_CONF",
    "SLUICE_CONF_IN_USE",
    "SLUICE_CACHE",
    "SLUICE_DESTINATIONS",
    "DAGSTER_HOME",
    "JAVA_HOME",
    "TZ",
    "LANG",
)
TOKEN_FILES = ("engine-token", "*/run-endpoint.json", "engine/*/run-endpoint.json")
ERROR = re.compile(r"error|exception|traceback|critical|fatal|refused|denied|killed|no space", re.IGNORECASE)
# Of each log, the report has at most LINES_MAX lines, and of each line at most LINE_MAX characters. Only the last LOG_BYTES_MAX bytes of
# the log are searched.
LINES_MAX, LINE_MAX, LOG_BYTES_MAX = 40, 400, 512 << 10

Part = Callable[[], Any]


def collect(conf: Path, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the report, without secrets, as values for JSON."""
    texts, unreadable = _parsed_conf(conf)
    config = _config(conf)
    redactor = Redactor(_secrets(texts, conf.parent, config if isinstance(config, SluiceConfig) else None, environment))
    record: dict[str, Any] = {"written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    parts: dict[str, Part] = {
        "versions": _versions,
        "machine": _machine,
        "variables": lambda: {name: environment[name] for name in VARIABLES if name in environment},
        "conf": lambda: {name: shown_setting(value) for name, value in texts.items()} | unreadable,
    }
    if isinstance(config, SluiceConfig):
        there = config
        parts |= {
            "state": lambda: read_status(there).to_json(),
            "errors_in_logs": lambda: _log_errors(there.data_dir),
            "disk": lambda: _disk(there),
            "ports": lambda: _ports(there),
        }
    else:
        record["conf_problem"] = config
    for name, part in parts.items():
        try:
            record[name] = part()
        except Exception as error:  # An error in one part must not prevent the other parts.
            record[name] = f"cannot be collected: {type(error).__name__}: {error}"
    return dict(redactor.value(json.loads(json.dumps(record, default=str))))


def as_text(record: Mapping[str, Any]) -> str:
    """Returns the report as text, with one section per part."""
    head = (
        "This report contains names of hosts, tables and columns, and error messages: read the report before you "
        "send it.\n"
    )
    return head + "".join(f"\n# {name}\n{_section(part)}" for name, part in record.items())


def write_archive(record: Mapping[str, Any], path: Path) -> None:
    """Writes the report, as text and as JSON, to an archive (.tar.gz) that only its owner can read. Overwrites an existing file. Raises
    OSError if the archive cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        os.fchmod(descriptor, 0o600)  # An existing file keeps its permissions otherwise.
        for name, text in (("report.txt", as_text(record)), ("report.json", json.dumps(record, indent=1))):
            content = text.encode()
            entry = tarfile.TarInfo(f"sluice-doctor/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))


def _section(part: Any) -> str:
    return (
        f"{part}\n" if isinstance(part, str) else yaml.safe_dump(part, sort_keys=False, allow_unicode=True, width=1000)
    )


def _parsed_conf(conf: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the parsed files of conf/, and a message for each file that cannot be parsed. Returns parsed values instead of texts, because
    comments in the texts may contain secrets.
    """
    parsed: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    try:
        found = read_conf_files(conf)
    except SluiceError as error:
        return {}, {str(conf): str(error)}
    for name, text in {MAIN: found.main, **{file_of(each): text for each, text in found.destinations.items()}}.items():
        if text.startswith(UNREADABLE):
            unreadable[name] = "the file cannot be read"
            continue
        try:
            parsed[name] = yaml_value(text) or {}
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            # Quotes nothing from the file, because the text at the position of the error may be a secret.
            unreadable[name] = f"the file is not YAML{f': line {mark.line + 1}' if mark else ''}"
    return parsed, unreadable


def _config(conf: Path) -> SluiceConfig | str:
    """Returns the configuration in use. If conf/ is invalid, returns a message instead, which quotes nothing from conf/."""
    try:
        return as_kept(conf).config
    except SluiceError:
        return (
            "conf/ is not valid: run `sluice check` to see why (the message is left out of this report, because "
            "it quotes the files)"
        )


def _secrets(
    texts: Mapping[str, Any], root: Path, config: SluiceConfig | None, environment: Mapping[str, str]
) -> set[str]:
    found = secrets_of_environment(environment)
    for value in texts.values():
        found |= secrets_in(value, "", root, environment)
    if config is not None:
        for pattern in TOKEN_FILES:
            for path in config.data_dir.glob(pattern):
                found |= _tokens(_content(path)) if path.suffix == ".json" else {_content(path)}
    return found


def _tokens(text: str) -> set[str]:
    """Returns what the report must not show of an endpoint file: the token in the file's JSON, `text`. If `text` is not such JSON, returns
    the whole text, because it may be the token.
    """
    try:
        return {str(json.loads(text)["token"])}
    except (ValueError, TypeError, KeyError):
        return {text}


def _content(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def _versions() -> dict[str, str]:
    found = {
        "sluice": __version__,
        "installed": "checkout" if checkout() else "package",
        "python": sys.version.split()[0],
    }
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _machine() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    return {
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "memory_mb": memory.total >> 20,
        "memory_available_mb": memory.available >> 20,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(psutil.boot_time())),
    }


def _disk(config: SluiceConfig) -> dict[str, Any]:
    folders = {"data_dir": config.data_dir, "cache": open_cache().root}
    if "://" not in config.lake:
        folders["lake"] = Path(config.lake)
    found: dict[str, Any] = {}
    for what, folder in folders.items():
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        usage = shutil.disk_usage(there)
        found[what] = {
            "folder": str(folder),
            "exists": folder.exists(),
            "free_mb": usage.free >> 20,
            "size_mb": usage.total >> 20,
        }
    return found


def _ports(config: SluiceConfig) -> dict[str, str]:
    ports = {
        "webserver": config.ports.webserver,
        "code server": config.ports.code_server,
        "spark": config.ports.spark_connect,
    }
    ports["engine"] = engine_port(config)
    return {
        f"{what} {port}": "free" if is_free(port) else port_owner(port) or "taken"
        for what, port in ports.items()
        if port
    }


def _log_errors(data_dir: Path) -> dict[str, list[str]]:
    """Returns path of a log file in `data_dir` → the last lines of this file that look like errors, at most LINES_MAX."""
    # A log consists of a file *.log with the newest lines, and of a file *.log.1 with earlier lines (see `keeping.log_files`).
    endings = ("*.log", "*.log.1")
    logs = sorted(log for folder in log_files.FOLDERS for ending in endings for log in (data_dir / folder).glob(ending))
    return {str(log.relative_to(data_dir)): _errors_of(log) for log in logs}


def _errors_of(log: Path) -> list[str]:
    with log.open("rb") as opened:
        opened.seek(max(0, log.stat().st_size - LOG_BYTES_MAX))
        lines = opened.read().decode(errors="replace").splitlines()
    return [line[:LINE_MAX] for line in lines if ERROR.search(line)][-LINES_MAX:]
