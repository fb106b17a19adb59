"""Brings the machine to where Sluice runs: Java, jars, database servers, compiled kernels.

Called by `sluice setup`, the demo and the tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from console.toolchain.artifacts import DATABASE_VERSIONS, DELTA, Artifact, load_artifacts
from console.toolchain.cache import Cache, locked, open_cache
from console.toolchain.database.unpack import ServerHome, is_unpacked, server_home, unpack
from console.toolchain.download import fetch
from console.toolchain.java import Java, provide_java
from console.toolchain.kernels import compile_kernels

DEMO_SERVERS = ("mysql-8.0.31",)
ALL_SERVERS = DATABASE_VERSIONS


@dataclass(frozen=True)
class Toolchain:
    """What was set up, ready to be started."""

    cache: Cache
    java: Java
    delta_jars: tuple[Path, ...]
    servers: dict[str, ServerHome]


def set_up(
    servers: Sequence[str] = DEMO_SERVERS,
    *,
    delta: bool = True,
    kernels: bool = False,
    cache: Cache | None = None,
    screen: Console | None = None,
) -> Toolchain:
    """Fetch and unpack what is missing of the named servers and of the Delta jars; quick when nothing is.

    `kernels`: also compile the engine's kernels, where they are out of date.
    """
    cache = cache or open_cache()
    screen = screen or Console(stderr=True)
    with locked(cache, screen.print):
        java = provide_java(cache)
        jars = load_artifacts(DELTA) if delta else ()
        packed = [artifact for artifact in load_artifacts(*servers) if not is_unpacked(cache, artifact)]
        fetch(cache, java, [*jars, *packed], screen)
        _unpack_all(cache, packed, screen)
        if kernels:
            compile_kernels(cache, screen.print)
        homes = {version: server_home(cache, version) for version in servers}
    return Toolchain(cache, java, tuple(cache.jars / jar.file_name for jar in jars), homes)


def _unpack_all(cache: Cache, packed: Sequence[Artifact], screen: Console) -> None:
    for artifact in packed:
        screen.print(f"unpacking {artifact.group}")
        unpack(cache, artifact)
