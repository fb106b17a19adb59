"""Tests that the pictures of the documentation exist, are shown, and are small.

To create the pictures again, run `./sluice test tests/browser --pictures=docs/images`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
BYTES_MAX = 200_000


def test_each_picture_is_shown_and_small_and_each_that_is_shown_is_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    shown = {
        (page.parent / name).resolve() for page in pages for name in re.findall(r"\]\(([^)]+\.png)\)", page.read_text())
    }
    assert shown == set(IMAGES.glob("*.png"))
    assert {path.name: path.stat().st_size for path in shown if path.stat().st_size > BYTES_MAX} == {}
