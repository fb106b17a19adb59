"""Downloads pinned jars with the command line of Apache Ivy, whose jar is part of pyspark. Callers must hold the lock of the cache.

Ivy downloads from the public Maven repository. To download from a mirror, name a file with Ivy settings in SLUICE_IVY_SETTINGS. The proxies
that http_proxy and https_proxy name are passed to Java.
"""

import os
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from sluice.console.toolchain.artifacts import Artifact, sha256_of
from sluice.console.toolchain.cache import Cache, disk_full, require_space, storage_failed
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.java import Java, trust_options
from sluice.console.toolchain.python_packages import pyspark_jar

# If no byte arrives for this many seconds, the download fails. Ivy itself would wait for many minutes.
STALL_SECONDS_MAX = 90
POLL_SECONDS = 0.1
# With these settings, Ivy reads no POM. No POM is needed, because the artifacts are pinned, and one of the POMs names a parent that is not
# published.
SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


def fetch(cache: Cache, java: Java, artifacts: Sequence[Artifact], screen: Console) -> None:
    """Downloads each artifact that is not in the cache yet. Verifies the checksums of all artifacts, also of those in the cache. Raises
    SetupError if a download fails or a checksum is wrong.
    """
    missing = [artifact for artifact in artifacts if not _is_present(cache, artifact)]
    if not missing:
        return
    needed_bytes = sum(artifact.size_bytes for artifact in missing)
    require_space(cache, 2 * needed_bytes)  # Ivy writes each file twice: to Ivy's cache and to the output directory.
    shutil.rmtree(cache.incoming, ignore_errors=True)
    try:
        _run_ivy(cache, java, missing, screen)
        for artifact in missing:
            _install(cache, artifact)
    except OSError as error:
        raise storage_failed(cache, error, 2 * needed_bytes) from error
    finally:
        shutil.rmtree(cache.incoming, ignore_errors=True)


def verify(artifact: Artifact, file: Path) -> None:
    """Compares the checksum of a file with the pinned checksum. If they differ, deletes the file and raises SetupError."""
    found = sha256_of(file)
    if found != artifact.sha256:
        file.unlink()
        raise SetupError(
            f"{file.name} has the checksum {found[:12]}… instead of the pinned {artifact.sha256[:12]}…, so "
            "the file was deleted; run the command again. If the checksum is wrong again, find out which "
            "proxy or mirror changes the download."
        )


def _is_present(cache: Cache, artifact: Artifact) -> bool:
    file = cache.jars / artifact.file_name
    if not file.exists():
        return False
    verify(artifact, file)
    return True


def _install(cache: Cache, artifact: Artifact) -> None:
    arrived = cache.incoming / "out" / artifact.file_name
    if not arrived.exists():
        raise _no_network([artifact], "the repository did not deliver the file")
    verify(artifact, arrived)
    cache.jars.mkdir(exist_ok=True)
    arrived.replace(cache.jars / artifact.file_name)


