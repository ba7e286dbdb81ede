"""Fault scripts: read, printed and read again, drawn, and refused with a word of help."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.runtime.faults import (
    FORMS,
    Fault,
    When,
    expand_faults,
    in_domain,
    parse_faults,
    print_faults,
    read_faults,
)

NODES = tuple(f"node-{number}" for number in range(4))

READ = {
    "kill node-1,node-2 at epoch 8": Fault("kill", When(epoch=8), ("node-1", "node-2")),
    "kill node-1, node-2 at epoch 8": Fault("kill", When(epoch=8), ("node-1", "node-2")),
    "kill domain rack-1 at 12s": Fault("kill", When(seconds=12), domain="rack-1"),
    "join node-1 at epoch 12": Fault("join", When(epoch=12), ("node-1",)),
    "join node-1 after 5s": Fault("join", When(seconds=5, after=True), ("node-1",)),
    "slow node-2 4x at epoch 3 for 10s": Fault("slow", When(epoch=3), ("node-2",), seconds=10, factor=4),
    "unreachable node-3 at epoch 5 for 8s": Fault("unreachable", When(epoch=5), ("node-3",), seconds=8),
    "fill store at epoch 9 for 250ms": Fault("fill", When(epoch=9), seconds=0.25),
    "damage checkpoint at epoch 10": Fault("damage", When(epoch=10)),
    "restart at 2m": Fault("restart", When(seconds=120)),
    "random 3 kills seed 7": Fault("random", count=3, seed=7),
    "trace failures.csv 86400x system 20": Fault("trace", path="failures.csv", factor=86400, system="20"),
}


@pytest.mark.parametrize("text", READ)
def test_a_sentence_is_read_and_printed_back(text: str) -> None:
    (fault,) = parse_faults(text)
    assert fault == READ[text]
    assert parse_faults(str(fault)) == (fault,)


def test_a_script_is_several_sentences() -> None:
    script = (
        "kill node-1 at epoch 8 again at epoch 14; join node-1 after 5s\n# a comment\nrestart at epoch 20 # and more"
    )
    faults = parse_faults(script)
    assert [fault.what for fault in faults] == ["kill", "kill", "join", "restart"]
    assert [fault.when.epoch for fault in faults] == [8, 14, None, 20]
    assert parse_faults(print_faults(faults)) == faults
    assert parse_faults(["kill node-1 at epoch 8", "restart at 5s"]) == parse_faults(
        "kill node-1 at epoch 8;restart at 5s"
    )
    assert parse_faults("") == ()


def test_every_form_that_help_shows_is_read() -> None:
    for form in FORMS:
        for each in form.replace("[", "").replace("]", "").split(" | "):
            assert parse_faults(each), each


WRONG = {
    "explode node-1 at epoch 3": "unknown fault 'explode'; known: kill, join,",
    "kill node-1": "it ends too early; missing: when: at epoch 8, at 12s",
    "kill at epoch 3": "nodes are needed, such as node-1,node-2, found 'at'",
    "kill node-1,node-1 at epoch 3": "node-1 is named twice",
    "kill node-1 on epoch 3": "say when: at epoch 8, at 12s; found 'on'",
    "kill node-1 after 3s": "found 'after'",
    "kill node-1 at epoch soon": "the number of an epoch, such as 8 is needed, found 'soon'",
    "kill node-1 at epoch -1": "found '-1'",
    "kill node-1 at 12": "a time is needed, such as 12s, 250ms or 5m, found '12'",
    "kill node-1 at epoch 3 twice": "'twice' is one thing too many",
    "slow node-2 at epoch 3 for 1s": "a factor above 0 is needed, such as 4x, found 'at'",
    "slow node-2 0x at epoch 3 for 1s": "a factor above 0 is needed, such as 4x, found '0x'",
    "unreachable node-2 at epoch 3": "missing: the word for",
    "fill disk at epoch 3 for 1s": "the word 'store' is needed here, found 'disk'",
    "damage node-1 at epoch 3": "the word 'checkpoint' is needed here, found 'node-1'",
    "random 0 kills seed 7": "a number of kills, such as 3 is needed, found '0'",
    "random 3 joins seed 7": "only kills can be random",
    "random 3 kills": "missing: the word seed",
    "trace": "missing: a CSV file of failures",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_told_in_one_line_with_what_is_right(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_faults(text)
    message = str(caught.value)
    assert message.startswith(f"fault {text!r}: ") and WRONG[text] in message
    assert "write, for example: " in message and "\n" not in message


def test_names_domains_and_epochs_are_checked_against_the_job() -> None:
    domains = {"node-0": "left", "node-1": "left", "node-2": "right", "node-3": "right"}
    (fault,) = expand_faults(parse_faults("kill domain right at 3s"), NODES, 10, domains)
    assert fault.nodes == ("node-2", "node-3") and fault.domain is None
    for text, message in {
        "kill node-9 at epoch 3": "no node 'node-9'; nodes: node-0 to node-3",
        "kill domain up at epoch 3": "no domain 'up'; domains: left, right",
        "kill node-1 at epoch 10": "epoch 10 never comes; epochs: 0 to 9",
        "kill domain left at epoch 10": "epoch 10 never comes; epochs: 0 to 9",
        "random 5 kills seed 1": "5 nodes are to be killed, but there are 4",
    }.items():
        with pytest.raises(Invalid, match=message):
            expand_faults(parse_faults(text), NODES, 10, domains)
    with pytest.raises(Invalid, match="no domain 'up'; domains: node-0, node-1, node-2, node-3"):
        expand_faults(parse_faults("kill domain up at epoch 3"), NODES, 10, {})
    (one,) = expand_faults(parse_faults("kill domain node-2 at epoch 3"), NODES, 10, {})
    assert one.nodes == ("node-2",), "a node of which nothing is said fails alone"


def test_a_domain_that_nobody_knows_yet_is_resolved_when_the_fault_is_due() -> None:
    (fault,) = expand_faults(parse_faults("kill domain up at epoch 3"), NODES, 10)
    assert (fault.nodes, fault.domain) == ((), "up")
    due = in_domain(fault, {"node-7": "up", "node-1": "down", "node-8": "up"})
    assert (due.nodes, due.domain, due.when) == (("node-7", "node-8"), None, fault.when)
    with pytest.raises(Invalid, match="no domain 'up'; domains: none"):
        in_domain(fault, {})


def test_random_kills_are_drawn_from_their_seed() -> None:
    drawn = expand_faults(parse_faults("random 3 kills seed 7"), NODES, 20)
    assert drawn == expand_faults(parse_faults("random 3 kills seed 7"), NODES, 20)
    assert drawn != expand_faults(parse_faults("random 3 kills seed 8"), NODES, 20)
    assert len({fault.nodes for fault in drawn}) == 3 and all(0 < (fault.when.epoch or 0) < 20 for fault in drawn)


@pytest.mark.parametrize("name", ["faults.json", "faults.yaml"])
def test_a_file_of_sentences(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    listed = ["kill node-1 at epoch 8", "join node-1 after 5s"]
    text = json.dumps({"faults": listed}) if name.endswith("json") else "".join(f"- {each}\n" for each in listed)
    path.write_text(text)
    assert read_faults(path) == parse_faults(listed)


def test_files_that_are_not_scripts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read_faults(path)
    for text, message in {
        "{": "not JSON or YAML",
        "kill: 3": "a list of faults is needed, each a sentence such as",
        "- 3": "a list of faults is needed",
        "- kill node-1 at epoch 8\n- kill at\n": "fault 2: fault 'kill at': nodes are needed",
    }.items():
        path.write_text(text)
        with pytest.raises(Invalid, match=message) as caught:
            read_faults(path)
        assert "\n" not in str(caught.value)


def test_a_trace_becomes_kills_and_joins(tmp_path: Path) -> None:
    path = tmp_path / "outages.csv"
    path.write_text("node,down,up\nx,100,160\ny,130,190\nx,150,200\nx,400,400\n")
    faults = expand_faults(parse_faults(f"trace {path} 10x"), NODES, 5)
    assert [str(fault) for fault in faults] == [
        "kill node-0 at 0s",
        "kill node-1 at 3s",
        "join node-1 at 9s",
        "join node-0 at 10s",
        "kill node-0 at 30s",
        "join node-0 at 30s",
    ]


def test_a_trace_of_los_alamos(tmp_path: Path) -> None:
    path = tmp_path / "lanl.csv.xz"
    rows = [
        "System,nodenum,Prob Started,Prob Fixed",
        "2,0,6/21/2005 10:54,6/21/2005 11:00",
        "20,7,6/21/2005 10:55,6/21/2005 11:55",
        "20,7,7/21/2005 10:55,",
        "17,,6/21/2005 10:50,6/21/2005 11:00",
        "20,8,6/21/2005 11:55,6/21/2005 12:55",
    ]
    path.write_bytes(lzma.compress("\n".join(rows).encode()))
    faults = expand_faults(parse_faults(f"trace {path} 3600x system 20"), NODES, 5)
    assert [(fault.what, fault.nodes, fault.when.seconds) for fault in faults] == [
        ("kill", ("node-0",), 0.0),
        ("kill", ("node-1",), 1.0),
        ("join", ("node-0",), 1.0),
        ("join", ("node-1",), 2.0),
    ]
    whole = expand_faults(parse_faults(f"trace {path} 3600x"), NODES, 5)
    assert len(whole) == 6  # records that name no machine are passed over, like those that were never closed
    for system in (17, 99):
        with pytest.raises(Invalid, match="the trace has no failures of this system"):
            expand_faults(parse_faults(f"trace {path} 3600x system {system}"), NODES, 5)


def test_traces_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "outages.csv"
    for text, message in {
        "a,b\n1,2\n": "columns node, down, up are needed, or System, nodenum",
        "node,down,up\nx,soon,3\n": "line 2: down and up must be seconds",
    }.items():
        path.write_text(text)
        with pytest.raises(Invalid, match=message):
            expand_faults(parse_faults(f"trace {path} 10x"), NODES, 5)
    with pytest.raises(Invalid, match="cannot be read as CSV: No such file"):
        expand_faults(parse_faults(f"trace {tmp_path / 'none.csv'} 10x"), NODES, 5)
    (tmp_path / "bad.xz").write_text("not compressed")
    with pytest.raises(Invalid, match="cannot be read as CSV"):
        expand_faults(parse_faults(f"trace {tmp_path / 'bad.xz'} 10x"), NODES, 5)
