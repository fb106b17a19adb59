"""Provides the browser, and the stack whose pages it shows, as fixtures. If a test fails, takes a screenshot of its page."""

from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Error, Page

from tests.browser.fix_shop_browser import PICTURES_OPTION, browser, page, pictures, shop

__all__ = ["browser", "page", "pictures", "shop"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        PICTURES_OPTION,
        type=Path,
        metavar="FOLDER",
        help="keep the pictures that docs/ shows, in docs/images for example",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Saves a screenshot and the page's text when a test fails."""
    report = yield
    seen = getattr(item, "funcargs", {}).get("page")
    if report.failed and isinstance(seen, Page):
        picture = item.funcargs["tmp_path_factory"].getbasetemp() / f"{item.name}.png"  # type: ignore[attr-defined]
        try:
            text = seen.inner_text("body")
            seen.screenshot(path=picture)
        except Error as error:
            text = str(error)
        report.sections.append((f"the page {seen.url}, kept as {picture}", text))
    return report
