"""Tests what a person sees and clicks in Dagster's pages: ticks, a batch's run, a table, its checks, a backfill from the launchpad, and
"Materialize". The tests follow each other on one stack, and take the pictures that docs/ shows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.fix_shop_browser import PAGE_SECONDS_MAX, RUN_SECONDS_MAX, ShopStack
from tests.waiting import wait_for

LOCATION = "/locations/__repository__@sluice"
TABLES = ("customers", "orders")
RUN_MS_MAX = RUN_SECONDS_MAX * 1000
DESCRIBED = "{ assetNodes { assetKey { path } description } }"
PAINTED = """canvas => {
  const dots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
  return new Set(new Uint32Array(dots.buffer)).size
}"""
COUNTED = """{ assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { status } } } } } }"""
COLOURS_MIN = 10  # An empty canvas has one colour. A line with its axes has many shades.
Keep = Callable[[str], None]
# The first test may have to download the browser.
pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.browser, pytest.mark.timeout(600)]


def button(page: Page, begins: str) -> Locator:
    """Finds a button by its text, because the name of an icon precedes the text in the accessible name."""
    return page.get_by_role("button").filter(has_text=re.compile(f"^{begins}"))


def said(page: Page, text: str) -> Locator:
    """Returns the first element with exactly this text."""
    return page.get_by_text(text, exact=True).first


def wait_for_success(page: Page) -> None:
    """Waits, on the page of a run, until the run has ended with success."""
    expect(page.get_by_text(re.compile("^(Success|Failure|Canceled)$")).first).to_be_visible(timeout=RUN_MS_MAX)
    expect(said(page, "Success")).to_be_visible()
    expect(page.get_by_text("STEP_FAILURE")).to_have_count(0)


def write(page: Page, config: str) -> None:
    """Replaces the config in the launchpad."""
    expect(said(page, "No errors")).to_be_visible()
    page.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(config)
    expect(said(page, "No errors")).to_be_visible()


def launch(page: Page) -> None:
    """Starts the run from the launchpad, and waits until it has ended well."""
    button(page, "Launch Run").click()
    page.wait_for_url("**/runs/*")
    wait_for_success(page)


def execute_all_checks(page: Page, table: str) -> None:
    """Executes the checks of a table, in the lake and in the source, and waits until all of them have passed."""
    for asset in (f"shop/{table}", f"Source/shop/{table}"):
        page.goto(f"/assets/{asset}?view=checks")
        button(page, "Execute all").click()
        expect(page.get_by_text("Succeeded", exact=True)).to_have_count(1, timeout=RUN_MS_MAX)


def test_the_page_of_the_sensor_shows_ticks_and_no_error(page: Page, shop: ShopStack) -> None:
    page.goto(f"{LOCATION}/sensors/shop_engine")
    expect(page.get_by_text("Runs the engine of shop: ")).to_be_visible()
    expect(said(page, "merge_shop_job")).to_be_visible()
    ticks = page.get_by_text(re.compile(r"^\d+ runs? requested$"))
    expect(ticks.nth(2)).to_be_visible()
    expect(page.get_by_text(re.compile("^(Failed|Failure|Error)$"))).to_have_count(0)


def test_the_run_of_a_batch_succeeded_and_says_what_it_did(page: Page, shop: ShopStack) -> None:
    page.goto(f"{LOCATION}/jobs/merge_shop_job/runs")
    page.locator("a[href^='/runs/']").first.click()
    wait_for_success(page)
    expect(said(page, "merge_shop")).to_be_visible()
    page.get_by_placeholder("Filter…").fill("type:ASSET_MATERIALIZATION")
    for reported in ("rows_inserted", "start_position", "end_gtid_set"):
        expect(said(page, reported)).to_be_visible()


def test_the_page_of_a_table_says_where_its_rows_come_from(page: Page, shop: ShopStack, pictures: Keep) -> None:
    page.goto("/assets/shop/orders?view=overview")
    for reported in ("orders@example.com", "sales", "Delta Lake", "merge_shop_job", "bigint unsigned", "decimal(14,2)"):
        expect(said(page, reported)).to_be_visible()
    expect(said(page, "Row count").locator("xpath=..")).to_contain_text(str(shop.orders))
    expect(said(page, "Storage").locator("xpath=..")).to_contain_text(re.compile(r"\d"))
    for described in ("what was bought", "what became of it (enum('new','paid','sent'))"):
        expect(page.get_by_text(described).first).to_be_visible()
    expect(page.get_by_text("Never materialized")).to_have_count(0)
    pictures("table")
    page.goto("/assets/shop/orders?view=events")
    for reported in (
        "rows_inserted",
        "start_position",
        "end_position",
        "start_gtid_set",
        "server_uuid",
        "last_commit_time",
    ):
        expect(said(page, reported)).to_be_visible()
    page.goto("/assets/shop/orders?view=lineage")
    for kind in ("MySQL", "Delta Lake"):
        expect(said(page, kind)).to_be_visible()
    expect(said(page, "orders__history")).to_be_visible()


@pytest.mark.found
def test_a_comment_that_changes_is_shown(page: Page, shop: ShopStack) -> None:
    """Defect 30: no page of Dagster showed the comments of the source."""
    shop.change_comment("orders", "what customers bought")

    def described() -> bool:
        nodes = page.request.post("/graphql", data={"query": DESCRIBED}).json()["data"]["assetNodes"]
        return any(str(node["description"]).startswith("what customers bought") for node in nodes)

    wait_for("the definitions have the new comment", described, RUN_SECONDS_MAX)
    page.goto("/assets/shop/orders?view=overview")
    expect(page.get_by_text("what customers bought")).to_be_visible()


def test_a_comment_is_shown_as_it_is_in_the_source(page: Page, shop: ShopStack) -> None:
    odd = 'price * qty * 2, <id> of "who" bought it\'s 5 € _so_ `far` ![x](http://127.0.0.1:9/x.png)'
    shop.change_comment("orders", odd)

    def described() -> bool:
        nodes = page.request.post("/graphql", data={"query": DESCRIBED}).json()["data"]["assetNodes"]
        return any(str(node["description"]).startswith("price") for node in nodes)

    wait_for("the definitions have the new comment", described, RUN_SECONDS_MAX)
    page.goto("/assets/shop/orders?view=overview")
    expect(page.get_by_text(odd)).to_be_visible()
    expect(page.locator("img[src*='127.0.0.1:9']")).to_have_count(0)


@pytest.mark.found
def test_the_graph_shows_that_checks_passed_and_the_engine_observed(page: Page, shop: ShopStack) -> None:
    """Defect 30: a table that had just been merged had "0 / 2 Passed" next to a green tick, and an engine was "Never materialized"."""
    page.goto("/assets/shop/orders?view=overview")
    expect(said(page, "Latest check results").locator("xpath=..").get_by_text("1", exact=True)).to_be_visible()
    page.goto("/assets/shop/engine?view=overview")
    expect(said(page, "Latest observation")).to_be_visible()
    for wrong in ("Never materialized", "Never observed"):
        expect(page.get_by_text(wrong)).to_have_count(0)
    requested = page.request.post("/graphql", data={"query": COUNTED})
    (nodes,) = requested.json()["data"].values()
    checks = {
        "/".join(node["assetKey"]["path"]): node["assetChecksOrError"]["checks"]
        for node in nodes
        if "shop" in node["assetKey"]["path"][0:1]
    }
    assert [checks.pop(f"shop/{table}__history") for table in TABLES] == [[], []]
    assert checks.keys() == {"shop/engine", "shop/orders", "shop/customers"}
    for asset, found in checks.items():
        assert found, asset
        for check in found:
            assert check["executionForLatestMaterialization"]["status"] == "SUCCEEDED", (asset, check)


def test_execute_on_the_check_of_equality_compares_and_passes(page: Page, shop: ShopStack, pictures: Keep) -> None:
    page.goto("/assets/Source/shop/orders?view=checks&checkDetail=equals_lake")
    button(page, "Execute$").click()
    expect(said(page, "Passed")).to_be_visible(timeout=RUN_MS_MAX)
    for reported in ("rows_in_the_lake", "rows_different", "gtid_set", "since-last"):
        expect(said(page, reported)).to_be_visible()
    pictures("checks")


def test_a_backfill_from_the_launchpad_ends_with_every_check_green(page: Page, shop: ShopStack, pictures: Keep) -> None:
    page.goto(f"{LOCATION}/jobs/operate_on_rows/playground")
    write(page, "ops:\n  rows:\n    config:\n      operation: backfill\n      from_time: -10m\n")
    pictures("launchpad")
    launch(page)
    expect(page.get_by_text("2 tables have changes")).to_be_visible()
    for table in TABLES:
        execute_all_checks(page, table)


@pytest.mark.found
def test_lag_and_throughput_are_drawn(page: Page, shop: ShopStack, pictures: Keep) -> None:
    """Defect 30: the page of the engine showed lag and throughput as rows of block characters."""
    page.goto("/assets/shop/engine?view=overview")
    button(page, "Plots$").click()
    for number in ("lag_seconds", "rows_per_second", "ring_bytes"):
        expect(said(page, number)).to_be_visible()
    plot = page.locator("canvas").first
    expect(plot).to_be_visible()
    wait_for("the plot is drawn", lambda: plot.evaluate(PAINTED) > COLOURS_MIN, PAGE_SECONDS_MAX)
    said(page, "lag_seconds").scroll_into_view_if_needed()
    pictures("engine")


def test_a_backfill_of_an_hour_from_the_page_restores_what_the_lake_lost(page: Page, shop: ShopStack) -> None:
    hour = shop.sell_and_lose(30)
    assert shop.orders_in_the_lake() == shop.orders - 29
    page.goto(f"{LOCATION}/jobs/backfill_shop_by_hour/partitions")
    button(page, "Launch backfill").click()
    requested = page.get_by_placeholder(re.compile(r"^ex: \d{4}-"))
    requested.fill(hour)
    requested.press("Enter")
    button(page, "Submit 1 run").click()
    expect(page.get_by_text("Created backfill")).to_be_visible()
    page.goto(f"{LOCATION}/jobs/backfill_shop_by_hour/runs")
    run = page.locator("a[href^='/runs/']:not([href^='/runs/b/'])").first
    expect(run).to_be_visible(timeout=RUN_MS_MAX)  # The daemon looks for backfills twice a minute.
    run.click()
    wait_for_success(page)
    assert shop.orders_in_the_lake() == shop.orders
    for table in TABLES:
        execute_all_checks(page, table)


def test_materialize_on_a_table_re_snapshots_it(page: Page, shop: ShopStack) -> None:
    pressed = time.time()
    page.goto("/assets/shop/customers?view=overview")
    button(page, "Materialize").first.click()
    expect(page.get_by_text("Launched run")).to_be_visible()
    shop.wait_until_published("customers", pressed)
    page.goto("/assets/shop/customers?view=events")
    expect(said(page, "snapshot_rows")).to_be_visible()
    expect(said(page, "400")).to_be_visible()
    page.goto("/assets/shop/customers__history?view=events")
    expect(said(page, "source_rows")).to_be_visible()
    expect(said(page, "400")).to_be_visible()


@pytest.mark.found
def test_the_plan_is_shown_before_the_change_is_approved(page: Page, shop: ShopStack, pictures: Keep) -> None:
    """Defect 30: Dagster's pages had no plan for what an operator approves on the command line."""
    shop.rename_column("customers", "tier", "level")
    page.goto(f"{LOCATION}/jobs/decide/playground")
    expect(said(page, "No errors")).to_be_visible()
    launch(page)
    page.get_by_text("[Show Markdown]").click()
    for reported in ("Schema changes", "rename tier to level", "new_column"):
        expect(page.get_by_text(reported).first).to_be_visible()
    pictures("decide")
    page.get_by_role("link", name="approve as new_column").click()
    page.wait_for_url("**/playground")
    shown = page.locator(".CodeMirror").first
    for reported in ("ALTER TABLE", "rename tier to level: new_column", "act: approve", "plan: new_column"):
        expect(shown).to_contain_text(reported)
    expect(said(page, "No errors")).to_be_visible()
    page.get_by_text("reason: ''").click()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.insert_text("as agreed with the analysts")
    pictures("decision")
    launch(page)
    page.reload()
    button(page, "View tags and config").click()
    expect(page.get_by_text("sluice/reason: as agreed with the analysts").first).to_be_visible()
    wait_for("the table continues", lambda: not shop.stopped_tables, RUN_SECONDS_MAX)
