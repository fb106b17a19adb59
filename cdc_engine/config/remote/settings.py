"""Defines the settings of conf/remote.yaml, which name the repository or archive from which conf/ is pulled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from sluice.cdc_engine.source.settings import LOOPBACK, LocalPath, OnlyWith, SecretReference, SecretText, Strict
from sluice.secret_values import is_reference

REMOTE = "remote.yaml"
RECORD = "remote-conf.json"
SCHEMES = {"git": ("https", "ssh", "file"), "archive": ("https", "file")}
SECRET_QUERY = re.compile(r"token|secret|password|sig|key|credential", re.IGNORECASE)


class RemoteConfig(Strict):
    """The git repository or archive from which sluice.yaml and destinations/ are pulled. Relative paths in these files start in the folder
    that contains the local conf/.
    """

    removed: ClassVar[Mapping[str, str]] = {
        "poll_seconds": "Sluice looks for a newer revision once a minute; `sluice conf pull` looks at once"
    }
    only_with: ClassVar[OnlyWith] = {"ref": ("kind", ("git",)), "user": ("token", ())}

    kind: Literal["git", "archive"] = Field(
        description="`git`: a git repository. `archive`: a tar file (also compressed) or a zip file."
    )
    url: SecretText = Field(
        min_length=1,
        description=(
            "URL of the repository or archive: `https://…`, `file:///…`, and for git also `ssh://…`. If the URL has a "
            "secret, write `$NAME`."
        ),
    )
    ref: str = Field(
        "HEAD", pattern=r"^\w[\w./-]*$", description="For git: branch or tag. `HEAD`: the repository's default branch."
    )
    folder: str = Field(
        "",
        description="Folder of the repository or archive that has sluice.yaml and destinations/. Empty: the top folder.",
    )
    user: str = Field(
        "",
        description=(
            "User name that is sent with the token. Empty: for git, the user name `git`; for an archive, the token is "
            "sent without a user name, as a bearer token."
        ),
    )
    token: SecretReference = Field(
        "", description="Token or password for a URL with https, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`."
    )
    data_dir: LocalPath = Field(
        Path("data"),
        description=(
            "Folder in which Sluice keeps the last valid revision. Set the same folder as `data_dir` of sluice.yaml."
        ),
    )

    @property
    def record_file(self) -> Path:
        """The file with the record of the pulled conf/."""
        return self.data_dir / RECORD

    @property
    def shown(self) -> str:
        """The name of the repository or archive in messages: the URL without login and query, and then `ref` (for git) and `folder`. If
        conf/remote.yaml has a reference, such as `$NAME`, instead of the URL, the name consists of the kind and the reference.
        """
        if is_reference(self.url):
            return f"the {self.kind} at {self.url}"
        parts = urlsplit(self.url)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
        ref = f" {self.ref}" if self.kind == "git" else ""
        return f"{parts.scheme}://{host}{parts.path}{ref}{f' {self.folder}' if self.folder else ''}"

    @property
    def identity(self) -> str:
        """A text without secrets that identifies the repository or archive, so that a change of remote.yaml is noticed."""
        return f"{self.kind} {self.shown} {self.ref} {self.folder}"

    @field_validator("folder")
    @classmethod
    def _within(cls, folder: str) -> str:
        plain = folder.strip("/")
        if plain and any(part in {"", ".", ".."} or part.startswith("-") for part in plain.split("/")):
            raise ValueError("write a folder below the top folder of the repository or archive, such as prod/conf")
        return plain

    @model_validator(mode="after")
    def _no_secret(self) -> RemoteConfig:
        if not is_reference(self.url) and (problem := url_problem(self.kind, self.url)):
            raise ValueError(problem)
        return self


def url_problem(kind: str, url: str, *, secret: bool = False) -> str:
    """Returns why a URL cannot be used, or "" if it can be used. The message contains no part of the URL. `secret` says whether the URL may
    contain a password or a token.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "url is not a URL"
    local = parts.scheme == "http" and parts.hostname in LOOPBACK
    if parts.scheme not in SCHEMES[kind] and not local:
        return f"url must begin with one of {', '.join(f'{each}://' for each in SCHEMES[kind])}"
    # A password with / ? or # is cut there, and `shown` would show its parts as the port and the path. A `file://` URL has no password. An
    # `ssh://` URL whose user ends before the host has none either, so its path may contain @.
    is_plain = parts.scheme == "file" or (parts.scheme == "ssh" and parts.username is not None)
    if not secret and not is_plain and "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return "url has @ after the host: set `user` and `token` instead of a login in the URL, and write @ in a path or query as %40"
    if not secret and (parts.password or SECRET_QUERY.search(parts.query)):
        return "url has a password or a token: set `token`, or write the URL as $NAME, {file: …} or {command: […]}"
    return ""
