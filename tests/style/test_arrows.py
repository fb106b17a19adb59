"""Tests, by the imports of every module, that packages import only what the table of docs/architecture.md permits.

Packages are named by their folders: an import of `sluice.cdc_engine.errors` is an import of the package `cdc_engine.errors`.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.style.import_graph import cycles, file_graph, folded, mutual_pairs
from tests.style.sources import BENCHMARKS, NAMESPACE, PRODUCT, ROOT, checkout_sources, source_of

PACKAGES = (*PRODUCT, BENCHMARKS)

VALUES = {
    "cdc_engine.errors",
    "cdc_engine.position",
    "cdc_engine.gtid",
    "cdc_engine.contracts",
    "cdc_engine.limits",
    "cdc_engine.durable_files",
    "cdc_engine.status_file",
    "cdc_engine.parquet_files",
    "cdc_engine.states",
    "cdc_engine.ports",
    "cdc_engine.time_text",
    "cdc_engine.progress",
    "cdc_engine.file_lock",
    "cdc_engine.environment",
    "batch_manifest",
    "secret_values",
}
STAGES = ("parser", "snapshot", "sink", "store", "meta", "ha", "staging", "table_meta")
# package → the packages of Sluice that it may import, in addition to itself
MAY_IMPORT: dict[str, set[str]] = {
    "cdc_engine.errors": set(),
    "cdc_engine.position": {"cdc_engine.errors"},
    "cdc_engine.gtid": {"cdc_engine.errors", "cdc_engine.position"},
    "cdc_engine.contracts": {"cdc_engine.position", "cdc_engine.errors", "cdc_engine.states", "batch_manifest"},
    "cdc_engine.ports": {"cdc_engine.contracts", "cdc_engine.position", "cdc_engine.errors", "batch_manifest"},
    "cdc_engine.limits": set(),
    "cdc_engine.time_text": {"cdc_engine.errors"},
    "cdc_engine.progress": set(),
    "cdc_engine.file_lock": set(),
    "cdc_engine.environment": {"cdc_engine.errors", "secret_values"},
    "cdc_engine.records": VALUES,
    "cdc_engine.states": set(),
    "cdc_engine.durable_files": {"cdc_engine.errors"},
    "cdc_engine.status_file": set(),
    "cdc_engine.parquet_files": set(),
    "cdc_engine.config_paths": set(),
    "cdc_engine.config.operation": {"cdc_engine.time_text", "cdc_engine.source.settings"},
    "cdc_engine.config.locations": {"cdc_engine.config_paths", "cdc_engine.limits", "cdc_engine.source.settings"},
    "cdc_engine.source.settings": VALUES | {"cdc_engine.config_paths"},
    "cdc_engine.config": VALUES
    | {
        "cdc_engine.config_paths",
        "cdc_engine.source.in_use",
        "cdc_engine.source.settings",
    },
    "cdc_engine.binlog": VALUES,
    "cdc_engine.source": VALUES | {"cdc_engine.records"},
    "cdc_engine.parser": VALUES | {"cdc_engine.binlog", "cdc_engine.source"},
    "cdc_engine.snapshot": VALUES
    | {"cdc_engine.binlog", "cdc_engine.source", "cdc_engine.ha", "cdc_engine.records", "object_stores"},
    "cdc_engine.table_meta": VALUES | {"cdc_engine.binlog", "cdc_engine.records"},
    "cdc_engine.sink": VALUES | {"cdc_engine.binlog"},
    "cdc_engine.store": VALUES | {"cdc_engine.binlog", "cdc_engine.records", "object_stores"},
    "cdc_engine.meta": VALUES | {"cdc_engine.records"},
    "cdc_engine.ha": VALUES | {"cdc_engine.records"},
    "cdc_engine.staging": VALUES | {"cdc_engine.binlog", "object_stores"},
    "cdc_engine.server": VALUES,
    "cdc_engine.brokers": VALUES | {"cdc_engine.binlog", "cdc_engine.config.brokers", "cdc_engine.source.settings"},
    "cdc_engine.server.protocol": VALUES | {"cdc_engine.binlog.protobuf_fields"},
    "cdc_engine.handlers": VALUES | {"cdc_engine.records"},
    "cdc_engine.telemetry": VALUES,
    "cdc_engine.destination_files": VALUES
    | {"cdc_engine.meta", "cdc_engine.ha", "cdc_engine.records", "object_stores"},
    "cdc_engine.instance": VALUES
    | {"cdc_engine.config", "cdc_engine.server", "cdc_engine.binlog", "cdc_engine.source", "cdc_engine.records"}
    | {"cdc_engine.brokers", "cdc_engine.handlers", "cdc_engine.telemetry", "cdc_engine.destination_files"}
    | {f"cdc_engine.{stage}" for stage in STAGES},
    "cdc_engine.acts": VALUES
    | {
        "cdc_engine.destination_files",
        "cdc_engine.records",
        "cdc_engine.ha",
        "cdc_engine.meta",
        "cdc_engine.parser",
        "cdc_engine.snapshot",
        "cdc_engine.store",
        "cdc_engine.table_meta",
    },
    "cdc_engine.operation": VALUES
    | {"cdc_engine.config.alarms", "cdc_engine.instance.status", "cdc_engine.server.protocol.traffic"},
    "cdc_engine.keeping": VALUES
    | {"cdc_engine.config", "cdc_engine.destination_files", "cdc_engine.records"}
    | {"cdc_engine.instance", "cdc_engine.operation"},
    "orchestration": VALUES
    | {
        "cdc_engine.config",
        "cdc_engine.destination_files",
        "cdc_engine.keeping",
        "cdc_engine.instance",
        "cdc_engine.snapshot",
        "cdc_engine.telemetry",
        "cdc_engine.acts",
        "cdc_engine.table_meta.table_list",
        "cdc_engine.sink.table_filter",
        "cdc_engine.sink.column_filter",
        "spark_jobs",
        "equality",
        "consistent_snapshot",
        "object_stores",
    },
    "batch_manifest": set(),
    "secret_values": set(),
    "spark_jobs": {"batch_manifest", "consistent_snapshot", "object_stores", "secret_values"},
    "consistent_snapshot": set(),
    "object_stores": {"secret_values"},
    "canal_client": set(),
    "equality": VALUES
    | {
        "cdc_engine.config",
        "cdc_engine.source",
        "cdc_engine.parser",
        "cdc_engine.binlog",
        "cdc_engine.sink",
        "cdc_engine.table_meta",
        "cdc_engine.destination_files",
        "cdc_engine.snapshot",
        "spark_jobs.sql_text",
        "spark_jobs.side_tables.columns",
        "spark_jobs.targets.casting",
    },
}
FOREIGN: dict[str, set[str]] = {
    "dagster": {
        "orchestration",
        "console",
        "benchmarks.histories",
        "benchmarks.observing",
        "benchmarks.servers.bare_dagster",
    },
    "pyspark": {"spark_jobs", "console", "benchmarks"},
    "pymysql": {
        "cdc_engine.source",
        "cdc_engine.parser",
        "cdc_engine.snapshot",
        "cdc_engine.table_meta",
        "console",
        "benchmarks",
        "cdc_engine.binlog",
    },
    "kazoo": {
        "cdc_engine.records.zookeeper",
        "cdc_engine.records.zookeeper_client",
        "cdc_engine.ha.zookeeper_lock",
        "canal_client.servers",
    },
    "prometheus_client": {"cdc_engine.operation"},
    "confluent_kafka": {"cdc_engine.brokers.kafka"},
    "pika": {"cdc_engine.brokers.rabbitmq"},
    "pulsar": {"cdc_engine.brokers.pulsar"},
    "sqlalchemy": {"cdc_engine.records.sql", "orchestration.retention", "orchestration.storage"},
    "typer": {"console", "spark_jobs", "benchmarks"},
    "socket": {
        "benchmarks.servers",
        "cdc_engine.source",
        "cdc_engine.parser",
        "cdc_engine.ha",
        "cdc_engine.brokers.rocketmq",
        "cdc_engine.brokers.registry.client",
        "console",
        "cdc_engine.destination_files",
        "cdc_engine.server.protocol",
        "canal_client",
        "spark_jobs",
    },
}
ONE_OWNER = {"pyspark.sql.connect": "spark_jobs", "SparkSession": "spark_jobs/session.py"}


@functools.cache
def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports(path: Path) -> set[str]:
    """Returns what a file imports. Packages of Sluice have the names of their folders."""
    return {name.removeprefix(NAMESPACE) for name in imported_names(path)}


@functools.cache
def imported_names(path: Path) -> set[str]:
    found: set[str] = set()
    for node in source_of(path).nodes(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def package_of(name: str) -> str | None:
    packages = [package for package in MAY_IMPORT if name == package or name.startswith(f"{package}.")]
    return max(packages, key=len, default=None)


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def allows(package: str, imported: str) -> bool:
    allowed = MAY_IMPORT[package] | {package}
    # `from cdc_engine import limits`.
    parent_is_allowed = any(candidate.startswith(f"{imported}.") for candidate in allowed)
    return not within(imported, {*PACKAGES}) or within(imported, allowed) or parent_is_allowed


def test_a_package_imports_only_what_the_table_allows() -> None:
    forbidden = [
        f"{module_name(path)} must not import {imported}"
        for path in modules()
        if (package := package_of(module_name(path))) is not None
        for imported in imports(path)
        if not allows(package, imported)
    ]
    assert not forbidden


def test_an_outside_library_is_known_only_to_its_owners() -> None:
    forbidden = [
        f"{module_name(path)} must not import {imported}"
        for path in modules()
        for imported in imports(path)
        for library, owners in FOREIGN.items()
        if within(imported, {library}) and not within(module_name(path), owners)
    ]
    assert not forbidden


def test_every_package_of_the_engine_is_in_the_table() -> None:
    for path in (ROOT / "cdc_engine").iterdir():
        if path.name not in {"__init__.py", "__pycache__", "py.typed", "__main__.py"}:
            assert f"cdc_engine.{path.stem}" in MAY_IMPORT, (
                f"cdc_engine/{path.name} has no line in the table of packages"
            )


@pytest.mark.parametrize("name", ["concerned", "ddl_context", "effects", "questions", "renamed_tables", "row_changes"])
def test_the_rules_of_statements_return_questions_and_query_nothing(name: str) -> None:
    """The tested modules must not read policies and approvals, which are in files, or given schemas, which may come from the server. They
    return questions instead, which `history` answers.
    """
    history = ROOT / "cdc_engine" / "table_meta" / "history"
    looks = {
        "cdc_engine.table_meta.change.policy.SchemaDecisions",
        "cdc_engine.table_meta.history.resolutions",
        "cdc_engine.table_meta.history.review_files",
        "cdc_engine.table_meta.history.source",
    }
    assert not [found for found in imports(history / f"{name}.py") if within(found, looks)]


def test_no_folders_import_each_other_and_no_files_form_a_cycle() -> None:
    graph = file_graph(checkout_sources(PACKAGES))
    assert not mutual_pairs(folded(graph))
    assert not cycles(graph)
