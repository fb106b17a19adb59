"""Tests that the walks of CONTRIBUTING are true: the change in each walk makes its test pass, and without the change the test fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALKS = (ROOT / "CONTRIBUTING.md").read_text().split("\n### ")[1:]
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Applies the change to its module, then runs each test of the walk's second block. This happens in a separate process, because the change
# may break the module.
RUN = """
import importlib, sys
module, change, tests = sys.argv[1:]
namespace = vars(importlib.import_module(module))
exec(compile(change, module, "exec"), namespace)
written = {}
exec(compile(tests, "tests", "exec"), written)
found = [test for name, test in written.items() if name.startswith("test_")]
assert found
for test in found:
    test()
"""


def passes(module: str, change: str, tests: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, module, change, tests], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.partition("\n")[0])
def test_a_walk_is_true(walk: str) -> None:
    (file, change), (test_file, tests) = BLOCK.findall(walk)
    assert (ROOT / file).exists()
    assert (ROOT / test_file).exists()
    module = "sluice." + file.removesuffix(".py").replace("/", ".")
    done = passes(module, change, tests)
    assert done.returncode == 0, done.stderr
    assert passes(module, "", tests).returncode != 0, "its test must fail without the change"
