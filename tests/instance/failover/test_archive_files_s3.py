"""Tests binlog files in a folder and in an S3 server, packed in every way: which files are found, and that their bytes are unchanged."""

from __future__ import annotations

import gzip
import io
import tarfile
import uuid
from collections.abc import Mapping
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from benchmarks.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from sluice.cdc_engine.config_paths import archive_location
from sluice.cdc_engine.errors import PositionLostError, SourceConnectionError
from sluice.cdc_engine.source.archive import Archive

CONTENT = b"\xfebin" + bytes(range(256)) * 50


def packed(name: str, way: str) -> bytes:
    """Returns CONTENT in the form of the suffix `way`, such as `.tar.gz`. A tar file contains another file too, and has the binlog file
    `name` in a folder.
    """
    if way == "":
        return CONTENT
    if way == ".gz":
        return gzip.compress(CONTENT)
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w" if way == ".tar" else "w:gz") as file:
        for member, content in (("readme", b"no binlog"), (f"backup/{name}", CONTENT)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return written.getvalue()


FILES = {f"binlog.00000{number}": way for number, way in enumerate(("", ".gz", ".tar", ".tar.gz", ".tgz"))}


def uploaded(s3_store: S3Server, files: Mapping[str, bytes], region: str) -> str:
    """Uploads the files to a new prefix, and returns its URL. The URL has no credentials, because they are in the environment."""
    prefix = f"{s3_store.bucket}/{uuid.uuid4().hex[:12]}"
    location = f"s3://{prefix}?region={region}&scheme=http&endpoint_override=127.0.0.1:{s3_store.port}"
    store, root = pafs.FileSystem.from_uri(location)
    for name, content in files.items():
        with store.open_output_stream(f"{root}/{name}", compression=None) as file:
            file.write(content)
    return location


def require_all(archive: Archive) -> None:
    assert sorted(archive.files()) == sorted(FILES)
    for name in FILES:
        with archive.open(name) as stream:
            assert stream.read() == CONTENT, name


def test_failover_an_archive_in_a_folder_is_read_however_it_is_packed(tmp_path: Path) -> None:
    for name, way in FILES.items():
        (tmp_path / f"{name}{way}").write_bytes(packed(name, way))
    for other in ("binlog.index", "binlog.000009.part", "notes.txt"):
        (tmp_path / other).write_text("")
    archive = Archive(str(tmp_path))
    require_all(archive)
    (tmp_path / "binlog.000002.tar").write_bytes(packed("another.000001", ".tar"))
    with pytest.raises(PositionLostError, match=r"does not contain binlog\.000002"), archive.open("binlog.000002"):
        pass
    (tmp_path / "binlog.000001.gz").write_bytes(b"no gzip")
    with pytest.raises(SourceConnectionError, match="cannot be read"), archive.open("binlog.000001") as stream:
        stream.read()
    with pytest.raises(SourceConnectionError, match="cannot be read"):
        Archive(str(tmp_path / "gone")).files()


@pytest.mark.servers
def test_s3_an_archive_in_a_store_is_read_with_credentials_of_the_environment(
    s3_store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    # Otherwise the uploads would have checksums that the S3 server of the tests does not support.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    location = uploaded(s3_store, {f"{name}{way}": packed(name, way) for name, way in FILES.items()}, REGION)
    require_all(Archive(archive_location(location, None)))
    with pytest.raises(ValueError, match="must not contain credentials"):
        archive_location(f"s3://{ACCESS_KEY}:{SECRET_KEY}@{s3_store.bucket}/prefix", None)
