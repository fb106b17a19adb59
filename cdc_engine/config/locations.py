"""Types of paths and URLs in conf/. Relative ones are relative to the folder that holds conf/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from sluice.cdc_engine import config_paths
from sluice.cdc_engine.source.settings import SecretText, root_of

TableLocation = Annotated[str, AfterValidator(lambda word, info: config_paths.table_location(word, root_of(info)))]
TablePath = Annotated[str, AfterValidator(lambda word, info: word and config_paths.table_location(word, root_of(info)))]
ArchiveLocation = Annotated[str, AfterValidator(lambda word, info: config_paths.archive_location(word, root_of(info)))]
StorageOptions = Annotated[dict[str, SecretText], AfterValidator(config_paths.storage_options)]
PathTemplate = Annotated[str, AfterValidator(config_paths.path_template)]
DatabaseUrl = Annotated[str, AfterValidator(lambda url, info: config_paths.database_url(url, root_of(info)))]


def is_in_a_store(location: str) -> bool:
    """Returns whether a parsed location is a prefix of an object store."""
    return config_paths.URI.match(location) is not None


def folds_case(location: str) -> bool:
    """Returns whether a folder is on a file system that takes names in other capitals for the same name. Object stores do not."""
    if is_in_a_store(location):
        return False
    place = next(
        (each for each in (Path(location), *Path(location).parents) if each.exists() and _has_case(each)), None
    )
    try:
        return place is not None and place.samefile(place.with_name(place.name.swapcase()))
    except OSError:
        return False


def _has_case(place: Path) -> bool:
    return place.name.swapcase() != place.name
