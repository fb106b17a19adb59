"""pandas in an engine's process: none, though it is installed and pyarrow looks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REHEARSE = """
import sys
from pathlib import Path
from cdc_engine.instance.without_pandas import leave_pandas_out
leave_pandas_out()
from cdc_engine.instance.rehearsal import rehearse
rows = rehearse(Path(sys.argv[1]))
print(rows > 0, "pandas" in sys.modules)
"""


def test_an_engine_stages_every_kind_of_column_without_pandas(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", REHEARSE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=250
    )
    assert ran.stdout.split() == ["True", "False"]
