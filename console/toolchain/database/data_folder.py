"""Creates the data directories of private servers. For each server version and set of options, one empty data directory is created and
stored next to the unpacked server. Every data directory that a server gets is a copy of the stored one.

The copies save time: MySQL needs at least five seconds to create a data directory, copying one takes less than a second, and a run of the
tests starts about thirty servers. When `database_packages` unpacks another revision of a server, it deletes the directory of the old
revision together with the data directories that are stored there.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from sluice.console.toolchain.cache import locked, open_cache
from sluice.console.toolchain.database.options import Options, merged_options
from sluice.console.toolchain.database_packages import ServerHome
from sluice.console.toolchain.errors import ServerError

# Options that a server uses when it creates a data directory. A server cannot change these options later, or only by slowly converting its
# files. All other options are passed at each start.
AT_BIRTH = {
    "character_set_server",
    "collation_server",
    "innodb_data_file_path",
    "innodb_log_file_size",
    "innodb_page_size",
    "innodb_redo_log_capacity",
    "innodb_undo_tablespaces",
    "lower_case_table_names",
}
# The file in a data directory that contains MySQL's server_uuid. The stored data directory does not contain this file, so each server
# creates its own server_uuid.
IDENTITY = "auto.cnf"

Make = Callable[[Path, Mapping[str, str | int]], None]


def provide_data_folder(home: ServerHome, changes: Options, folder: Path, make: Make) -> None:
    """Creates an empty data directory at `folder`, which must not exist. `changes` are options that override the defaults of
    `merged_options`. `make` creates a data directory at a path, with options.

    The data directory is a copy of the stored one, which is created first if it is missing. If the stored one cannot be created or copied,
    for example because the cache is full or not writable, `make` creates the data directory at `folder`, and nothing is stored.
    """
    options = _options(home.version, changes)
    digest = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()
    kept = home.folder / "empty-data" / digest[:16]
    with contextlib.suppress(OSError, ServerError):
        if not kept.exists():
            _keep(kept, options, make)
        shutil.copytree(kept, folder)
        return
    shutil.rmtree(folder, ignore_errors=True)
    make(folder, options)


def _options(version: str, changes: Options) -> dict[str, str | int]:
    """Returns the options with which a data directory is created: the defaults of the version, overridden by the `changes` whose names are
    in AT_BIRTH. `log_bin` and the options of GTIDs are left out, because the server creates the binlog only at its first start.
    """
    born = merged_options(version, {key: value for key, value in changes.items() if key in AT_BIRTH})
    return {key: value for key, value in born.items() if "gtid" not in key and key != "log_bin"}


def _keep(kept: Path, options: Mapping[str, str | int], make: Make) -> None:
    """Creates the data directory `kept`, of which servers get copies, unless another process has already created it. The directory gets
    this path only when it is complete.
    """
    with locked(open_cache()):
        if kept.exists():
            return
        making = kept.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.parent.mkdir(exist_ok=True)
        make(making, options)
        (making / IDENTITY).unlink(missing_ok=True)
        making.rename(kept)
