"""What the page's own script says of a recovery, run by Node with stand-ins for the document, where there is Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest
from histories import half_lost, silent
from test_history_command import ended_silent

from holdfast.report.digest import digest_events
from waiting import DEADLINE

NODE = shutil.which("node")
STAGE = """
const any = new Proxy(function () {}, {
  get: (_, key) => (key === Symbol.toPrimitive ? () => 0 : any), set: () => true, apply: () => any,
});
const said = {};
const element = (id) => new Proxy({ id, textContent: "null", dataset: {}, style: {} }, {
  get: (own, key) => (key === "replaceChildren" ? (...each) => { said[id] = each; } : key in own ? own[key] : any),
});
const document = { getElementById: element, body: { dataset: {} }, querySelector: () => null };
const addEventListener = () => {}, fetch = () => new Promise(() => {});
const tag = (name, _, ...own) => ({ append: (...more) => own.push(...more), toString: () => own.join(" ") });
const charts = [], drawChart = (_, chart) => charts.push(chart);
const table = () => "", bytes = String, clock = (t) => `${t} s`, short = String;
"""


def words(events: list[dict[str, Any]]) -> tuple[str, str, list[dict[str, Any]]]:
    """The facts at the top, what is told of the failure, and the lines of the first chart."""
    content = json.dumps(digest_events(events, "run"))
    page = files("holdfast.report").joinpath("assets/page.js").read_text(encoding="utf-8")
    ask = f"const data = {content};\ndrawFacts(data);\ndrawCharts(data);\nconst lines = charts[0].series;\n"
    ask += "const told = String(drawRecovery(data.recoveries[0], 1, data));\n"
    ask += "console.log(JSON.stringify([said.facts.join(' | '), told, lines]));"
    done = subprocess.run(
        [str(NODE), "--input-type=commonjs"], input=f"{STAGE}{page}\n{ask}", capture_output=True, text=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    top, told, lines = json.loads(done.stdout)
    return str(top), str(told), list(lines)


@pytest.mark.skipif(NODE is None, reason="no node here: the page's script is not run")
def test_silence_is_told_as_silence() -> None:
    top, told, lines = words(half_lost())
    assert [line["name"] for line in lines] == ["fidelity", "floor if any 2 nodes are lost"]
    assert lines[1]["y"] == [0.61, 0.61, None, 0.61, 0.61]
    assert "0.50 s from a loss to the next answer, at most" in top and "1.90 s from a loss to exact again" in top
    assert "Next answer after 0.50 s with fidelity 0.500. Promised at the loss: 0.480. Exact and caught up" in told
    top, told, _ = words(silent())
    assert "1.30 s from a loss to the next answer, at most" in top
    assert "Silent for 1.30 s, then an answer with fidelity 1.000. Promised at the loss" in told
    top, told, _ = words(ended_silent())
    assert "1.70 s silent after a loss, without an answer since" in top and "exact again" not in top
    assert "Silent for 1.70 s: no row came out since. Promised at the loss: 0.480. No exact answer since" in told