def _run_ivy(cache: Cache, java: Java, missing: Sequence[Artifact], screen: Console) -> None:
    cache.incoming.mkdir(parents=True)
    module_file = cache.incoming / "ivy.xml"
    module_file.write_text(ivy_module(missing), encoding="utf-8")
    log = cache.incoming / "ivy.log"
    with log.open("w", encoding="utf-8") as output:
        ivy = subprocess.Popen(
            _ivy_command(cache, java, module_file), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            in_time = _watch(ivy, cache, missing, screen)
        finally:
            ivy.kill()
            ivy.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    if "No space left on device" in text or "Disk quota exceeded" in text or "File too large" in text:
        raise disk_full(cache, 2 * sum(artifact.size_bytes for artifact in missing))
    if not in_time:
        raise _no_network(missing, f"no data arrived for {STALL_SECONDS_MAX} s")
    if ivy.returncode != 0:
        raise _no_network(missing, "Ivy could not download from the repository")


def _ivy_command(cache: Cache, java: Java, module_file: Path) -> list[str]:
    settings = os.environ.get("SLUICE_IVY_SETTINGS")
    if not settings:
        own = cache.incoming / "ivysettings.xml"
        own.write_text(SETTINGS, encoding="utf-8")
        settings = str(own)
    return [
        *(str(java.program), *trust_options(cache.incoming / "authorities.p12"), *proxy_options(os.environ)),
        *("-Dsun.net.client.defaultConnectTimeout=15000", "-Dsun.net.client.defaultReadTimeout=60000"),
        *("-jar", str(pyspark_jar("ivy"))),
        *("-settings", settings),
        *("-cache", str(cache.incoming / "cache"), "-ivy", str(module_file), "-confs", "default"),
        *("-retrieve", str(cache.incoming / "out" / "[organisation]-[artifact]-[revision].[ext]")),
    ]


def ivy_module(artifacts: Sequence[Artifact]) -> str:
    """Returns the content of the ivy.xml that requests exactly these jars, without their dependencies."""
    lines = "\n".join(
        f"    <dependency org={quoteattr(a.organisation)} name={quoteattr(a.module)} rev={quoteattr(a.revision)}"
        f' transitive="false" conf="default->default">{_classified(a)}</dependency>'
        for a in artifacts
    )
    return f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="sluice" module="toolchain"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{lines}
    <conflict manager="all"/>
  </dependencies>
</ivy-module>
"""


def _classified(artifact: Artifact) -> str:
    """Returns the XML element that selects one of several jars of a module. Returns "" if the artifact has no classifier."""
    if not artifact.classifier:
        return ""
    kind = quoteattr(artifact.extension)
    return f"<artifact name={quoteattr(artifact.module)} type={kind} ext={kind} m:classifier={quoteattr(artifact.classifier)}/>"


def proxy_options(environment: Mapping[str, str]) -> list[str]:
    """Returns the Java options for the proxies that the environment variables http_proxy and https_proxy name, in lower or upper case."""
    options = []
    for scheme in ("http", "https"):
        value = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        proxy = urllib.parse.urlsplit(value or "")
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    return options


def _watch(ivy: "subprocess.Popen[bytes]", cache: Cache, missing: Sequence[Artifact], screen: Console) -> bool:
    """Shows a progress bar for each download until Ivy ends, and then returns True, whatever Ivy's exit code is. Returns False as soon as
    no byte has arrived for STALL_SECONDS_MAX.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=screen) as progress:
        tasks = {a: progress.add_task(f"{a.module} {a.revision}", total=a.size_bytes) for a in missing}
        last_sizes: list[int] = []
        last_change = time.monotonic()
        while ivy.poll() is None:
            sizes = [_arrived_bytes(cache, artifact) for artifact in missing]
            for artifact, size in zip(missing, sizes, strict=True):
                progress.update(tasks[artifact], completed=size)
            if sizes != last_sizes:
                last_sizes, last_change = sizes, time.monotonic()
            if time.monotonic() - last_change > STALL_SECONDS_MAX:
                return False
            time.sleep(POLL_SECONDS)
        if ivy.returncode == 0:
            for artifact, task in tasks.items():
                progress.update(task, completed=artifact.size_bytes)
    return True


def _arrived_bytes(cache: Cache, artifact: Artifact) -> int:
    """Returns the size of the file that Ivy is writing for an artifact. While the file is incomplete, its name has an additional ending."""
    folder = cache.incoming / "cache" / artifact.organisation / artifact.module
    sizes = [
        file.stat().st_size for file in folder.glob(f"*/{artifact.module}-{artifact.revision}*.jar*") if file.exists()
    ]
    return max(sizes, default=0)


def _no_network(missing: Sequence[Artifact], reason: str) -> SetupError:
    names = ", ".join(f"{artifact.module} {artifact.revision}" for artifact in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return SetupError(
        f"Could not download {names}{more} ({reason}); check the network, and HTTPS_PROXY if you are behind a proxy,"
        " or name a file with Ivy settings for your mirror in SLUICE_IVY_SETTINGS. Then run the command again."
    )
