"""Charts as pages: self-contained, with their values in a table, and every line to be told from the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.report.chart import Chart, Series, check_plot_path, write_charts


def two(title: str = "Cost <by> uptime") -> Chart:
    lines = [Series("replay", [1, 2, 3], [1.0, None, 300.0]), Series("on-demand", [1, 2, 3], [1.0, None, 300.0])]
    return Chart(title, "nines", "times", lines, marks=[(2.0, "replay to on-demand")], log_y=True)


def test_a_page_of_charts_fetches_nothing_and_has_the_values(tmp_path: Path) -> None:
    path = tmp_path / "cost.html"
    write_charts([two(), two("Reservation")], path)
    text = path.read_text(encoding="utf-8")
    assert text.count("<h1>") == 1 and "<h1>Cost &lt;by&gt; uptime</h1>" in text and "<h2>Reservation</h2>" in text
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=['\"](?!data:)", text)
    assert text.count("<summary>As a table</summary>") == 2
    assert "<th scope='row'>3</th><td>300</td><td>300</td>" in text and "<td></td>" in text
    assert not list(tmp_path.glob(".*")), "nothing half-made is left"


def test_lines_that_lie_on_one_another_differ_in_dash_and_mark(tmp_path: Path) -> None:
    write_charts([two()], tmp_path / "cost.html")
    text = (tmp_path / "cost.html").read_text(encoding="utf-8")
    assert '"dash":"solid"' in text and '"symbol":"circle"' in text
    assert '"dash":"dash"' in text and '"symbol":"square"' in text


@pytest.mark.parametrize(
    ("name", "said"), [("cost.pdf", "must end in .html, .png, .svg"), ("no/cost.html", "no such folder no")]
)
def test_where_no_chart_can_be_written(name: str, said: str) -> None:
    with pytest.raises(Invalid, match=re.escape(said)):
        check_plot_path(Path(name))
