"""Tests Google Cloud Storage without a server: accounts that cannot be read, and its file system on a store in memory."""

from __future__ import annotations

import pyarrow.fs as pafs
import pytest
from obstore.store import MemoryStore

from sluice.object_stores import folder
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.google_files import GoogleHandler


@pytest.mark.parametrize(
    "options",
    [
        {"google_service_account": "/no/such/account.json"},
        {"google_application_credentials": "/no/such/account.json"},
        {"google_service_account_key": "the content of another file"},
    ],
)
def test_google_an_account_that_cannot_be_read_is_an_error_of_the_store(options: dict[str, str]) -> None:
    with pytest.raises(StoreError, match=r"^gs://lake/shop: .*account file") as told:
        StoreFolder("gs://lake/shop", options)
    assert "another file" not in str(told.value)
    assert "Debug source" not in str(told.value)


class NoCopies(GoogleHandler):
    """A store that cannot copy files."""

    def copy_file(self, src: str, dest: str) -> None:
        raise OSError(f"{src} is larger than a copy to {dest} may be")


def test_a_file_that_the_store_cannot_copy_in_one_request_is_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    files = pafs.PyFileSystem(NoCopies(MemoryStore()))
    monkeypatch.setattr(folder, "file_system", lambda url, _: (files, url.partition("://")[2]))
    monkeypatch.setattr(folder, "COPIED_BYTES_MAX", 3)
    staged, table = StoreFolder("gs://lake/staged", {}), StoreFolder("gs://lake/shop", {})
    staged.write("000001.parquet", b"rows")
    table.copy_file(staged, "000001.parquet", "copied.parquet", 4)
    assert table.read("copied.parquet") == b"rows"
    with pytest.raises(StoreError, match="larger than a copy"):
        table.copy_file(staged, "000001.parquet", "again.parquet", 3)
