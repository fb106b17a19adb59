"""Fetches a revision of conf/ from a git repository with the command `git`.

Secrets are passed in the environment of the command, because other users of the host can read its arguments.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sluice.cdc_engine.config.remote.settings import RemoteConfig
from sluice.cdc_engine.keeping.remote_conf.fetched import ARCHIVE_BYTES_MAX, Fetched, RemoteAwayError
from sluice.secret_values.process_group import end_group

GIT_SECONDS_MAX = 60.0
REASON_CHARACTERS_MAX = 300
ORIGIN = "sluice-conf"
# With these attributes, `git archive` leaves out no file and changes no file, even if the repository's own attributes request it.
WHOLE = "* -export-ignore -export-subst\n"
URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s']+", re.IGNORECASE)


def fetch_git(remote: RemoteConfig, url: str, token: str, known: Sequence[str]) -> Fetched:
    """Fetches the newest revision of the branch or tag in conf/remote.yaml. If the revision is one of `known`, returns it without its
    files. Raises RemoteAwayError if the revision cannot be fetched.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-conf-") as folder:
        command = _Git(remote, url, token, Path(folder))
        command.run("init", "-q", "--bare", ".")
        # The attributes WHOLE make `git archive` include every file unchanged. They are written to info/attributes, because attributes in
        # this file take precedence over those in the repository.
        attributes = Path(folder) / "info" / "attributes"
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_text(WHOLE)
        name, revision = _newest(remote, command)
        if revision in known:
            return Fetched(revision, b"")
        command.run("fetch", "-q", "--depth=1", "--no-tags", ORIGIN, name)
        fetched = command.run("rev-parse", "FETCH_HEAD^{commit}").decode().strip()
        archive = command.run(
            "archive", "--format=tar", "FETCH_HEAD", "--", *([remote.folder] if remote.folder else ())
        )
    if len(archive) > ARCHIVE_BYTES_MAX:
        raise RemoteAwayError(
            f"{remote.shown} is larger than {ARCHIVE_BYTES_MAX >> 20} MiB: set `folder` in conf/remote.yaml to a folder that has "
            "only the files of conf/"
        )
    return Fetched(fetched, archive)


def _newest(remote: RemoteConfig, command: _Git) -> tuple[str, str]:
    """Returns the full name of the branch or tag, and its commit. Raises RemoteAwayError if the repository has neither."""
    names = ["HEAD"] if remote.ref == "HEAD" else [f"refs/heads/{remote.ref}", f"refs/tags/{remote.ref}"]
    lines = command.run("ls-remote", ORIGIN, *names, f"refs/tags/{remote.ref}^{{}}").decode().splitlines()
    commits = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
    for name in names:
        if name in commits:
            return name, commits.get(f"{name}^{{}}", commits[name])
    raise RemoteAwayError(
        f"{remote.shown}: the repository has no branch or tag {remote.ref}: correct `ref` in conf/remote.yaml"
    )


class _Git:
    """Runs git commands for one repository. `folder` must be empty, so that git does not read the settings of another repository."""

    def __init__(self, remote: RemoteConfig, url: str, token: str, folder: Path) -> None:
        self._remote, self._folder = remote, folder
        login = base64.b64encode(f"{remote.user or 'git'}:{token}".encode()).decode()
        self._secrets = [each for each in (url, token, login) if each]
        self._environment = _environment(settings_of(url, login if token else ""))

    def run(self, *arguments: str) -> bytes:
        """Runs a git command and returns its output. If the command fails, raises RemoteAwayError with git's error message, without
        secrets.
        """
        try:
            process = subprocess.Popen(
                ["git", *arguments],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise RemoteAwayError(
                "the command git is not installed: install it, or set `kind: archive` and the URL of an archive in conf/remote.yaml"
            ) from None
        try:
            found, said = process.communicate(timeout=GIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise RemoteAwayError(
                f"{self._remote.shown} did not answer in {GIT_SECONDS_MAX:g} s: check the network and the server"
            ) from None
        finally:
            if process.returncode is None:
                end_group(process)
        if process.returncode:
            why = " ".join(said.decode(errors="replace").split())
            raise RemoteAwayError(
                f"{self._remote.shown} cannot be read: {without(why, self._secrets)[-REASON_CHARACTERS_MAX:]}"
            )
        return found


def settings_of(url: str, login: str) -> list[tuple[str, str]]:
    """Returns git's settings for one repository. Only the repository's own server may get the login. Redirects are switched off, because
    git would send the header with the login to the target of a redirect.
    """
    settings = [(f"remote.{ORIGIN}.url", url), ("http.followRedirects", "false")]
    if login:
        parts = urlsplit(url)
        server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
        settings.append((f"http.{server}.extraHeader", f"Authorization: Basic {login}"))
    return settings


def _environment(settings: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    found |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file:http:https:ssh", "LC_ALL": "C"}
    found.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    found["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (name, value) in enumerate(settings):
        found |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def without(text: str, secrets: Sequence[str]) -> str:
    """Replaces each secret and each URL in a text by ***. Replaces all URLs, because git may print the secret URL in another form."""
    text = URL.sub("***", text)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
