"""Loads the definitions of a code server anew, in its own process: for another conf/, for tables that became known, or because somebody
pressed "Reload" in Dagster's UI. The engines of the process notice nothing.

A code server of `dagster api grpc` cannot reload by itself. What Dagster's own reload with state does is done here: the repositories are
built anew and put in place of the old ones by one assignment, and the server gets another id. Webserver and daemon ask for that id every
second, and read the definitions again when it is another.

Runs are forks of a process that imported the definitions when the server began: one that is forked after a change forgets them, so that it
loads those of now. This module is imported there too.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

DEFINITIONS = "orchestration.definitions"
BUILT_FROM = "BUILT_FROM"  # of the module of the definitions: what was in use when it was read

_servers: list[Any] = []  # the code servers of this process: one, but in tests
_lock = threading.Lock()


def begin(server: Any, load: Callable[[], None]) -> None:
    """Has a code server load its definitions for the first time; they can be reloaded from then on. It has `load_anew`, and `show` for what
    that gave.

    Engines run before the definitions are read, so that their tables may become known meanwhile: that reload waits, for it would take
    the module away from under whoever is reading it.
    """
    with _lock:
        load()
        _servers.append(server)


def reload_definitions(module: str = DEFINITIONS) -> None:
    """Every code server of this process has the definitions of now. Raises what building them raises; then the old ones stay."""
    from orchestration.table_catalog import tables_of_now  # noqa: PLC0415  with it comes Dagster, in a process that forks

    with _lock:
        old = sys.modules.pop(module, None)
        try:
            with tables_of_now():
                loaded = [(server, server.load_anew()) for server in _servers]
        except BaseException:
            if old is not None:
                sys.modules[module] = old
            raise
        for server, repositories in loaded:
            server.show(repositories)


def load_anew(self: Any) -> Any:
    """A method of Dagster's code server: its repositories, as the definitions are now."""
    from dagster._grpc.server import LoadedRepositories  # noqa: PLC0415  seconds, where definitions are served only

    return LoadedRepositories(
        self._loadable_target_origin,
        entry_point=self._entry_point,
        container_image=self._container_image,
        container_context=self._container_context,
    )


def show(self: Any, repositories: Any) -> None:
    """A method of Dagster's code server: these are its repositories from now on."""
    self._loaded_repositories, self._server_id = repositories, str(uuid.uuid4())


def forget_outdated() -> None:
    """Right after a fork: definitions that were built from another conf/ than that in use are imported anew when they are wanted."""
    from cdc_engine.keeping.in_use import stamp  # noqa: PLC0415  read by then

    definitions = sys.modules.get(DEFINITIONS)
    if definitions is not None and getattr(definitions, BUILT_FROM, "") != stamp():
        del sys.modules[DEFINITIONS]


os.register_at_fork(after_in_child=forget_outdated)
