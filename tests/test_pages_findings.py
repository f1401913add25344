"""Findings on a page."""

from __future__ import annotations

import json

from grace_store.base.finding import Column, Finding, Table
from grace_store.pages.findings import MOST_ROWS, finding_section


def test_of_a_long_table_a_page_shows_the_beginning():
    rows = tuple({"sample": f"s{number}"} for number in range(MOST_ROWS + 5))
    tables = {"entered": Table(title="205 entered", columns={"sample": Column(heading="sample")}, rows=rows)}
    section = finding_section(Finding(study="compare", conclusion="They differ.", tables=tables))
    (shown,) = [block for block in section.to_json()["blocks"] if "rows" in block]
    assert [row[0] for row in shown["rows"]] == [f"s{number}" for number in range(MOST_ROWS)]
    assert "5 more rows are in the file of the finding." in json.dumps(shown)
