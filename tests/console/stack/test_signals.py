"""Tests when Ctrl-C and SIGTERM that arrive in a block of `held_back` have their effect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.console.stack.signals import heard, held_back


def receive_one(reached: list[str], error: Exception | None = None) -> None:
    """Receives SIGTERM in a block of `held_back`, which then may raise an error."""
    with heard():
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")
            if error is not None:
                raise error
        reached.append("the code after the block")


@pytest.mark.found
@pytest.mark.parametrize("error", [None, OSError("the port is taken")])
def test_a_signal_has_its_effect_when_the_block_ends(error: Exception | None) -> None:
    """Defect 95: if a part of `sluice up --foreground` failed to start while SIGTERM arrived, the signal was lost, and the part was started
    again.
    """
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        receive_one(reached, error)
    assert reached == ["the end of the block"]


@pytest.mark.found
def test_a_command_that_sigterm_ends_removes_its_folders(tmp_path: Path) -> None:
    """Defect 1159: SIGTERM, for example of a job with a time limit, left the temporary folders of `equal` and `backfill --plan` behind."""
    code = """if True:
        import signal, tempfile, threading
        from sluice.cdc_engine.keeping import in_use
        from sluice.console.main import main

        threading.Thread(target=threading.Event().wait).start()

        def working(*_):
            with tempfile.TemporaryDirectory(dir="."):
                signal.raise_signal(signal.SIGTERM)

        in_use.as_kept = working
        main()
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", code, "status"], cwd=tmp_path, env=environment, check=False, timeout=60
    )
    assert ended.returncode == -signal.SIGTERM, "the other thread does not delay the end"
    assert not list(tmp_path.iterdir())
