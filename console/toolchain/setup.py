"""Sets up what Sluice needs on this machine: Java, jars, database servers, and compiled kernels.

`sluice setup`, the demo and the tests call this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sluice.console.toolchain.artifacts import DATABASE_VERSIONS, DELTA, Artifact, load_artifacts
from sluice.console.toolchain.cache import Cache, locked, open_cache
from sluice.console.toolchain.database_packages import ServerHome, is_unpacked, server_home, unpack
from sluice.console.toolchain.download import fetch
from sluice.console.toolchain.java import Java, provide_java
from sluice.console.toolchain.kernels import compile_kernels

DEMO_SERVERS = ("mysql-8.0.31",)
ALL_SERVERS = DATABASE_VERSIONS


@dataclass(frozen=True)
class Toolchain:
    """What `set_up` has provided: the cache, the Java runtime, the jars of Delta, the database servers, and the jars of the requested
    `extras`. `servers` maps versions to unpacked servers.
    """

    cache: Cache
    java: Java
    delta_jars: tuple[Path, ...]
    servers: dict[str, ServerHome]
    extra_jars: tuple[Path, ...] = ()


def set_up(
    servers: Sequence[str] = DEMO_SERVERS,
    *,
    delta: bool = True,
    extras: Sequence[str] = (),
    kernels: bool = False,
    cache: Cache | None = None,
    screen: Console | None = None,
) -> Toolchain:
    """Provides Java, the named servers and the Delta jars: installs, downloads and unpacks what is missing. Returns quickly if nothing is
    missing.

    With `delta=False`, the Delta jars are left out. `extras` are names from EXTRAS: the jars that Spark needs for these object stores are
    downloaded too. With `kernels`, also compiles those kernels of the engine for which compiled code is missing or out of date.
    """
    cache = cache or open_cache()
    screen = screen or Console(stderr=True)
    with locked(cache, screen.print):
        java = provide_java(cache)
        jars = load_artifacts(DELTA) if delta else ()
        extra = load_artifacts(*extras)
        packed = [artifact for artifact in load_artifacts(*servers) if not is_unpacked(cache, artifact)]
        fetch(cache, java, [*jars, *extra, *packed], screen)
        _unpack_all(cache, packed, screen)
        if kernels:
            compile_kernels(cache, screen.print)
        homes = {version: server_home(cache, version) for version in servers}
    delta_jars, extra_jars = (tuple(cache.jars / jar.file_name for jar in group) for group in (jars, extra))
    return Toolchain(cache, java, delta_jars, homes, extra_jars)


def lacking(extras: Sequence[str]) -> list[str]:
    """Returns the names of those jars of the `extras` that are not in the cache. Downloads nothing, and verifies no checksum."""
    cache = open_cache()
    return [each.module for each in load_artifacts(*extras) if not (cache.jars / each.file_name).exists()]


def _unpack_all(cache: Cache, packed: Sequence[Artifact], screen: Console) -> None:
    for artifact in packed:
        screen.print(f"unpacking {artifact.group}")
        unpack(cache, artifact)
