"""Tests that the examples of docs/canal.md do what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from sluice.cdc_engine.server.protocol.session import Access
from tests.canal_client.fix_served import INSERT, UPDATE, Destination, entry, image, listening

PAGE = Path(__file__).parents[2] / "docs" / "canal.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
ROW = [("id", "int", "7"), ("status", "enum('open','paid')", "1")]
PAID = [("id", "int", "7"), ("status", "enum('open','paid')", "2")]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_an_example_of_the_canal_client_runs(snippet: str) -> None:
    destination = Destination(
        [
            entry({"threadId": 1}, kind=1),
            entry({"eventType": INSERT, "rowDatas": [{"afterColumns": image(ROW)}]}),
            entry({"eventType": UPDATE, "rowDatas": [{"beforeColumns": image(ROW), "afterColumns": image(PAID)}]}),
        ]
    )
    listener = listening(destination, Access())
    listener.serve("shop", destination)
    said = io.StringIO()
    with contextlib.closing(listener), contextlib.redirect_stdout(said):
        assert "port=11111" in snippet
        exec(compile(snippet.replace("port=11111", f"port={listener.port}"), str(PAGE), "exec"), {})  # noqa: S102  people are told to run it
    assert "paid" in said.getvalue()
    assert destination.acked == 3
