"""Checks, for `sluice check`, whether this host can use the object stores of the lake and of staged batches: looks for jars and environment
variables, and sends requests.
"""

from __future__ import annotations

import os
import uuid

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.locations import is_in_a_store
from sluice.console.toolchain.setup import lacking
from sluice.object_stores.errors import NO_BUCKET, StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.options import without_secrets
from sluice.orchestration.base.lake_settings import spark_stores, storage_options
from sluice.orchestration.base.ports import MergeFailedError

SOON = {"connect_timeout": "5s", "timeout": "10s", "retry_timeout": "10s", "max_retries": "1"}
NAMED = "AWS_ACCESS_KEY_ID"
TITLES = {"s3": "S3", "azure": "Azure", "google": "Google Cloud Storage"}


def store_findings(config: SluiceConfig, *, starts_spark: bool) -> tuple[list[str], list[str]]:
    """Returns the problems and the warnings about the object stores. `starts_spark` says whether `sluice up` starts Spark. If it does, the
    function also warns of jars that Spark lacks for the stores, and of a store in S3 without credentials in conf/ or in the environment.
    """
    problems: list[str] = []
    stores = spark_stores(config) if starts_spark else ()
    warnings = [*map(_jars, stores), _role(config) if "s3" in stores else ""]
    try:
        options = storage_options(config.storage_options)
    except MergeFailedError as error:
        problems.append(
            f"{error}; `sluice up` also reads the secrets in storage_options: provide them where you start `sluice up`"
        )
    else:
        lake = _answer(config.lake, options) if is_in_a_store(config.lake) else ""
        problems += [lake, _answer_of_staging(config, options)]
    return [each for each in problems if each], [each for each in warnings if each]


def _jars(store: str) -> str:
    missing = lacking([store])
    return (
        (
            f"Spark lacks {len(missing)} jars for {TITLES[store]} ({missing[0]}, …): fetch them with `sluice setup --with {store}`; "
            "otherwise the next start of Spark fetches them"
        )
        if missing
        else ""
    )


def _role(config: SluiceConfig) -> str:
    given = {
        name.upper() if name.upper().startswith("AWS_") else f"AWS_{name.upper()}" for name in config.storage_options
    }
    named = NAMED in given or NAMED in os.environ
    return (
        ""
        if named
        else (
            f"conf/ has no credentials for the store ({NAMED}): Sluice uses the role of this machine. If the machine has "
            "no role, set the credentials in storage_options"
        )
    )


def _answer_of_staging(config: SluiceConfig, options: dict[str, str]) -> str:
    """Returns why the engine cannot use the object store of staged batches. Returns "" if it can use the store, or if staged batches are
    not in a store. Writes, reads, lists and removes a small file, because the engine needs the permission for each of these operations.
    """
    if not is_in_a_store(config.staging):
        return ""
    name, act = "file", "opened"
    try:
        folder = StoreFolder(f"{config.staging}/_sluice_check/{uuid.uuid4().hex}", options)
        act = "written"
        folder.write(name, b"written and removed by sluice check")
        act = "read"
        folder.read(name)
        act = "listed"
        folder.sizes()
        act = "removed"
        folder.remove()
    except FileNotFoundError as error:
        return f"{_staging(config, act)}: {NO_BUCKET}: {without_secrets(str(error), options)}"
    except StoreError as error:
        return f"{_staging(config, act)}: {error}; see storage_options in sluice.yaml"
    return ""


def _staging(config: SluiceConfig, act: str) -> str:
    return f"staging {config.staging} cannot be {act}"


def _answer(lake: str, options: dict[str, str]) -> str:
    """Returns the error of the lake's object store, or "" if the store answers. A lake without tables is not an error."""
    import deltalake  # noqa: PLC0415  a second to import

    try:
        deltalake.DeltaTable.is_deltatable(f"{lake}/_sluice_check", storage_options={**options, **SOON})
    except Exception as error:  # Each store raises its own kinds of errors.
        return f"the lake {lake} cannot be read: {without_secrets(str(error), options)}; see storage_options in sluice.yaml"
    return ""
