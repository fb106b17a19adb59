"""Applies the translations of a user's code location to the assets of tables: to their keys, groups, owners, tags, kinds and other
attributes.

A translation is a user's function that changes an asset's spec. Definitions use the translated specs. Code that reports about a table uses
the translated key, so that events match the definitions. All code of a process uses the same translations: a run imports the user's
definitions before it reports anything. Without a translation, assets have their default keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum

import dagster as dg

from sluice.cdc_engine.errors import ConfigurationError, SluiceError


@dataclasses.dataclass(frozen=True)
class TranslatedTable:
    """The table of an asset, as a translation gets it."""

    destination: str
    database: str
    table: str

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


Translation = Callable[[dg.AssetSpec, TranslatedTable], dg.AssetSpec]


class Side(Enum):
    """Which of a table's two assets: LAKE is its Delta table, SOURCE is the external asset of the table in the source."""

    LAKE = "lake"
    SOURCE = "source"


@dataclasses.dataclass(frozen=True)
class Translations:
    """The functions with which a user's code location changes Sluice's assets: `lake` for assets of Delta tables, `source` for assets of
    source tables. If a function is None, the assets stay as they are.
    """

    lake: Translation | None = None
    source: Translation | None = None

    def of(self, side: Side) -> Translation | None:
        return self.lake if side is Side.LAKE else self.source


class _InUse:
    """The translations of this process, and a cache of the keys that they returned."""

    def __init__(self) -> None:
        self.translations = Translations()
        self.keys: dict[tuple[Side, TranslatedTable], dg.AssetKey] = {}


_in_use = _InUse()


def use_translations(translations: Translations) -> None:
    """Sets the translations of this process. Call this before the definitions are built."""
    _in_use.translations, _in_use.keys = translations, {}


def shown_key(side: Side, table: TranslatedTable, default: dg.AssetKey) -> dg.AssetKey:
    """Returns the key that the translation gives to a table's asset, or `default` if there is no translation. Raises ConfigurationError if
    the translation fails.
    """
    translation = _in_use.translations.of(side)
    if translation is None:
        return default
    if (side, table) not in _in_use.keys:
        _in_use.keys[side, table] = _translated(translation, side, table, dg.AssetSpec(default)).key
    return _in_use.keys[side, table]


def keep_default_key(side: Side, table: TranslatedTable, default: dg.AssetKey) -> None:
    """Makes `shown_key` return `default` for a table's asset. Called if another asset already has the translated key, because that asset
    would otherwise show the reports about the table.
    """
    _in_use.keys[side, table] = default


def shown_spec(side: Side, table: TranslatedTable, spec: dg.AssetSpec) -> dg.AssetSpec:
    """Returns the spec that the translation gives to an asset, or `spec` if there is no translation. `spec` has the default key. The
    translated key may depend only on the default key and the table's names, because a run knows no other attributes of a new table.

    Raises ConfigurationError if the translation fails, adds dependencies, or returns another key than `shown_key`.
    """
    translation = _in_use.translations.of(side)
    if translation is None:
        return spec
    found, key = _translated(translation, side, table, spec), shown_key(side, table, spec.key)
    if found.key != key:
        raise ConfigurationError(
            f"the translation of {table.name} of {table.destination} returns the key {found.key.to_user_string()} from all "
            f"attributes of the asset, and the key {key.to_user_string()} from its default key alone: compute the key only from the "
            "default key and the names of the table"
        )
    if found.deps:
        raise ConfigurationError(
            f"the translation of {table.name} of {table.destination} adds dependencies: remove the dependencies, "
            "because a table of Sluice depends only on its source table"
        )
    return found


def _translated(translation: Translation, side: Side, table: TranslatedTable, spec: dg.AssetSpec) -> dg.AssetSpec:
    try:
        return translation(spec, table)
    except SluiceError:
        raise
    except Exception as error:  # A user's function or template can raise any error.
        why = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"the translation of {table.name} of {table.destination} fails for the asset in the {side.value}: {why}; correct "
            "the translation"
        ) from error
