"""The docs are true where a machine can tell: links lead somewhere; commands, options and names of ours exist."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from blocks import PAGES, ROOT

import holdfast
from holdfast.cli.app import COMMANDS, loaded
from holdfast.operators import Trial
from holdfast.operators.contract import State
from holdfast.report.metrics import Metrics
from holdfast.state import Store, TaskState, Writer
from holdfast.workloads import Options
from holdfast.workloads.workload import Workload

LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(rf"holdfast ({'|'.join(COMMANDS)})\b([^\n`]*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), f"{page.name}: no heading for {link}"


def headings(page: Path) -> set[str]:
    """Anchors as they are made from headings: lower case, hyphens for spaces."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    for name, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
        known = {option for parameter in loaded(name).params for option in parameter.opts} | {"--help"}
        for word in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest.partition("#")[0].partition("|")[0]):
            assert word in known, f"{page.name}: holdfast {name} has no {word}"


CODE = re.compile(r"`([^`]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
EVERYWHERE = {"--help", "--install-completion"}


def in_prose(page: Path) -> list[str]:
    """What stands in backticks outside of blocks."""
    return CODE.findall(re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S))


@cache
def options_of(program: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\"(--[a-z][a-z-]*)\"", program.read_text(encoding="utf-8")))


@cache
def options_of_any() -> frozenset[str]:
    others = (ROOT / "src/holdfast/runtime/simulation/fuzzing.py", ROOT / "scripts/figures")
    programs = [*(ROOT / "benchmarks").glob("*.py"), *others]
    parameters = [each for name in COMMANDS for each in loaded(name).params]
    ours = [option for each in parameters for option in (*each.opts, *each.secondary_opts)]
    return frozenset(ours).union(EVERYWHERE, *map(options_of, programs))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_and_commands_in_prose_exist(page: Path) -> None:
    for code in in_prose(page):
        named = re.search(r"\bbenchmarks/\w+\.py", code)
        known = options_of(ROOT / named[0]) if named else options_of_any()
        assert set(OPTION.findall(code)) <= known, f"{page.name}: {code}"
        command = re.match(r"holdfast ([a-z]\S*)", code)
        assert command is None or command[1] in COMMANDS, f"{page.name}: {code}"


OURS = {"op": "holdfast.operators", "holdfast": "holdfast"}
ONES = {"state": (State, TaskState), "store": (Store,), "writer": (Writer,), "metrics": (Metrics,),
        "workload": (Workload,), "options": (Options,), "trial": (Trial,)}  # fmt: skip
NAME = re.compile(rf"(?<![\w./\"'-])({'|'.join((*OURS, *ONES, 'job', 'Job'))})((?:\.[A-Za-z_]\w*)+)(?![\w./]*[/-])")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_prose_that_look_like_ours_exist(page: Path) -> None:
    for code in in_prose(page):
        for root, path in NAME.findall(code):
            names = path.split(".")[1:]
            assert there(root, names), f"{page.name}: {root}{path} in {code!r}"
            # What can be pasted has to run after `import holdfast` alone, which opens no rooms by name.
            assert root != "holdfast" or len(names) == 1 or " = " not in code, f"{page.name}: {code!r} needs an import"


def there(root: str, names: list[str]) -> bool:
    if root in OURS:
        thing = importlib.import_module(OURS[root])
        for name in names:
            if not hasattr(thing, name):
                try:
                    importlib.import_module(f"{thing.__name__}.{name}")
                except (ImportError, AttributeError):
                    return False
            thing = getattr(thing, name)
        return True
    return any(hasattr(one, names[0]) or f"self.{names[0]}" in inspect.getsource(one) for one in ones(root))


def ones(root: str) -> tuple[type, ...]:
    return (holdfast.Job,) if root in ("job", "Job") else ONES[root]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_have_known_options(name: str) -> None:
    command = loaded(name)
    known = {option for parameter in command.params for option in parameter.opts}
    examples = [part for line in command.help.splitlines() for part in line.split(";") if f"holdfast {name}" in part]
    assert examples
    for example in examples:
        words = shlex.split(example[example.index("holdfast") :], comments=True)
        assert {word for word in words if word.startswith("--")} <= known, example
