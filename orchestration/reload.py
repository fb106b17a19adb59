"""Reloads the definitions of a code server within its process, so that the engines in the process continue. A change of conf/, a new table,
and "Reload" in Dagster's UI cause a reload.

A code server of `dagster api grpc` cannot reload. This module therefore rebuilds the repositories, replaces the old ones in one assignment,
and gives the server another id. Webserver and daemon read the server's id every few seconds (`server_ids`). If the id has changed, they
read the definitions again.

Runs are forks of a process that imported the definitions when the server started. If conf/ has changed since then, the forked run drops
those definitions and loads the current ones (`forget_outdated`). Therefore the process from which runs are forked imports this module too.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

from sluice.orchestration.base.server_state import definitions_loaded

DEFINITIONS = "sluice.orchestration.definitions"
# The attribute of the definitions module with the stamp of the conf/ from which the definitions were built.
BUILT_FROM = "BUILT_FROM"

_servers: list[Any] = []  # The code servers of this process: one, except in tests.
_lock = threading.Lock()


def begin(server: Any, load: Callable[[], None]) -> None:
    """Makes a code server load its definitions for the first time, and registers the server for reloads. `server` has the methods
    `reload_repositories` and `show`.

    Engines start before the definitions are read, so a new table may cause a reload during the first load. The reload would remove the
    definitions module while it is being imported, so the lock delays the reload.
    """
    with _lock:
        load()
        _servers.append(server)
        definitions_loaded(own=DEFINITIONS in sys.modules)


def reload_definitions(module: str = DEFINITIONS) -> None:
    """Rebuilds the definitions and gives them to every code server of this process. If the build raises an error, keeps the old
    definitions and raises the error.
    """
    from sluice.orchestration.base.table_catalog import current_tables  # noqa: PLC0415  imports Dagster

    with _lock:
        old = sys.modules.pop(module, None)
        try:
            with current_tables():
                loaded = [(server, server.reload_repositories()) for server in _servers]
        except BaseException:
            if old is not None:
                sys.modules[module] = old
            raise
        for server, repositories in loaded:
            server.show(repositories)
        definitions_loaded(own=module == DEFINITIONS)


def reload_repositories(self: Any) -> Any:
    """Returns the code server's repositories, built from the current definitions. This function becomes a method of
    Dagster's code server.
    """
    from dagster._grpc.server import LoadedRepositories  # noqa: PLC0415  takes seconds; needed by code servers only

    return LoadedRepositories(
        self._loadable_target_origin,
        entry_point=self._entry_point,
        container_image=self._container_image,
        container_context=self._container_context,
    )


def show(self: Any, repositories: Any) -> None:
    """Gives the code server new repositories, and another id, so that Dagster's webserver and daemon read the definitions again. This
    function becomes a method of Dagster's code server.
    """
    self._loaded_repositories, self._server_id = repositories, str(uuid.uuid4())


def forget_outdated() -> None:
    """Drops the imported definitions if they were built from another conf/ than the one in use. The next import then rebuilds them. A
    forked process calls this first.
    """
    from sluice.cdc_engine.keeping.in_use import stamp  # noqa: PLC0415  is already imported when a process forks

    definitions = sys.modules.get(DEFINITIONS)
    if definitions is not None and getattr(definitions, BUILT_FROM, "") != stamp():
        del sys.modules[DEFINITIONS]


os.register_at_fork(after_in_child=forget_outdated)
