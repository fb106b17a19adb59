"""Checks whether dagster.yaml and conf/ have the settings that runs on other hosts need. Finds nothing if the run launcher in dagster.yaml
starts runs on this host. `dagster_check` calls this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.engine import LOOPBACK, host_and_port

# This launcher starts runs as child processes of the code server, on the same host.
OWN_LAUNCHER = "DefaultRunLauncher"
# Dagster's settings that choose a storage.
STORAGES = ("storage", "run_storage", "event_log_storage", "schedule_storage")
FOR_ENGINES_ONLY = {"alarms", "brokers", "canal_server"}
REFERENCE = re.compile(r"\$(?!file:|command:)(\w+)")


def launcher_findings(settings: Mapping[str, Any], config: SluiceConfig) -> Iterator[str]:
    """Yields a message for each missing setting that runs on other hosts need. Yields nothing with Dagster's default launcher, which starts
    runs on the same host.
    """
    configured = settings.get("run_launcher")
    part: Mapping[str, Any] = configured if isinstance(configured, dict) else {}
    launcher = str(part.get("class", OWN_LAUNCHER))
    if launcher == OWN_LAUNCHER:
        return
    sentences = [*_of_dagster(settings), *_of_conf(config), *_of_variables(part, variables_of(settings, config))]
    yield from (f"run_launcher {launcher}: {sentence}" for sentence in sentences)


def _of_dagster(settings: Mapping[str, Any]) -> Iterator[str]:
    if not any(name in settings for name in STORAGES):
        yield "runs on other hosts cannot use Dagster's SQLite files; set storage: postgres"
    monitoring = settings.get("run_monitoring")
    if not (isinstance(monitoring, dict) and monitoring.get("enabled")):
        yield "without run_monitoring.enabled, Dagster notices late that the host of a run died; set run_monitoring.enabled to true"


def _of_conf(config: SluiceConfig) -> Iterator[str]:
    if config.meta.kind == "file":
        yield (
            "with meta.kind file, the ledgers are in <data_dir>/engine, which runs on other hosts must reach under the same path; set "
            "meta.kind to sql or zookeeper"
        )
    if config.engine.kind == "embedded":
        yield (
            "with engine.kind embedded, runs on other hosts do not reach the engine: they merge each batch without the changes that "
            "arrived after it was staged, and runs: drain has no effect; set engine.kind to remote"
        )
    elif near := [each for each in config.engine.addresses if host_and_port(each)[0] in LOOPBACK]:
        yield f"runs on other hosts do not reach the engine at {near[0]}; set engine.address to the engine hosts' own names"


def _of_variables(launcher: Mapping[str, Any], needed: set[str]) -> Iterator[str]:
    """Yields a message if the launcher of dagster-docker or dagster-k8s does not pass all variables in `needed` to the containers of runs.
    Yields nothing if the launcher passes a Kubernetes Secret or ConfigMap or has `run_k8s_config`, because it is unknown which variables
    these contain.
    """
    settings = launcher.get("config")
    known: Mapping[str, Any] = settings if isinstance(settings, dict) else {}
    docker = launcher.get("class") == "DockerRunLauncher"
    kubernetes = launcher.get("class") == "K8sRunLauncher" and not (
        known.get("env_secrets") or known.get("env_config_maps") or known.get("run_k8s_config")
    )
    missing = sorted(needed - _given(known)) if docker or kubernetes else []
    if missing:
        where = "env_vars" if docker else "env_secrets or env_vars"
        yield f"containers of runs lack {', '.join(missing)}, which conf/ or dagster.yaml names; add each to {where}"


def _given(launcher: Mapping[str, Any]) -> set[str]:
    """Returns the names of the environment variables that a launcher passes to its containers. `launcher` has the launcher's settings."""
    container = launcher.get("container_kwargs")
    own = container.get("environment", ()) if isinstance(container, dict) else ()
    return {str(each).partition("=")[0] for each in (*(launcher.get("env_vars") or ()), *own)}


def variables_of(settings: Mapping[str, Any], config: SluiceConfig) -> set[str]:
    """Returns the names of the environment variables that a run reads: those that dagster.yaml or conf/ names, except in settings that only
    engines use.
    """
    return {*_named(dict(settings)), *_named(config.model_dump())}


def _named(part: Any, key: str = "") -> Iterator[str]:
    if isinstance(part, dict):
        for name, each in part.items():
            if name not in FOR_ENGINES_ONLY:
                yield from _named(each, str(name))
    elif isinstance(part, (list, tuple)):
        for each in part:
            yield from _named(each, key)
    elif isinstance(part, str) and part:
        yield from [part] if key == "env" else REFERENCE.findall(part)
