"""``holdfast plan``, ``generate`` and ``fidelity`` as people and programs call them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from holdfast.replication import PLANNERS, floor
from holdfast.topology import read_topology

EXAMPLES = Path("examples/topologies")
INCIDENTS = str(EXAMPLES / "incidents.json")
KEYS = {"algorithm", "budget", "cost", "replicas", "fidelity", "objective", "optimal"}
Call = Callable[..., CompletedProcess[str]]


@pytest.mark.parametrize("algorithm", PLANNERS)
def test_a_plan_is_one_json_object(holdfast: Call, algorithm: str) -> None:
    done = holdfast("plan", INCIDENTS, "--budget", "8", "--algorithm", algorithm, "--format", "json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert set(answer) >= KEYS
    assert answer["algorithm"] == algorithm
    assert answer["cost"] <= 8
    assert answer["fidelity"] == pytest.approx(0.0 if algorithm == "greedy" else 7 / 30)


def test_a_plan_to_read_shows_the_topology_with_its_replicas(holdfast: Call) -> None:
    done = holdfast("plan", INCIDENTS, "--budget", "8")
    assert "reports  ●●    → incident (full)" in done.stdout
    assert "query, priority 1" in done.stdout
    assert "structure-aware: fidelity 0.2333" in done.stdout
    assert "8 of 19 tasks replicated, cost 8 of 8" in done.stdout


@pytest.mark.parametrize("suffix", ["html", "png", "svg"])
def test_a_range_of_budgets_draws_the_curve_of_every_planner(holdfast: Call, suffix: str, tmp_path: Path) -> None:
    plot = tmp_path / f"curve.{suffix}"
    done = holdfast("plan", INCIDENTS, "--budget", "6..8", "--plot", str(plot), "--format", "json")
    answer = json.loads(done.stdout)
    assert answer["budgets"] == [6.0, 7.0, 8.0]
    assert set(answer["curves"]) == set(PLANNERS)
    assert answer["curves"]["structure-aware"] == pytest.approx([0.08, 0.14, 7 / 30])
    assert plot.stat().st_size > 1000


def test_a_curve_to_read_is_a_table(holdfast: Call) -> None:
    done = holdfast("plan", INCIDENTS, "--budget", "6,8", "--algorithm", "greedy")
    assert done.returncode == 0
    assert "budget" in done.stdout
    assert "with a budget of 8, greedy replicates:" in done.stdout


def test_where_dynamic_refuses_it_is_left_out_with_a_note(holdfast: Call, tmp_path: Path) -> None:
    wide = tmp_path / "wide.json"
    operators = [{"name": f"O{i}", "parallelism": 7} for i in range(4)]
    streams = [{"from": f"O{i}", "to": f"O{i + 1}", "partitioning": "full"} for i in range(3)]
    wide.write_text(json.dumps({"operators": operators, "streams": streams}))
    done = holdfast("plan", str(wide), "--budget", "0..8:4", "--format", "json")
    answer = json.loads(done.stdout)
    assert answer["curves"]["dynamic"] == [None, None, None]
    assert "2401 minimal complete trees, more than the limit of 200" in answer["notes"][0]
    assert "left out" in done.stderr
    alone = holdfast("plan", str(wide), "--budget", "4", "--algorithm", "dynamic")
    assert alone.returncode == 1
    assert "use exact or structure-aware" in alone.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "-1"], "--budget '-1': must be a finite number, 0 or more, such as 6, or a range such as 1..20"),
        (["--budget", "nan"], "--budget 'nan': must be a finite number"),
        (["--budget", "six"], "--budget 'six': must be a finite number"),
        (["--budget", "9..1"], "--budget '9..1': a range goes up"),
        (["--budget", "1..9:0"], "--budget '1..9:0': a range goes up"),
        (["--budget", "0..9999999"], "--budget '0..9999999': more than 1000 budgets; take larger steps"),
        (
            ["--budget", "3", "--algorithm", "best"],
            "there are: structure-aware, greedy, dynamic, exact",
        ),
        (
            ["--budget", "3", "--assume", "some"],
            "--assume must be one of all, worst-domain, average-domain, got 'some'",
        ),
        (["--budget", "3", "--assume", "worst-domain"], "incidents.json has no domains"),
        (["--budget", "3", "--plot", "x.html"], "--plot x.html: draws a curve; give a range of budgets"),
        (["--budget", "1..3", "--plot", "x.pdf"], "--plot x.pdf: must end in .html, .png, .svg"),
        (["--budget", "3", "--time-limit", "0"], "--time-limit must be above 0 seconds, got 0.0"),
        (["--budget", "3", "--nodes", "4"], "--nodes 4: says where replicas live; add --survive, such as --survive 1"),
        (["--budget", "3", "--survive", "1"], "--survive 1: of how many nodes? add --nodes, such as --nodes 3"),
        (
            ["--budget", "3", "--nodes", "4", "--survive", "4"],
            "--survive 4: nothing survives the loss of all of 4 nodes; at most 3",
        ),
        *(
            (
                ["--budget", "3", "--nodes", "4", "--survive", word],
                f"--survive must be a number of nodes, 1 or more, or domain, got '{word}'",
            )
            for word in ("0", "-1", "rack", "1.5", "²")
        ),
        (["--budget", "3", "--nodes", "0", "--survive", "1"], "--nodes must be a number from 1 to 1000, got 0"),
        (["--budget", "3", "--survive", "domain"], "incidents.json has no domains; name groups of tasks"),
        (["--budget", "1..3", "--nodes", "4", "--survive", "1"], "--survive 1: takes one budget, such as --budget 3"),
        (
            ["--budget", "3", "--nodes", "4", "--survive", "1", "--algorithm", "exact"],
            "--survive 1: cannot be planned with --algorithm; leave one of the two out",
        ),
        (
            ["--budget", "3", "--nodes", "4", "--survive", "1", "--assume", "worst-domain"],
            "--survive 1: cannot be planned with --assume; leave one of the two out",
        ),
        (
            ["--budget", "3", "--nodes", "4", "--survive", "1", "--assessment", "here"],
            "--survive 1: cannot be planned with --assessment; leave one of the two out",
        ),
    ],
)
def test_what_was_typed_wrong_is_said_in_one_line(holdfast: Call, arguments: list[str], message: str) -> None:
    done = holdfast("plan", INCIDENTS, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_budgets_need_not_be_whole(holdfast: Call) -> None:
    done = holdfast("plan", str(EXAMPLES / "three-queries.json"), "--budget", "2.5", "--format", "json")
    answer = json.loads(done.stdout)
    assert answer["budget"] == 2.5
    assert answer["cost"] == 2.0


def test_generate_writes_what_plan_reads(holdfast: Call, tmp_path: Path) -> None:
    file = tmp_path / "random.yaml"
    done = holdfast(
        "generate", "--seed", "7", "--queries", "2..3", "--domains", "3", "-o", str(file), "--format", "json"
    )
    assert json.loads(done.stdout)["file"] == str(file)
    found = holdfast("plan", str(file), "--budget", "5", "--assume", "worst-domain", "--format", "json")
    assert json.loads(found.stdout)["assume"] == "worst-domain"


def test_generate_is_seeded(holdfast: Call) -> None:
    first, second, other = (holdfast("generate", "--seed", seed, "--joins", "0.5") for seed in ("3", "3", "4"))
    assert first.stdout == second.stdout != other.stdout
    assert json.loads(first.stdout)["operators"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--operators", "x"], "--operators must be a whole number such as 8 or a range such as 5..10, got 'x'"),
        (["--operators", "9..2"], "--operators must be a range from 1 up, such as 5..10, got 9..2"),
        (["--joins", "2"], "--joins must be a share from 0 to 1, got 2.0"),
        (["--workload", "even"], "--workload must be one of uniform, zipf, got 'even'"),
        (["--seed", "-1"], "--seed must be 0 or more, got -1"),
        (["-o", "t.txt"], "--out t.txt: must end in .json, .yaml, .yml"),
    ],
)
def test_generate_refuses_in_one_line(holdfast: Call, arguments: list[str], message: str) -> None:
    done = holdfast("generate", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_fidelity_by_both_metrics(holdfast: Call) -> None:
    file = str(EXAMPLES / "merge-of-two.json")
    for metric, value in [("of", 3 / 5), ("ic", 3 / 4)]:
        done = holdfast("fidelity", file, "--failed", "O2/1", "--metric", metric, "--format", "json")
        assert json.loads(done.stdout)["fidelity"] == pytest.approx(value)
    done = holdfast("fidelity", file, "--failed", "all")
    assert done.stdout.startswith("fidelity 0.0000")


def test_fidelity_warns_of_a_sink_that_no_query_names(holdfast: Call, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(
        json.dumps(
            {
                "operators": [{"name": "A"}, {"name": "B"}],
                "streams": [{"from": "A", "to": "B", "partitioning": "one-to-one"}],
                "queries": [{"sink": "A"}],
            }
        )
    )
    done = holdfast("fidelity", str(file), "--format", "json")
    assert json.loads(done.stdout)["queries"] == {"A": 1.0}
    assert "operator B: a sink that no query names" in " ".join(done.stderr.split())


def test_a_budget_too_small_for_any_tree_says_what_one_costs(holdfast: Call) -> None:
    done = holdfast("plan", INCIDENTS, "--budget", "3", "--format", "json")
    assert json.loads(done.stdout)["fidelity"] == 0.0
    assert "nothing reaches a query; a complete tree costs 6: locations/" in " ".join(done.stderr.split())


RACKS = str(EXAMPLES / "racks.yaml")


def test_a_plan_that_survives_says_where_replicas_live_and_what_is_left_at_least(holdfast: Call) -> None:
    done = holdfast("plan", RACKS, "--budget", "8", "--nodes", "4", "--survive", "2", "--format", "json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert set(answer) == {*KEYS, "assume", "nodes", "survive", "floor", "placement"}
    assert [node["name"] for node in answer["nodes"]] == ["node-0", "node-1", "node-2", "node-3"]
    assert answer["survive"] == 2
    assert answer["cost"] <= 8
    model = read_topology(RACKS)
    placement = {model.task(task): homes for task, homes in answer["placement"].items()}
    assert [task for task, homes in answer["placement"].items() if len(homes) == 2] == answer["replicas"]
    least = floor(model, placement, ["node-0", "node-1", "node-2", "node-3"], 2)
    assert answer["floor"] == {
        "fidelity": least.fidelity,
        "worst": sorted(least.worst),
        "exact": True,
        "bound": least.fidelity,
    }
    assert answer["fidelity"] == least.fidelity
    assert answer["objective"] == pytest.approx(4 * least.fidelity)
    read = holdfast("plan", RACKS, "--budget", "8", "--nodes", "4", "--survive", "2").stdout
    one, other = sorted(least.worst)
    assert f"if any 2 of 4 nodes die: at least {least.fidelity:.4f} (worst: {one} and {other})\n" in read


def test_a_plan_that_survives_a_domain_keeps_tasks_in_the_domains_of_the_file(holdfast: Call) -> None:
    done = holdfast("plan", RACKS, "--budget", "6", "--survive", "domain", "--format", "json")
    answer = json.loads(done.stdout)
    domain = {node["name"]: node["domain"] for node in answer["nodes"]}
    assert list(domain.values()) == ["rack-1", "rack-2", "rack-3"]
    model = read_topology(RACKS)
    for rack, tasks in model.domains.items():
        assert {domain[answer["placement"][str(task)][0]] for task in tasks} == {rack}
    assert all(len({domain[home] for home in homes}) == len(homes) for homes in answer["placement"].values())
    assumed = json.loads(
        holdfast("plan", RACKS, "--budget", "6", "--assume", "worst-domain", "--format", "json").stdout
    )
    assert answer["fidelity"] == pytest.approx(assumed["fidelity"])  # one domain at a time: a replica elsewhere lives
    read = holdfast("plan", RACKS, "--budget", "6", "--nodes", "5", "--survive", "domain").stdout
    assert "if any one of 3 domains dies: at least" in read
    assert "node-4 (rack-2)" in read
    few = holdfast("plan", RACKS, "--budget", "6", "--nodes", "2", "--survive", "domain")
    assert (few.returncode, few.stdout) == (2, "")
    assert "--nodes 2: examples/topologies/racks.yaml has 3 domains; at least one node for each" in few.stderr


def test_a_plan_that_cannot_survive_says_why(holdfast: Call) -> None:
    done = holdfast("plan", INCIDENTS, "--budget", "6", "--nodes", "4", "--survive", "2")
    assert "they hold both copies of total/0, the only task of total" in done.stderr
    poor = holdfast("plan", INCIDENTS, "--budget", "0", "--nodes", "4", "--survive", "1")
    assert "nothing is left without node-0; a larger budget may change that" in poor.stderr
    assert "if any 1 of 4 nodes dies: at least 0.0000 (worst: node-0)" in poor.stdout
