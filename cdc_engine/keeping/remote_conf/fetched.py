"""Reads sluice.yaml and destinations/ from a fetched archive (tar or zip). Pure."""

from __future__ import annotations

import dataclasses
import io
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import PurePosixPath

from sluice.cdc_engine.config.conf_files import MAIN, UNREADABLE
from sluice.cdc_engine.errors import ConfigurationError

TEXT_BYTES_MAX = 16 << 20  # An archive whose YAML files have more bytes together is refused.
ARCHIVE_BYTES_MAX = 64 << 20
TAR_END_BYTES = 2 * tarfile.BLOCKSIZE
UNIX_MODE_SHIFT = 16  # The upper half of a zip entry's `external_attr` is the file's mode, as `zip` on Unix writes it.
LINK = f"{UNREADABLE}the path is a link: write a file instead".encode()
_DESTINATION = re.compile(r"destinations/([^/]+)\.yaml")


class RemoteAwayError(Exception):
    """Raised if the git repository or archive with conf/ cannot be read now. The message contains no secret."""


@dataclasses.dataclass(frozen=True)
class Fetched:
    """A fetched revision of conf/. `archive` is the content of a tar or zip file. It is empty if the caller has this revision already.
    `etag` is the ETag of a downloaded archive. It is empty for git.
    """

    revision: str
    archive: bytes
    etag: str = ""


def texts_of(archive: bytes, folder: str) -> tuple[str, dict[str, str]]:
    """Returns the text of sluice.yaml, and the text of each destination's file by the destination's name. The text of sluice.yaml is empty
    if the archive does not have this file. Raises ConfigurationError if the archive is damaged, or has no destination's file at all.

    A git server puts all files of an archive into a single top folder. So if the archive has no files in `folder`, looks for `folder` in
    the single top folder.
    """
    try:
        files = dict(_files(archive))
    except ConfigurationError:
        raise
    # Catches all errors, because tarfile and zipfile raise errors of several libraries for a damaged file.
    except Exception as error:
        raise ConfigurationError(
            f"the archive is not a readable tar or zip file ({type(error).__name__}), or its YAML files have more than "
            f"{TEXT_BYTES_MAX >> 20} MiB: correct the archive or conf/remote.yaml"
        ) from None
    found = _below(files, folder)
    tops = {name.partition("/")[0] for name in files}
    if not found and len(tops) == 1:
        found = _below(files, "/".join(filter(None, [*tops, folder])))
    destinations = {match[1]: text for name, text in found.items() if (match := _DESTINATION.fullmatch(name))}
    if not destinations:
        where = f"folder {folder}" if folder else "top folder"
        raise ConfigurationError(
            f"the revision has no destinations/NAME.yaml in its {where}: correct `folder` in conf/remote.yaml"
        )
    return found.get(MAIN, ""), destinations


def _below(files: dict[str, str], folder: str) -> dict[str, str]:
    """Returns the texts of sluice.yaml and of the destinations' files in `folder`, by their path below `folder`."""
    prefix = f"{folder}/" if folder else ""
    own = {name.removeprefix(prefix): text for name, text in files.items() if name.startswith(prefix)}
    return {name: text for name, text in own.items() if name == MAIN or _DESTINATION.fullmatch(name)}


def _files(archive: bytes) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each YAML file of an archive. For a link, yields an error instead of a text. The error is
    reported when conf/ is parsed.

    Raises ValueError if the files are too large, ConfigurationError for an incomplete tar file, and any error of tarfile or zipfile for a
    damaged file.
    """
    left = TEXT_BYTES_MAX
    if zipfile.is_zipfile(io.BytesIO(archive)):
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            for each in packed.infolist():
                if not each.filename.endswith(".yaml"):
                    continue
                if stat.S_ISLNK(each.external_attr >> UNIX_MODE_SHIFT):
                    yield _named(each.filename, LINK)
                else:
                    left = _left(left, each.file_size)
                    yield _named(each.filename, packed.read(each))
        return
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            if member.isdir() or not member.name.endswith(".yaml"):
                continue
            file = opened.extractfile(member) if member.isfile() else None
            # Reports a link as an error. If the link were skipped, its destination would seem to be removed, and the destination's engine
            # would stop.
            if file is None:
                yield _named(member.name, LINK)
                continue
            left = _left(left, member.size)
            yield _named(member.name, file.read())
        _require_end(opened)


def _require_end(opened: tarfile.TarFile) -> None:
    """Raises ConfigurationError if the two zero blocks at the end of a tar file are missing, because the file is then incomplete.
    tarfile does not check this.
    """
    if opened.fileobj is not None:
        opened.fileobj.seek(opened.offset)
    if opened.fileobj is None or opened.fileobj.read(TAR_END_BYTES) != bytes(TAR_END_BYTES):
        raise ConfigurationError(
            "the tar file is incomplete: its end marker is missing. Write the file under another name, and rename it when it is complete, "
            "so that no incomplete file is read"
        )


def _left(left: int, size: int) -> int:
    if size > left:
        raise ValueError("too large")
    return left - size


def _named(name: str, content: bytes) -> tuple[str, str]:
    return str(PurePosixPath(name)), content.decode("utf-8", "surrogateescape")
