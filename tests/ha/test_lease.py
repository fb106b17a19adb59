"""Tests the lease: it has one holder, which others can see. If the holder is killed, the next holder has a higher token."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import LeaseLostError
from sluice.cdc_engine.ha.file_lease import FileLease, read_holder

HOLDER = """
import sys
from pathlib import Path
from sluice.cdc_engine.ha.file_lease import FileLease
lease = FileLease(Path(sys.argv[1]))
print(lease.try_acquire(), lease.token, flush=True)
sys.stdin.read()
"""


@contextmanager
def holding_process(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """Starts a process that tries to take the lease, prints the result, and runs until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = FileLease(tmp_path), FileLease(tmp_path)
    assert first.try_acquire()
    assert first.try_acquire()
    assert not second.try_acquire()
    first.check()
    with pytest.raises(LeaseLostError, match=f"process {os.getpid()} on .* holds the lease"):
        second.check()
    first.release()
    with pytest.raises(LeaseLostError, match="no process holds the lease"):
        first.check()
    assert second.try_acquire()


def test_the_token_grows_with_each_acquisition(tmp_path: Path) -> None:
    tokens = []
    for _ in range(3):
        lease = FileLease(tmp_path)
        assert lease.try_acquire()
        assert lease.try_acquire()
        tokens.append(lease.token)
        lease.release()
    assert tokens == [1, 2, 3]


def test_an_unreadable_record_does_not_restore_an_old_token(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    lease.try_acquire()
    lease.release()
    (tmp_path / "lease.json").write_text("{")
    assert read_holder(tmp_path) is None
    assert lease.try_acquire()
    assert lease.token > 1_000_000


def test_the_holder_is_seen_without_disturbing_it(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    assert lease.holder() is None
    lease.try_acquire()
    holder = read_holder(tmp_path)
    assert holder is not None
    assert (holder.pid, holder.token, holder.held) == (os.getpid(), 1, True)
    lease.check()
    lease.release()
    holder = read_holder(tmp_path)
    assert holder is not None
    assert not holder.held


def test_a_removed_lock_file_ends_the_lease(tmp_path: Path) -> None:
    """Another process would lock the new file, so the old holder must notice the removal before it writes."""
    lease, other = FileLease(tmp_path), FileLease(tmp_path)
    lease.try_acquire()
    (tmp_path / "lease.lock").unlink()
    assert other.try_acquire()
    with pytest.raises(LeaseLostError):
        lease.check()
    assert not lease.try_acquire()


def test_a_killed_holder_is_stale_and_is_taken_over_from(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    with holding_process(tmp_path) as (process, said):
        assert said == b"True 1"
        assert not lease.try_acquire()
        holder = lease.holder()
        assert holder is not None
        assert (holder.pid, holder.held) == (process.pid, True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        stale = lease.holder()
        assert stale is not None
        assert (stale.pid, stale.held) == (process.pid, False)
        assert lease.try_acquire()
        assert lease.token == 2
    lease.release()


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    lease.try_acquire()
    with holding_process(tmp_path) as (_, said):
        assert said == b"False 0"
    lease.check()
    lease.release()


PARENT = """
import subprocess, sys
from pathlib import Path
from sluice.cdc_engine.ha.file_lease import FileLease
lease = FileLease(Path(sys.argv[1]))
lease.try_acquire()
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"], close_fds=False)
sys.stdin.read()
"""


def test_a_child_that_outlives_the_holder_does_not_keep_the_lease(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == b"up\n"  # The child prints this.
        assert not FileLease(tmp_path).try_acquire()
        parent.kill()
        parent.wait()
        lease = FileLease(tmp_path)
        assert lease.try_acquire()
        lease.release()
    finally:
        parent.kill()
        parent.communicate()  # This ends the child's input, and so the child.
