"""The page: whole and self-contained wherever it is made; and in a real browser, where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from histories import half_lost, written

from holdfast.report.digest import digest
from holdfast.report.live import LivePage, LiveServer
from holdfast.report.page import page, write_page
from waiting import DEADLINE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=8000",
    "--dump-dom",
]


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = written(tmp_path_factory.mktemp("run") / "run", half_lost())
    plan = {"algorithm": "greedy", "budget": 2, "replicas": ["count/0"], "fidelity": 0.25}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    verdict = {"text": "final output identical to the undisturbed run", "identical": True}
    (folder / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")
    write_page(digest(folder), folder / "report.html")
    return folder / "report.html"


def test_nothing_is_fetched_from_anywhere(made: Path) -> None:
    text = made.read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(text)
    assert not [attrs for _, attrs in elements.found if "src" in attrs]
    links = [attrs["href"] for _, attrs in elements.found if "href" in attrs]
    assert sorted(map(str, links)) == ["#main", "data:,"]
    assert "@import" not in text and "url(" not in text
    assert set(re.findall(r"https?://[^\"'\s)]*", text)) == {"http://www.w3.org/2000/svg"}
    assert "@@" not in text


def test_it_speaks_to_screen_readers(made: Path) -> None:
    elements = Elements()
    elements.feed(made.read_text(encoding="utf-8"))
    tags = [tag for tag, _ in elements.found]
    ids = [attrs["id"] for _, attrs in elements.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert tags.count("h1") == 1 and "main" in tags and "noscript" in tags
    assert dict(elements.found)["html"]["lang"] == "en"
    for tag, attrs in elements.found:
        if tag == "section":
            named = attrs.get("aria-label") or attrs.get("aria-labelledby") in ids
            assert named, attrs
    assert any(attrs.get("role") == "status" for _, attrs in elements.found)


def test_what_a_history_says_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    events = half_lost()
    events[0]["topology"]["operators"][0]["rates"] = [1, 1]
    events[-2]["error"] = "</script><script>alert(1)</script>"
    folder = written(tmp_path / "<b>run</b> @@data@@", events)
    text = page(digest(folder), f"Holdfast: {folder.name}")
    assert "<script>alert" not in text and "<b>run</b>" not in text.partition('id="data"')[0]
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None and json.loads(found[1])["error"] == events[-2]["error"]


def test_a_reader_without_scripts_gets_the_events(made: Path) -> None:
    inside = made.read_text(encoding="utf-8").partition("<noscript>")[2].partition("</noscript>")[0]
    assert "lost node-1, node-2" in inside and "checkpoint of epoch 1" in inside


PROBE = """<script>
const said = {};
addEventListener("error", (event) => { said.error = event.message; });
const slider = document.getElementById("moment");
said.opened = document.getElementById("now").textContent;
slider.value = 0;
slider.dispatchEvent(new Event("input"));
said.first = document.getElementById("now").textContent;
slider.value = slider.max;
slider.dispatchEvent(new Event("input"));
said.last = document.getElementById("now").textContent;
const chart = document.querySelector("#fidelity-chart svg");
chart.focus();
chart.dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
said.read = document.querySelector("#fidelity-chart .read").textContent;
document.querySelector("#fidelity-chart details").open = true;
const box = document.querySelector('[data-lane="checkpoints"]');
box.click();
said.hidden = [...document.querySelectorAll("#events li")].filter((item) => item.hidden).length;
document.querySelector("#events li").click();
said.clicked = document.getElementById("now").textContent;
said.standing = [document.getElementById("standing").textContent, document.getElementById("standing").className];
said.short = document.getElementById("short").textContent;
const answers = [...document.querySelectorAll("#lanes rect title")];
said.answers = answers.filter((each) => each.textContent.includes("fidelity")).length;
said.unpainted = document.querySelectorAll('#lanes [fill*="undefined"]').length;
said.charts = document.querySelectorAll("figure svg").length;
said.unnamed = [...document.querySelectorAll("svg[role=img]")].filter((svg) => !svg.getAttribute("aria-label")).length;
said.verdict = document.getElementById("verdict").textContent;
said.background = getComputedStyle(document.body).backgroundColor;
said.attached = document.querySelector("#attachments h2").textContent;
said.tooWide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.getElementById("play").click();
setTimeout(() => {
  said.played = document.getElementById("now").textContent;
  said.rows = document.querySelectorAll("#fidelity-chart tbody tr").length;
  parent.postMessage(said, "*");
}, 1500);
</script></body>"""
FRAME = """<!doctype html><body><iframe src="probe.html" width="{width}" height="900"></iframe><pre id="said"></pre>
<script>addEventListener("message", (e) => {{ document.getElementById("said").textContent = JSON.stringify(e.data); }});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium): the page is not drawn")
@pytest.mark.parametrize(("width", "dark"), [(1000, False), (360, True)])
def test_in_a_browser(made: Path, tmp_path: Path, width: int, dark: bool) -> None:
    text = made.read_text(encoding="utf-8")
    (tmp_path / "probe.html").write_text(text.replace("</body>", PROBE), encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.format(width=width), encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(
        [*command, *(["--force-dark-mode"] if dark else [])],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    found = re.search(r'<pre id="said">(.+?)</pre>', done.stdout)
    assert found is not None, done.stdout[-1000:] + done.stderr[-1000:]
    said = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert "error" not in said
    assert said["opened"] == (
        "3.1 s: epoch 2 is answered with fidelity 0.500. Tasks: 2 exact, 1 catching up, 1 down, 1 tentative."
    )
    assert said["first"].startswith("0 s: the job starts") and said["last"].startswith("5.5 s: epoch 4")
    assert said["played"].startswith("0.1 s") or "epoch" in said["played"]
    assert (
        said["standing"] == ["Ended in good order, all exact", "standing good"] and "node-1 and node-2" in said["short"]
    )
    assert said["clicked"].startswith("0 s") and said["answers"] == 5 and said["unpainted"] == 0
    assert said["read"] == "5.5 s: fidelity 1.000, floor if any 2 nodes are lost 0.610" and said["rows"] == 5
    assert said["hidden"] == 2 and said["charts"] >= 7 and said["unnamed"] == 0
    assert said["verdict"] == "final output identical to the undisturbed run: yes"
    assert said["background"] == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert said["attached"] == "Replication plan with a budget of 2"
    assert said["tooWide"] <= 0


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium): the page is not drawn")
def test_a_live_page_in_a_browser(tmp_path: Path) -> None:
    shown = LivePage(tmp_path, "word-count")
    for event in half_lost():
        shown.heard(event)
    with LiveServer(shown.routes) as server:
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert 'data-drawn="yes"' in done.stdout, done.stdout[-1000:] + done.stderr[-1000:]
    assert "The job has ended" in done.stdout and ">lost node-1, node-2<" in done.stdout
