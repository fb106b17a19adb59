"""Tests that downloads are pinned, verified, and shared by concurrent starts. A download that fails gives one sentence that says what to
do.

The real Ivy reads a repository in a folder. SLUICE_IVY_SETTINGS names the repository, as it does for users with their own repository.
"""

import hashlib
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sluice.console.toolchain.artifacts import Artifact
from sluice.console.toolchain.cache import Cache, locked, require_space
from sluice.console.toolchain.download import fetch, proxy_options
from sluice.console.toolchain.errors import SetupError
from sluice.console.toolchain.java import Java, provide_java

CONTENT = b"a jar" * 500_000
SCREEN = Console(quiet=True)
UNUSABLE_JAVA = Java(Path("/nonexistent/java"), 17)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    root = tmp_path / "cache"
    root.mkdir()
    return Cache(root)


@pytest.fixture
def java(tmp_path: Path, cache: Cache) -> Java:
    """Returns the machine's Java behind a script that counts its starts."""
    real = provide_java(cache)
    script = tmp_path / "java"
    script.write_text(f'#!/bin/sh\necho started >>"{tmp_path}/starts"\nexec "{real.program}" "$@"\n')
    script.chmod(0o755)
    return Java(script, real.version)


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """Returns a jar whose repository is a local folder, and configures Ivy to use this repository."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "thing-1.0.jar").write_bytes(CONTENT)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        f"""<ivysettings><settings defaultResolver="folder"/><resolvers><filesystem name="folder">
        <artifact pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>"""
    )
    monkeypatch.setenv("SLUICE_IVY_SETTINGS", str(settings))
    return Artifact("test", "org.example", "thing", "1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def _starts(tmp_path: Path) -> int:
    log = tmp_path / "starts"
    return len(log.read_text().splitlines()) if log.exists() else 0


def _one_sentence(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_second_fetch_downloads_nothing(cache: Cache, java: Java, artifact: Artifact) -> None:
    fetch(cache, java, [artifact], SCREEN)
    assert (cache.jars / artifact.file_name).read_bytes() == CONTENT
    assert not cache.incoming.exists()
    fetch(cache, UNUSABLE_JAVA, [artifact], SCREEN)


def test_wrong_checksum_leaves_nothing(cache: Cache, java: Java, artifact: Artifact) -> None:
    with pytest.raises(SetupError, match="instead of the pinned 0000") as raised:
        fetch(cache, java, [replace(artifact, sha256="0" * 64)], SCREEN)
    assert "run the command again" in _one_sentence(raised.value)
    assert list(cache.jars.rglob("*.jar")) == []


def test_damaged_file_in_the_cache_is_found_and_fetched_again(cache: Cache, java: Java, artifact: Artifact) -> None:
    fetch(cache, java, [artifact], SCREEN)
    (cache.jars / artifact.file_name).write_bytes(CONTENT[:-1])
    with pytest.raises(SetupError, match="was deleted"):
        fetch(cache, java, [artifact], SCREEN)
    fetch(cache, java, [artifact], SCREEN)
    assert (cache.jars / artifact.file_name).read_bytes() == CONTENT


def test_no_network(cache: Cache, java: Java, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_IVY_SETTINGS")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("https_proxy", raising=False)
    with pytest.raises(SetupError, match=r"Could not download thing 1\.0") as raised:
        fetch(cache, java, [artifact], SCREEN)
    assert "check the network" in _one_sentence(raised.value)


def test_disk_that_is_full_from_the_start(cache: Cache) -> None:
    with pytest.raises(SetupError, match="is full") as raised:
        require_space(cache, 1 << 60)
    assert "SLUICE_CACHE" in _one_sentence(raised.value)


def test_disk_that_fills_up_while_downloading(cache: Cache, java: Java, artifact: Artifact) -> None:
    """A limit on file sizes replaces a full disk, because Sluice treats both errors alike. So the test does not depend on the free space
    of the disk.
    """
    program = f"""
import resource
from pathlib import Path
from rich.console import Console
from sluice.console.toolchain.artifacts import Artifact
from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.download import fetch
from sluice.console.toolchain.java import Java
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
fetch(Cache(Path({str(cache.root)!r})), Java(Path({str(java.program)!r}), 17), [{artifact!r}], Console(quiet=True))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"The disk of {cache.root} is full" in done.stderr.splitlines()[-1]
    assert list(cache.jars.rglob("*.jar")) == []


def test_two_starts_download_once(cache: Cache, java: Java, artifact: Artifact, tmp_path: Path) -> None:
    def start() -> None:
        with locked(cache):
            fetch(cache, java, [artifact], SCREEN)

    starts = [threading.Thread(target=start) for _ in range(3)]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    assert _starts(tmp_path) == 1
    assert (cache.jars / artifact.file_name).exists()


def test_proxy_of_pip_and_uv_is_java_s_too() -> None:
    assert proxy_options({"https_proxy": "http://proxy.example:3128"}) == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
    ]
    assert proxy_options({}) == []
