"""Tests that a damaged or partial conf/ of the source is never used. The last good revision stays in use until a whole one arrives."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import stat
import subprocess
import threading
import zipfile
import zlib
from pathlib import Path

import psutil
import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.config.conf_files import read_conf_files
from sluice.cdc_engine.config.remote import record as record_file
from sluice.cdc_engine.config.remote.record import RemoteRecord, problems
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.keeping.conf_watch import ConfWatch
from sluice.cdc_engine.keeping.remote_conf import archive, git
from sluice.cdc_engine.keeping.remote_conf.git import settings_of
from sluice.cdc_engine.keeping.remote_conf.pull import pull, pull_at_start
from sluice.console.toolchain.ports import LOOPBACK
from tests.keeping.fix_remote_conf import GOOD, OTHER, TOKEN, WRONG, HttpSource, Repository, describe, tar_of, zip_of

pytestmark = pytest.mark.seeds

TWO = {"destinations/crm.yaml": GOOD, "destinations/shop.yaml": OTHER}
SIZES = (1024, 1124, 2048)  # After the first file, in the head of the second one, and after it: the end is missing.
DAMAGE = ["gz", "encrypted zip", "method of a zip"]


def names(conf: Path) -> list[str]:
    return sorted(load_config(conf).destinations)


def pulled(conf: Path, *, again: bool = True) -> RemoteRecord:
    found = pull(conf, again=again)
    assert found is not None
    return found


def damaged(kind: str) -> bytes:
    if kind == "gz":
        large = tar_of({name: text + "#" * 40_000 for name, text in TWO.items()}, "w:")
        packing = zlib.compressobj(wbits=31)
        return packing.compress(large[:30_000]) + packing.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 100
    content, field = bytearray(zip_of(TWO)), {"encrypted zip": (6, 8, 1), "method of a zip": (8, 10, 99)}[kind]
    for head, at in ((b"PK\3\4", field[0]), (b"PK\1\2", field[1])):
        index = content.find(head)
        while index >= 0:
            content[index + at] = field[2]
            index = content.find(head, index + 1)
    return bytes(content)


@pytest.mark.parametrize("sent", SIZES)
def test_a_connection_that_ends_early_leaves_the_last_good_revision(conf: Path, source: HttpSource, sent: int) -> None:
    source.put(tar_of({**TWO, "sluice.yaml": ""}, "w:"), '"1"')
    pulled(conf)
    source.put(tar_of(TWO, "w:"), '"2"')
    source.sent = sent
    assert f"cannot be read: the download ended after {sent} of 10240 bytes" in problems(pulled(conf))[0]
    assert names(conf) == ["crm", "shop"]
    source.sent = None
    assert not problems(pulled(conf, again=False))
    assert source.answers == [200, 200, 200]


@pytest.mark.parametrize("written", SIZES)
def test_a_tar_file_that_is_being_written_is_refused_until_it_is_whole(conf: Path, written: int) -> None:
    file, whole = conf.parent / "conf.tar", tar_of(TWO, "w:")
    describe(conf, kind="archive", url=file.as_uri())
    file.write_bytes(whole)
    pulled(conf)
    changed = tar_of({**TWO, "destinations/web.yaml": GOOD}, "w:")
    file.write_bytes(changed[:written])
    assert "is refused" in problems(pulled(conf))[0]
    assert (
        "the tar file is incomplete: its end marker is missing. Write the file under another name"
        in problems(pulled(conf))[0]
    )
    assert names(conf) == ["crm", "shop"]
    file.write_bytes(changed)
    assert not problems(pulled(conf, again=False))
    assert names(conf) == ["crm", "shop", "web"]


def test_a_part_with_the_etag_of_the_whole_archive_does_not_hide_it(conf: Path, source: HttpSource) -> None:
    source.put(tar_of({"destinations/shop.yaml": GOOD}), '"1"')
    pulled(conf)
    whole = tar_of(TWO)
    source.put(whole[: len(whole) // 2], '"2"')
    assert "is refused" in problems(pulled(conf))[0]
    source.put(whole, '"2"')
    assert not problems(pulled(conf, again=False))
    assert names(conf) == ["crm", "shop"]


def test_a_refused_archive_that_comes_back_is_refused_again(conf: Path, source: HttpSource) -> None:
    good, wrong = tar_of(TWO), tar_of({"destinations/shop.yaml": WRONG})
    for content, etag, count in (
        (good, '"1"', 0),
        (wrong, '"2"', 1),
        (good, '"1"', 0),
        (good, '"1"', 0),
        (wrong, '"2"', 1),
    ):
        source.put(content, etag)
        assert len(problems(pulled(conf, again=False))) == count
    assert source.answers == [200, 200, 200, 304, 200]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_of_any_kind_is_refused(conf: Path, source: HttpSource, kind: str) -> None:
    source.put(tar_of(TWO), '"1"')
    pulled(conf)
    source.put(damaged(kind), '"2"')
    assert "the archive is not a readable tar or zip file (" in problems(pulled(conf))[0]
    assert names(conf) == ["crm", "shop"]


@pytest.mark.found
def test_a_link_in_a_zip_archive_is_not_read_as_a_text(conf: Path, source: HttpSource) -> None:
    """Defect 91: the path that a link in a zip archive leads to was read as the text of the file."""
    source.put(tar_of(TWO), '"1"')
    pulled(conf)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("destinations/shop.yaml", GOOD)
        link = zipfile.ZipInfo("destinations/crm.yaml")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(link, "../shared.yaml")
    source.put(archive.getvalue(), '"2"')
    assert "crm.yaml cannot be read: the path is a link: write a file instead" in problems(pulled(conf))[0]
    assert names(conf) == ["crm", "shop"]


@pytest.mark.parametrize("name", ["destinations/crm.yaml", "sluice.yaml"])
def test_a_link_in_conf_is_refused_and_stops_no_engine(conf: Path, repository: Repository, name: str) -> None:
    repository.commit(crm=GOOD, shop=OTHER)
    pulled(conf)
    file = repository.folder / "prod" / "conf" / name
    file.unlink(missing_ok=True)
    file.symlink_to("../shared.yaml")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "Link")
    assert f"{Path(name).name} cannot be read: the path is a link: write a file instead" in problems(pulled(conf))[0]
    assert names(conf) == ["crm", "shop"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unknown")])
def test_a_process_starts_with_the_last_good_revision_if_a_pull_fails(
    conf: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_path: Path, _content: str) -> None:
        raise error

    repository.commit(shop=GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(record_file, "replace_file", fail)
        with pytest.raises((ConfigurationError, RuntimeError), match=r"No space left on device|unknown"):
            pull_at_start(conf)  # There is no good revision yet.
        patch.undo()
    pulled(conf)
    repository.commit(shop=OTHER)
    monkeypatch.setattr(record_file, "replace_file", fail)
    assert ConfWatch(conf, "test").in_use.config.destinations["shop"].source.port == 3306


def test_attributes_of_the_repository_leave_no_destination_out(conf: Path, repository: Repository) -> None:
    """`git archive` omits files with the attribute export-ignore. Without its file, the engine of the destination would stop."""
    (repository.folder / ".gitattributes").write_text("crm.yaml export-ignore\n*.yaml export-subst\n")
    repository.commit(crm=f"{GOOD}# $Format:%H$\n", shop=OTHER)
    pulled(conf)
    assert names(conf) == ["crm", "shop"]
    assert read_conf_files(conf).destinations["crm"].endswith("# $Format:%H$\n")


def test_a_server_that_sends_byte_by_byte_is_not_read_without_end(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "CONTENT_SECONDS_MAX", 0.5)
    ended = threading.Event()

    def drip() -> None:
        connection, _ = slow.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not ended.wait(0.05):
                connection.sendall(b"a")

    with socket.create_server((LOOPBACK, 0)) as slow:
        thread = threading.Thread(target=drip)
        thread.start()
        describe(conf, kind="archive", url=f"http://{LOOPBACK}:{slow.getsockname()[1]}/conf.tar")
        try:
            assert "did not send all of its content in 0.5 s" in problems(pulled(conf))[0]
        finally:
            ended.set()
            thread.join(60)


def test_git_follows_no_redirect_with_a_login(conf: Path, source: HttpSource) -> None:
    other = HttpSource()
    try:
        source.redirect = f"{other.url}/info/refs?service=git-upload-pack"
        describe(conf, kind="git", url=source.url, **TOKEN)
        assert "cannot be read" in problems(pulled(conf))[0]
        assert len(source.logins) == 1
        assert other.logins == []
    finally:
        other.stop()


def test_a_git_server_that_does_not_answer_leaves_no_process(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git waits without limit for the server, in a child process that has the connection. conf/ is pulled every minute, so such processes
    would accumulate.
    """
    monkeypatch.setattr(git, "GIT_SECONDS_MAX", 1.0)
    with socket.create_server((LOOPBACK, 0)) as silent:  # The kernel accepts the connection.
        url = f"http://{LOOPBACK}:{silent.getsockname()[1]}/conf.git"
        describe(conf, kind="git", url=url)
        assert "did not answer in 1 s" in problems(pulled(conf))[0]
        found = [each for each in psutil.process_iter(["cmdline"]) if url in (each.info["cmdline"] or ())]
        assert found == []


@pytest.mark.parametrize(
    ("requested", "sent"),
    [
        ("https://git.example.com:8443/other.git", True),
        ("https://git.example.com/conf.git", False),
        ("http://git.example.com:8443/conf.git", False),
        ("https://example.com:8443/conf.git", False),
    ],
)
def test_git_sends_the_login_to_its_server_only(tmp_path: Path, requested: str, sent: bool) -> None:
    settings = settings_of("https://sluice@git.example.com:8443/conf.git", "bG9naW4=")
    words = [word for name, value in settings for word in ("-c", f"{name}={value}")]
    done = subprocess.run(
        ["git", *words, "config", "--get-urlmatch", "http.extraHeader", requested],
        cwd=tmp_path,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == ("Authorization: Basic bG9naW4=" if sent else "")
