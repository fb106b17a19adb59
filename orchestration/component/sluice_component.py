"""Defines `SluiceComponent`, which adds Sluice's assets to the code location of a `dg` project."""

# There is no `from __future__ import annotations`, because Dagster and pydantic read annotations when the class is made.

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components.resolved.base import Resolvable
from dagster.components.resolved.model import Resolver
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest, scaffold_with
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver

from sluice.cdc_engine.errors import ConfigurationError
from sluice.orchestration.base.translation import TranslatedTable, Translations
from sluice.orchestration.component.conf_texts import folder_texts, inline_texts
from sluice.orchestration.component.location import location_definitions

TEMPLATE = """\
type: {type}
attributes:
  # Instead of `destinations` and `settings`, you can name a folder with sluice.yaml and destinations/:  conf: conf
  destinations:
    shop:
      source: {{host: db.example.com, user: sluice, password: $SLUICE_SHOP_PASSWORD}}
      include: shop\\..*
  settings: {{lake: ../lake}} # the content of sluice.yaml; paths are relative to .sluice/
  # translation:
  #   key: "raw/{{{{ data.database }}}}/{{{{ data.table }}}}"
  #   group_name: raw
  #   owners: ["team:data"]
"""


class SluiceScaffolder(Scaffolder[Any]):
    """Writes a defs.yaml with one inline destination when `dg scaffold` creates the component."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        request.target_path.mkdir(parents=True, exist_ok=True)
        text = TEMPLATE.format(type=request.type_name)
        (request.target_path / "defs.yaml").write_text(textwrap.dedent(text))


_TABLE_SCOPE = TranslationFnResolver[TranslatedTable](lambda table: {"data": table})


@scaffold_with(SluiceScaffolder)
@dataclass
class SluiceComponent(dg.Component, Resolvable):
    """Row changes of MySQL and MariaDB, merged into Delta tables: one asset for each table, upstream of your own assets.

    Sensors start the engine and Spark as processes of their own, hand out batches of changes and request the runs that merge them.
    """

    conf: Annotated[
        str | None,
        Resolver.default(description="The folder with sluice.yaml and destinations/, relative to the project's root."),
    ] = None
    destinations: Annotated[
        Mapping[str, Any],
        Resolver.default(description="Inline: destination → its settings, as in a file of conf/destinations."),
    ] = field(default_factory=dict)
    settings: Annotated[
        Mapping[str, Any],
        Resolver.default(description="Inline: the settings of sluice.yaml. Relative paths start in .sluice/."),
    ] = field(default_factory=dict)
    starts_engine: Annotated[
        bool,
        Resolver.default(description="Whether sensors start the engine and Spark if no engine answers."),
    ] = True
    translation: Annotated[TranslationFn[TranslatedTable] | None, _TABLE_SCOPE] = None
    source_translation: Annotated[TranslationFn[TranslatedTable] | None, _TABLE_SCOPE] = None

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        return dg.ComponentTypeSpec(
            description="MySQL and MariaDB tables in Delta Lake, kept up to date change by change.",
            tags=["cdc", "mysql", "mariadb", "delta"],
            produces=["asset", "asset_check", "job", "schedule", "sensor"],
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Returns the definitions. Raises ConfigurationError if the settings have errors."""
        root = Path(context.project_root)
        if bool(self.conf) == bool(self.destinations):
            raise ConfigurationError("SluiceComponent: set exactly one of `conf` and `destinations`")
        if self.conf and self.settings:
            raise ConfigurationError(
                "SluiceComponent: `settings` is only for inline `destinations`: with `conf`, write the settings to "
                "sluice.yaml in that folder"
            )
        files = folder_texts(root / self.conf) if self.conf else inline_texts(root, self.settings, self.destinations)
        translations = Translations(self.translation, self.source_translation)
        return location_definitions(files, translations, starts_engine=self.starts_engine)
