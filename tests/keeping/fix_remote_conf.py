"""Provides a conf/ that is pulled from a real git repository, or as an archive from a real HTTP server."""

from __future__ import annotations

import http.server
import io
import os
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest
import yaml

from sluice.cdc_engine.keeping.in_use import VARIABLE
from sluice.cdc_engine.keeping.remote_conf import pull
from sluice.console.toolchain.ports import LOOPBACK

GOOD = "source: {host: 192.0.2.1, user: sluice, port: 3306}\n"
OTHER = "source: {host: 192.0.2.1, user: sluice, port: 3307}\n"
WRONG = "source: {host: 192.0.2.1, user: sluice, prot: 3306}\n"
SECRET = "open-sesame-42"  # noqa: S105
TOKEN = {"token": "$CONF_TOKEN"}


class Repository:
    """A repository whose conf/ is in the folder `prod/conf`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def commit(self, **destinations: str) -> str:
        """Commits these destinations and no others. Returns the commit."""
        written = self.folder / "prod" / "conf" / "destinations"
        written.mkdir(parents=True, exist_ok=True)
        for file in written.iterdir():
            file.unlink()
        for name, text in destinations.items():
            (written / f"{name}.yaml").write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "Change conf")
        return self.git("rev-parse", "HEAD")

    def git(self, *words: str) -> str:
        login = ("-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "tag.gpgsign=false")
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        return subprocess.check_output(["git", *login, *words], cwd=self.folder, text=True, env=environment).strip()


class HttpSource:
    """Serves one archive with its ETag to clients that have the token. Records the requests."""

    def __init__(self) -> None:
        self.content, self.etag, self.redirect = b"", '"1"', ""
        # The connection ends after this many bytes. None means that all bytes are sent.
        self.sent: int | None = None
        self.answers: list[int] = []
        self.logins: list[str] = []
        self.server = http.server.ThreadingHTTPServer((LOOPBACK, 0), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server.server_address[1]}/conf.tar.gz"

    def put(self, content: bytes, etag: str) -> None:
        self.content, self.etag = content, etag

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        source = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                source.logins.append(self.headers.get("Authorization") or "")
                status = 200
                if source.redirect:
                    status = 302
                elif not source.logins[-1].endswith(SECRET):
                    status = 401
                elif self.headers.get("If-None-Match") == source.etag:
                    status = 304
                source.answers.append(status)
                body = source.content if status == 200 else b""
                self.send_response(status)
                self.send_header("ETag", source.etag)
                self.send_header("Content-Length", str(len(body)))
                if source.redirect:
                    self.send_header("Location", source.redirect)
                self.end_headers()
                self.wfile.write(body[: source.sent])

            def log_message(self, *_: object) -> None:
                """Writes nothing."""

        return Answer


def tar_of(files: Mapping[str, str], mode: Literal["w:", "w:gz"] = "w:gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as opened:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            opened.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def zip_of(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        for name, text in files.items():
            opened.writestr(name, text)
    return packed.getvalue()


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty conf/."""
    monkeypatch.setenv(VARIABLE, "")
    folder = tmp_path / "conf"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_CONF", str(folder))
    monkeypatch.setenv("CONF_TOKEN", SECRET)
    monkeypatch.setattr(pull, "LOOK_AGAIN_SECONDS", 1.0)
    return folder


def describe(conf: Path, **settings: object) -> None:
    (conf / "remote.yaml").write_text(yaml.safe_dump(settings))


@pytest.fixture
def repository(tmp_path: Path, conf: Path) -> Repository:
    made = Repository(tmp_path / "repository")
    describe(conf, kind="git", url=made.url, ref="main", folder="prod/conf")
    return made


@pytest.fixture
def source(conf: Path) -> Iterator[HttpSource]:
    made = HttpSource()
    describe(conf, kind="archive", url=made.url, **TOKEN)
    yield made
    made.stop()
