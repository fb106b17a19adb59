"""Google Cloud Storage without a server: accounts that cannot be read."""

from __future__ import annotations

import pytest

from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder


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
