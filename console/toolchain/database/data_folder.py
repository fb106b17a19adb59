"""Data folders of private servers: made once, kept beside the unpacked server, and copied from there. `server` calls it.

MySQL takes five seconds and more to make one, a copy takes a part of one; a run of the tests starts some thirty servers. A kept folder
goes with the server's own folder when another revision is unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from console.toolchain.cache import locked, open_cache
from console.toolchain.database.options import Options, merged_options
from console.toolchain.database.unpack import ServerHome
from console.toolchain.errors import ServerError

# What is fixed, or costs the server a conversion, once its data folder is there. All else is the start's.
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
IDENTITY = "auto.cnf"  # MySQL's server_uuid: each server makes its own

Make = Callable[[Path, Mapping[str, str | int]], None]


def provide_data_folder(home: ServerHome, changes: Options, folder: Path, make: Make) -> None:
    """Leaves an empty data folder at `folder`, where nothing is yet. `changes`: a server's own options. `make` initialises one at a path.

    A cache that cannot be written to, or has no room, is no reason to fail: the folder is then made where it is wanted.
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
    """Those of the version, with the changes that count at birth; none of the binlog, which begins with the first start."""
    born = merged_options(version, {key: value for key, value in changes.items() if key in AT_BIRTH})
    return {key: value for key, value in born.items() if "gtid" not in key and key != "log_bin"}


def _keep(kept: Path, options: Mapping[str, str | int], make: Make) -> None:
    """Makes the folder to keep. It gets its name when it is whole, and only one of several that start at once makes it."""
    with locked(open_cache()):
        if kept.exists():
            return
        making = kept.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.parent.mkdir(exist_ok=True)
        make(making, options)
        (making / IDENTITY).unlink(missing_ok=True)
        making.rename(kept)
