"""Tests that a pulled conf/ is used only as a whole, that the last good revision stays in use if the newest one is invalid or missing, and
that no message has a secret.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.config.conf_files import read_conf_files, remote_record
from sluice.cdc_engine.config.remote import record as record_file
from sluice.cdc_engine.config.remote.record import problems, sentence
from sluice.cdc_engine.config.remote.settings import url_problem
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.file_lock import FileLock
from sluice.cdc_engine.keeping.conf_watch import ConfWatch
from sluice.cdc_engine.keeping.keeper import follow
from sluice.cdc_engine.keeping.remote_conf import archive as archive_of_conf
from sluice.cdc_engine.keeping.remote_conf import fetched
from sluice.cdc_engine.keeping.remote_conf import pull as pull_of_conf
from sluice.cdc_engine.keeping.remote_conf.pull import LOCK_FILE, pull, pull_at_start
from sluice.console.acts.instance import changed
from sluice.console.main import app
from tests.keeping.fix_remote_conf import (
    GOOD,
    OTHER,
    SECRET,
    TOKEN,
    WRONG,
    HttpSource,
    Repository,
    describe,
    tar_of,
    zip_of,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.seeds


def ports(conf: Path) -> dict[str, int]:
    return {name: each.source.port for name, each in sorted(load_config(conf).destinations.items())}


def pulled(conf: Path) -> record_file.RemoteRecord:
    found = pull(conf)
    assert found is not None
    assert SECRET not in repr((found, problems(found), sentence(found)))
    return found


def test_conf_of_a_repository_is_applied_like_a_changed_file(conf: Path, repository: Repository) -> None:
    first = repository.commit(shop=GOOD)
    watch = ConfWatch(conf, "test")
    assert watch.in_use.config.destination_dir("shop").is_relative_to(conf.parent / "data"), (
        "paths begin where conf/ is"
    )
    repository.commit(shop=OTHER, crm=GOOD)
    stopping, seen = threading.Event(), list[list[str]]()
    thread = threading.Thread(
        target=follow, args=(watch, [lambda each: seen.append(sorted(each.config.destinations))], stopping, 0.01)
    )
    thread.start()
    try:
        wait_for("the next commit is in use", lambda: ["crm", "shop"] in seen)
    finally:
        stopping.set()
        thread.join()
    assert watch.in_use.config.destinations["shop"].source.port == 3307
    assert first[:12] in sentence(dataclasses.replace(pulled(conf), revision=first))


def test_an_invalid_revision_is_refused_as_a_whole_until_it_is_corrected(conf: Path, repository: Repository) -> None:
    good = repository.commit(shop=GOOD)
    pulled(conf)
    wrong = repository.commit(shop=OTHER, crm=WRONG)
    found = pulled(conf)
    assert ports(conf) == {"shop": 3306}
    (problem,) = problems(found)
    assert problem.startswith(f"revision {wrong[:12]} is refused, revision {good[:12]} stays in use: file://")
    assert " main prod/conf: destinations/crm.yaml: source.prot" in problem
    status = CliRunner().invoke(app, ["status", "--verbose"], env={"COLUMNS": "400"})
    checked = CliRunner().invoke(app, ["check"], env={"COLUMNS": "400"})
    for reported in (status.output, checked.output):
        assert f"conf/ is revision {good[:12]} of file://" in reported
        assert f"revision {wrong[:12]} is refused" in reported
    repository.git("reset", "-q", "--hard", good)
    assert not problems(pulled(conf)), "the refused revision was taken back"
    repository.commit(shop=OTHER, crm=GOOD)
    assert not problems(pulled(conf))
    assert ports(conf) == {"crm": 3306, "shop": 3307}


@pytest.mark.found
def test_a_refused_revision_is_reported_with_the_repository_that_has_it(
    conf: Path, repository: Repository, tmp_path: Path
) -> None:
    """Defect 1170: after `url` had changed, the message about the new repository's refused revision named the earlier repository, where
    nobody could correct the revision.
    """
    good = repository.commit(shop=GOOD)
    pulled(conf)
    other = Repository(tmp_path / "other")
    wrong = other.commit(shop=WRONG)
    describe(conf, kind="git", url=other.url, ref="main", folder="prod/conf")
    found = pulled(conf)
    (problem,) = problems(found)
    assert (
        f"revision {wrong[:12]} is refused, revision {good[:12]} stays in use: {other.url} main prod/conf: " in problem
    )
    assert repository.url not in problem
    assert f"revision {good[:12]} of {repository.url}" in sentence(found)


@pytest.mark.found
def test_a_repository_that_is_not_named_any_more_is_not_reported(
    conf: Path, repository: Repository, tmp_path: Path
) -> None:
    """Defect 1170: the same happened if no revision of the earlier repository was valid."""
    repository.commit(shop=WRONG)
    pulled(conf)
    other = Repository(tmp_path / "other")
    other.commit(shop=WRONG)
    describe(conf, kind="git", url=other.url, ref="main", folder="prod/conf")
    found = pulled(conf)
    assert sentence(found) == f"nothing was pulled from {other.url} main prod/conf yet"
    assert repository.url not in problems(found)[0]


def test_the_last_good_revision_is_used_while_the_source_is_away_also_after_a_restart(
    conf: Path, repository: Repository
) -> None:
    repository.commit(shop=GOOD)
    pulled(conf)
    shutil.move(repository.folder, repository.folder.with_name("away"))
    found = pulled(conf)
    (problem,) = problems(found)
    assert "stays in use: file://" in problem
    assert "cannot be read" in problem
    assert pulled(conf).since == found.since, "since when it is away"
    assert ConfWatch(conf, "test").in_use.config.destinations["shop"].source.port == 3306
    answer = CliRunner().invoke(app, ["conf", "pull"], env={"COLUMNS": "400"})
    assert (answer.exit_code, "conf/ is revision" in answer.output) == (1, True)
    shutil.move(repository.folder.with_name("away"), repository.folder)
    assert not problems(pulled(conf))
    assert CliRunner().invoke(app, ["conf", "pull"]).exit_code == 0


def test_a_crash_before_the_switch_leaves_the_earlier_revision_whole(
    conf: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit(shop=GOOD)
    pulled(conf)
    repository.commit(shop=OTHER)

    class KilledError(BaseException):
        """The simulated end of the process."""

    def killed(path: Path, content: str) -> None:
        path.with_suffix(".tmp").write_text(content[: len(content) // 2])
        raise KilledError

    monkeypatch.setattr(record_file, "replace_file", killed)
    with pytest.raises(KilledError):
        pull(conf)
    monkeypatch.undo()
    assert ports(conf) == {"shop": 3306}
    pulled(conf)
    assert ports(conf) == {"shop": 3307}


def test_a_branch_and_a_tag_can_be_named_and_others_are_refused(conf: Path, repository: Repository) -> None:
    repository.commit(shop=GOOD)
    repository.git("tag", "-a", "v1", "-m", "first")
    repository.commit(shop=OTHER)
    for ref, port in (("v1", 3306), ("main", 3307), ("HEAD", 3307)):
        describe(conf, kind="git", url=repository.url, ref=ref, folder="prod/conf")
        assert not problems(pulled(conf))
        assert ports(conf) == {"shop": port}
    describe(conf, kind="git", url=repository.url, ref="nowhere", folder="prod/conf")
    assert "has no branch or tag nowhere: correct `ref`" in problems(pulled(conf))[0]
    describe(conf, kind="git", url=repository.url, folder="prod")
    assert "the revision has no destinations/NAME.yaml in its folder prod" in problems(pulled(conf))[0]
    assert ports(conf) == {"shop": 3307}


def test_a_git_server_that_refuses_the_login_gets_it_and_no_message_has_it(conf: Path, source: HttpSource) -> None:
    describe(conf, kind="git", url=source.url, user="sluice", **TOKEN)
    (problem,) = problems(pulled(conf))
    assert source.logins[0].startswith("Basic ")
    assert "cannot be read" in problem
    assert source.logins[0].removeprefix("Basic ") not in problem


def test_a_url_with_a_secret_is_shown_by_its_name_only(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONF_URL", f"http://sluice:{SECRET}@127.0.0.1:1/conf.git?token={SECRET}")
    for kind in ("git", "archive"):
        describe(conf, kind=kind, url="$CONF_URL")
        (problem,) = problems(pulled(conf))
        assert f"the {kind} at $CONF_URL cannot be read" in problem


def test_an_archive_is_downloaded_with_the_token_once_per_change(conf: Path, source: HttpSource) -> None:
    source.put(tar_of({"conf-1/sluice.yaml": "", "conf-1/destinations/shop.yaml": GOOD}), '"1"')
    pulled(conf)
    pulled(conf)
    assert source.answers == [200, 304]
    assert source.logins == [f"Bearer {SECRET}"] * 2
    assert ports(conf) == {"shop": 3306}
    source.put(zip_of({"destinations/shop.yaml": OTHER}), '"2"')
    pulled(conf)
    assert ports(conf) == {"shop": 3307}
    source.put(b"no archive", '"3"')
    assert "the archive is not a readable tar or zip file" in problems(pulled(conf))[0]
    assert ports(conf) == {"shop": 3307}
    source.stop()
    refused, away = problems(pulled(conf))
    assert "not a readable tar or zip" in refused
    assert "cannot be read: Connection refused" in away


def test_a_wrong_token_a_redirect_and_a_large_archive_are_reported(
    conf: Path, source: HttpSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(tar_of({"destinations/shop.yaml": GOOD}), '"1"')
    with monkeypatch.context() as patch:
        patch.setattr(archive_of_conf, "ARCHIVE_BYTES_MAX", 10)
        assert "is larger than" in problems(pulled(conf))[0]
        patch.setenv("CONF_TOKEN", "wrong")
        assert "answered 401: correct url and token" in problems(pulled(conf))[0]
    monkeypatch.delenv("CONF_TOKEN")
    assert "variable CONF_TOKEN is not set" in problems(pulled(conf))[0]
    monkeypatch.setenv("CONF_TOKEN", SECRET)
    for other in ("http://192.0.2.1/conf.tar.gz", f"file://{conf}/remote.yaml"):
        source.redirect = other
        said = problems(pulled(conf))[0]
        assert "answered 302, and the redirect is not followed" in said
        assert other not in said
    source.redirect = ""
    monkeypatch.setattr(fetched, "TEXT_BYTES_MAX", 10)
    assert "readable tar or zip file (ValueError)" in problems(pulled(conf))[0]
    with pytest.raises(ConfigurationError, match=r"nothing was pulled from .*; run `sluice conf pull`"):
        load_config(conf)


def test_an_archive_in_a_file_is_read(conf: Path) -> None:
    file = conf.parent / "conf.zip"
    file.write_bytes(zip_of({"a/destinations/shop.yaml": GOOD, "b/destinations/shop.yaml": OTHER}))
    describe(conf, kind="archive", url=file.as_uri(), folder="b")
    pulled(conf)
    assert ports(conf) == {"shop": 3307}
    with pytest.raises(
        ConfigurationError,
        match=r"conf/ is pulled from file://.*zip b: change destinations/shop\.yaml in that repository or archive",
    ):
        changed(conf, "shop", GOOD)


def test_one_process_of_a_host_pulls_at_a_time(conf: Path, repository: Repository) -> None:
    repository.commit(shop=GOOD)
    pulled(conf)
    repository.commit(shop=OTHER)
    lock = FileLock(conf.parent / "data" / LOCK_FILE)
    assert lock.try_acquire()
    pulled(conf)
    assert ports(conf) == {"shop": 3306}
    lock.release()
    pulled(conf)
    assert ports(conf) == {"shop": 3307}


@pytest.mark.parametrize("is_first", [True, False], ids=["no-revision", "older-revision"])
def test_a_pull_that_must_have_the_newest_revision_waits_for_another_one(
    conf: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """A pull that waits for another process must then fetch by itself, because the revision of the other process may be older. This happens
    with `conf pull` after a commit, and when two processes start at the same time.
    """
    repository.commit(shop=GOOD)
    if not is_first:
        pulled(conf)
    lock = FileLock(conf.parent / "data" / LOCK_FILE)
    assert lock.try_acquire()
    ended, found_it_held = list[int](), threading.Event()

    class Noted(FileLock):
        def try_acquire(self) -> bool:
            acquired = super().try_acquire()
            if not acquired:
                found_it_held.set()
            return acquired

    monkeypatch.setattr(pull_of_conf, "FileLock", Noted)

    def wait() -> None:
        if is_first:
            pull_at_start(conf)
        else:
            ended.append(CliRunner().invoke(app, ["conf", "pull"]).exit_code)

    thread = threading.Thread(target=wait)
    thread.start()
    assert found_it_held.wait(60)
    repository.commit(shop=OTHER)
    lock.release()
    thread.join(60)
    assert ended == ([] if is_first else [0])
    assert ports(conf) == {"shop": 3307}


def test_a_pull_does_not_wait_for_another_one_without_end(conf: Path, repository: Repository) -> None:
    repository.commit(shop=GOOD)
    pulled(conf)
    lock = FileLock(conf.parent / "data" / LOCK_FILE)
    assert lock.try_acquire()
    with pytest.raises(ConfigurationError, match=r"another process has been pulling file://.* for 0\.3 s: try again"):
        pull(conf, wait_seconds=0.3)
    lock.release()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kind": "svn", "url": "https://a/b"}, "kind"),
        ({"kind": "archive", "url": "ftp://a/b"}, "must begin with one of https://, file://"),
        ({"kind": "archive", "url": "http://example.com/b"}, "must begin with one of https://"),
        ({"kind": "git", "url": f"https://sluice:{SECRET}@a/b"}, "url has a password or a token"),
        ({"kind": "archive", "url": f"https://a/b?sig={SECRET}"}, "url has a password or a token"),
        ({"kind": "git", "url": "https://a/b", "token": SECRET}, "token: .*write .NAME of an environment variable"),
        (
            {"kind": "git", "url": "https://a/b", "folder": "../c"},
            "folder below the top folder of the repository or archive",
        ),
        ({"kind": "git", "url": "https://a/b", "ref": "--upload-pack=x"}, "ref"),
        ({"kind": "git", "url": f"https://a:{SECRET}/b"}, "url is not a URL"),
        ({"kind": "git", "url": "https://a/b", "poll_seconds": 5}, "poll_seconds was removed: .* once a minute"),
    ],
)
def test_a_wrong_description_is_refused_without_a_secret(conf: Path, settings: dict[str, str], why: str) -> None:
    describe(conf, **settings)
    with pytest.raises(ConfigurationError, match=why) as raised:
        load_config(conf)
    assert "remote.yaml: " in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.found
@pytest.mark.parametrize("login", ["https://me:12", "https://me@example.com:12", "ssh://me:12"])
@pytest.mark.parametrize("end", ["/", "?", "#"])
def test_a_url_whose_password_has_a_slash_is_refused_without_the_password(conf: Path, login: str, end: str) -> None:
    """Defect 1172: a part of the password counted as the port and the path, and messages showed this part."""
    describe(conf, kind="git", url=f"{login}{end}{SECRET}@host/r")
    with pytest.raises(ConfigurationError, match="url has @ after the host: set `user` and `token`") as raised:
        load_config(conf)
    assert SECRET not in str(raised.value)
    assert "12" not in str(raised.value).replace(str(conf), "")


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("git", "ssh://git@host:22/team@area/conf"),
        ("git", "ssh://host/conf"),
        ("git", "file:///srv/team@area/conf"),
        ("git", "https://git@host/conf"),
        ("archive", "https://host/conf%40v1.tar.gz"),
    ],
)
def test_an_at_sign_that_ends_no_password_is_accepted(kind: Literal["git", "archive"], url: str) -> None:
    assert not url_problem(kind, url)


def test_files_of_conf_together_with_a_remote_source_are_refused(conf: Path, repository: Repository) -> None:
    repository.commit(shop=GOOD)
    (conf / "sluice.yaml").write_text("")
    with pytest.raises(ConfigurationError, match=r"remove either remote\.yaml or the local files"):
        read_conf_files(conf)
    (conf / "sluice.yaml").unlink()
    (conf / "remote.yaml").unlink()
    assert pull(conf) is None
    assert remote_record(conf) is None
    assert "describe the repository or archive in this file" in CliRunner().invoke(app, ["conf", "pull"]).output + str(
        CliRunner().invoke(app, ["conf", "pull"]).exception
    )
