"""Builds Sluice's definitions for a user's code location. `SluiceComponent` and `sluice.build_definitions` call this module. Building the
definitions starts neither engines nor Spark.

A run builds its definitions later than the code server that requests the run, and must find the same tables and steps. Therefore the code
server writes the texts of conf/ and the lists of tables to files, and its runs read those files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from sluice.cdc_engine.config.conf_files import file_of
from sluice.cdc_engine.config.reading import conf_dir as usual_conf_dir
from sluice.cdc_engine.config.reading import config_of
from sluice.cdc_engine.errors import ConfigurationError, MetaError, SluiceError
from sluice.cdc_engine.keeping.in_use import VARIABLE, InUse, keep, kept_file, read_kept
from sluice.cdc_engine.table_meta.table_list.reading import digest_of_list
from sluice.orchestration.base.table_catalog import current_tables
from sluice.orchestration.base.translation import Translation, Translations, use_translations
from sluice.orchestration.code_location import definitions_of
from sluice.orchestration.component.conf_texts import folder_texts
from sluice.orchestration.component.engine_process import StartingHost
from sluice.orchestration.real_ports import real_ports

if TYPE_CHECKING:
    from sluice.cdc_engine.config import SluiceConfig
    from sluice.cdc_engine.config.conf_files import ConfFiles

log = logging.getLogger(__name__)

ROLE = "component"
# This many of the newest files with the texts of conf/ and the lists of tables are kept. Each change of conf/ or of the tables writes a new
# file.
KEPT_MAX = 20


class _Process:
    """Records which conf/ folder this process uses, and which file the process wrote for its runs."""

    def __init__(self) -> None:
        self.directory: Path | None = None
        self.wrote = ""


_here = _Process()


def build_definitions(
    conf_dir: str | Path | None = None,
    *,
    translation: Translation | None = None,
    source_translation: Translation | None = None,
    starts_engine: bool = True,
) -> dg.Definitions:
    """Returns Sluice's definitions for your own code location. Add them to yours with `Definitions.merge`.

    - `conf_dir` is the folder with sluice.yaml. The default is SLUICE_CONF, or conf/ in the working folder.
    - `translation` changes the asset of a Delta table: the function gets the `AssetSpec` and a `TranslatedTable`, and returns an
    `AssetSpec`.
    - `source_translation` does the same for the asset of a table in the source.
    - `starts_engine` lets the sensors start the engines and Spark if no process answers.

    Raises ConfigurationError if the settings have errors.
    """
    files = folder_texts(usual_conf_dir() if conf_dir is None else Path(conf_dir))
    return location_definitions(files, Translations(translation, source_translation), starts_engine=starts_engine)


def location_definitions(files: ConfFiles, translations: Translations, *, starts_engine: bool) -> dg.Definitions:
    """Returns the definitions for the given texts of conf/. Raises ConfigurationError if this process already uses another conf/ folder."""
    if _here.directory not in {None, files.directory}:
        raise ConfigurationError(
            f"this code location has Sluice's settings in {_here.directory} already, so those in {files.directory} are refused: put all "
            "destinations into one component, or into one conf/"
        )
    _here.directory = files.directory
    in_use = _in_use(files)
    use_translations(translations)
    config, shown = in_use.config, in_use.files

    @functools.cache
    def host() -> StartingHost:
        from sluice.orchestration.rpc.remote_host import RemoteHost  # noqa: PLC0415  needed by ticks only

        return StartingHost(RemoteHost(config), config, shown, starts=starts_engine)

    digests = {name: _digest_of_tables(config, name) for name in config.destinations}

    def troubles(destination: str) -> tuple[str, ...]:
        return (*host().conf_troubles(destination), *_new_tables(config, destination, digests[destination]))

    changed = functools.partial(_changed, config.data_dir, shown, _newest_texts(config.data_dir) or shown)
    return definitions_of(config, real_ports(shown, host, troubles, lambda: host().remote, changed))


def _changed(data_dir: Path, begun: ConfFiles, newest_then: ConfFiles, destination: str) -> str:
    """Returns why a run that began with the texts `begun` must end: since then, a code server has written other settings of the
    destination. Otherwise returns "". `newest_then` are the texts that were the newest when the run began. They can be newer than `begun`,
    for example if `dg check` read settings that the code location has not loaded yet. These settings do not end the run.
    """
    now = _newest_texts(data_dir)
    if now is None or now.digest(destination) in {each.digest(destination) for each in (begun, newest_then)}:
        return ""
    return f"{file_of(destination)} in conf/ has changed"


def _newest_texts(data_dir: Path) -> ConfFiles | None:
    """Returns the texts of conf/ that a process of the code location wrote last, or None if there are none."""
    try:
        newest = max(_written(data_dir), key=lambda each: each.stat().st_mtime_ns, default=None)
    except OSError:  # Another process has just removed an old file.
        return None
    kept = read_kept(newest) if newest is not None else None
    return kept[0] if kept is not None else None


def _written(data_dir: Path) -> list[Path]:
    return list(kept_file(data_dir, ROLE).parent.glob(f"{ROLE}-*.json"))


def _in_use(files: ConfFiles) -> InUse:
    """Returns the configuration in use. A run reads the file that its code server wrote. A code server uses `files`, and writes them for
    its runs.
    """
    written = os.environ.get(VARIABLE, "")
    kept = read_kept(Path(written)) if written and written != _here.wrote else None
    if kept is not None and kept[0].directory == files.directory:
        return InUse(config_of(kept[0]), *kept)
    in_use = InUse(config_of(files), files)
    _discover(in_use.config)
    try:
        _write_down(in_use)
    except OSError as error:  # For example, `dg check` may run on a read-only file system.
        log.warning(
            "the settings for runs cannot be written to %s: %s; runs read conf/ instead. Make the folder writable if this process starts "
            "runs",
            in_use.config.data_dir,
            error,
        )
    return in_use


def _write_down(in_use: InUse) -> None:
    """Writes the texts of conf/ to a file and the lists of tables to a folder, for the runs of this process. Their names have a digest of
    the content. Raises OSError if they cannot be written, and MetaError if a list cannot be read.
    """
    config, digest = in_use.config, hashlib.sha256(repr(in_use.files).encode(errors="surrogateescape"))
    for name in sorted(config.destinations):
        digest.update(_digest_of_tables(config, name).encode())
    path = kept_file(config.data_dir, f"{ROLE}-{digest.hexdigest()[:16]}")
    keep(path, in_use)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = _here.wrote = str(path)
    try:
        with current_tables():
            pass
    except (OSError, MetaError):
        os.environ.pop(VARIABLE) if before is None else os.environ.update({VARIABLE: before})
        raise
    written = sorted(_written(config.data_dir), key=lambda each: each.stat().st_mtime_ns, reverse=True)
    for old in written[KEPT_MAX:]:
        old.unlink(missing_ok=True)
        shutil.rmtree(old.with_suffix(".tables"), ignore_errors=True)


def _discover(config: SluiceConfig) -> None:
    """Reads the tables of each source whose list of tables is empty, so that these tables have assets at the first start. If a source
    does not answer, the engine lists its tables later.
    """
    unknown = [name for name in config.destinations if not _digest_of_tables(config, name)]
    for name in unknown:
        from sluice.cdc_engine.instance.discovery import discover  # noqa: PLC0415  imports the engine

        try:
            discover(config, name)
        except (SluiceError, OSError) as error:
            log.warning(
                "%s: the tables of the source could not be listed: %s; the tables get assets when the engine has listed them and the code "
                "location is reloaded",
                name,
                error,
            )


def _digest_of_tables(config: SluiceConfig, destination: str) -> str:
    with contextlib.suppress(SluiceError):
        return digest_of_list(config.destination_dir(destination))
    return ""


def _new_tables(config: SluiceConfig, destination: str, digest: str) -> tuple[str, ...]:
    """Returns a sentence if the engine's current tables differ from those in the definitions. Returns nothing if they are the same, or if
    the engine's tables are unknown.
    """
    if _digest_of_tables(config, destination) in {digest, ""}:
        return ()
    loaded = f"the tables of {destination} have changed since this code location was loaded"
    return (
        f'{loaded}; runs merge the changed tables nevertheless, and "Reload" of the code location updates their assets',
    )
