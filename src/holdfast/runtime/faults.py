"""Fault scripts: what shall go wrong and when, as values that can be written, read, printed and replayed.

``kill node-1,node-2 at epoch 8; join node-1 after 5s`` is a script of two faults, for Spark and for simulations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from holdfast.errors import Invalid, instead

Action = Literal["kill", "join", "slow", "unreachable", "fill", "damage", "restart", "random", "trace"]


@dataclass(frozen=True, slots=True)
class When:
    """``epoch``: once that epoch has begun. ``seconds``: since the start; with ``after``, since the nodes were lost."""

    epoch: int | None = None
    seconds: float | None = None
    after: bool = False

    def __str__(self) -> str:
        if self.epoch is not None:
            return f"at epoch {self.epoch}"
        return f"{'after' if self.after else 'at'} {self.seconds:g}s"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong (or a node that comes back).

    ``nodes`` by name, or every node of ``domain``. ``seconds``: how long it lasts, of slow, unreachable and fill.
    ``factor``: how many times slower; of a trace, how many seconds of it pass in one. ``count`` and ``seed``: of random
    kills. ``path`` and ``system``: of a trace.
    """

    what: Action
    when: When = When()
    nodes: tuple[str, ...] = ()
    domain: str | None = None
    seconds: float | None = None
    factor: float | None = None
    count: int | None = None
    seed: int | None = None
    path: str | None = None
    system: str | None = None

    def __str__(self) -> str:
        whom = f"domain {self.domain}" if self.domain is not None else ",".join(self.nodes)
        match self.what:
            case "slow":
                return f"slow {whom} {self.factor:g}x {self.when} for {self.seconds:g}s"
            case "unreachable":
                return f"unreachable {whom} {self.when} for {self.seconds:g}s"
            case "fill":
                return f"fill store {self.when} for {self.seconds:g}s"
            case "damage":
                return f"damage checkpoint {self.when}"
            case "restart":
                return f"restart {self.when}"
            case "random":
                return f"random {self.count} kills seed {self.seed}"
            case "trace":
                system = f" system {self.system}" if self.system is not None else ""
                return f"trace {self.path} {self.factor:g}x{system}"
        return f"{self.what} {whom} {self.when}"


FORMS = (
    "kill node-1,node-2 at epoch 8 [again at epoch 14]",
    "kill domain rack-1 at 12s",
    "join node-1 at epoch 12 | join node-1 after 5s",
    "slow node-2 4x at epoch 3 for 10s",
    "unreachable node-3 at epoch 5 for 8s",
    "fill store at epoch 9 for 3s",
    "damage checkpoint at epoch 10",
    "restart at epoch 6",
    "random 3 kills seed 7",
    "trace failures.csv 86400x [system 20]",
)
"""What may be said, by example."""


KINDS = ("kill", "join", "slow", "unreachable", "fill", "damage", "restart", "random", "trace")


def parse_faults(text: str | Iterable[str]) -> tuple[Fault, ...]:
    """The faults of a script: sentences parted by ``;`` or new lines, ``#`` begins a comment. See ``FORMS``."""
    texts = [text] if isinstance(text, str) else list(text)
    sentences = [part.partition("#")[0].strip() for each in texts for part in re.split(r"[;\n]", each)]
    return tuple(fault for sentence in sentences if sentence for fault in _Sentence(sentence).faults())


def read_faults(path: str | Path) -> tuple[Fault, ...]:
    """The faults of a JSON or YAML file: a list of sentences, under ``faults`` or by itself."""
    import yaml

    path = Path(path)
    try:
        found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: not JSON or YAML: {' '.join(str(error).split())[:120]}") from None
    listed = found.get("faults") if isinstance(found, Mapping) else found
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not all(isinstance(each, str) for each in listed):
        raise Invalid(
            f"{path}: a list of faults is needed, each a sentence such as {FORMS[0]!r}, found {_brief(found)}"
        )
    faults: list[Fault] = []
    for number, sentence in enumerate(listed, 1):
        try:
            faults += parse_faults(sentence)
        except Invalid as error:
            raise Invalid(f"{path}, fault {number}: {error}") from None
    return tuple(faults)


def print_faults(faults: Iterable[Fault]) -> str:
    """The script of these faults, which ``parse_faults`` reads back."""
    return "; ".join(str(fault) for fault in faults)


def expand_faults(
    faults: Iterable[Fault], nodes: Sequence[str], epochs: int, domains: Mapping[str, str] | None = None
) -> tuple[Fault, ...]:
    """The script for these nodes and so many epochs: random kills drawn, traces read, domains resolved, names checked.

    ``domains``: the failure domain of each node; None: that is known only when the fault is due.
    """
    expanded: list[Fault] = []
    for fault in faults:
        if fault.what == "random":
            expanded += _random_kills(fault, nodes, epochs)
            continue
        if fault.what == "trace":
            from holdfast.runtime.traces import trace_faults

            expanded += trace_faults(fault, nodes)
            continue
        if unknown := [node for node in fault.nodes if node not in nodes]:
            span = f"{nodes[0]} to {nodes[-1]}" if len(nodes) > 1 else ", ".join(nodes)
            raise Invalid(f"fault {str(fault)!r}: no node {unknown[0]!r}; nodes: {span}")
        if fault.when.epoch is not None and fault.when.epoch >= epochs:
            raise Invalid(f"fault {str(fault)!r}: epoch {fault.when.epoch} never comes; epochs: 0 to {epochs - 1}")
        known = domains is not None and fault.domain is not None
        expanded.append(in_domain(fault, {n: (domains or {}).get(n, n) for n in nodes}) if known else fault)
    return tuple(expanded)


def in_domain(fault: Fault, domains: Mapping[str, str]) -> Fault:
    """A fault of a domain as one of its nodes."""
    members = tuple(node for node, domain in domains.items() if domain == fault.domain)
    if not members:
        there = ", ".join(sorted(set(domains.values()))) or "none"
        raise Invalid(f"fault {str(fault)!r}: no domain {fault.domain!r}; domains: {there}")
    return replace(fault, nodes=members, domain=None)


def _random_kills(fault: Fault, nodes: Sequence[str], epochs: int) -> list[Fault]:
    count = fault.count or 0
    if count > len(nodes):
        raise Invalid(f"fault {str(fault)!r}: {count} nodes are to be killed, but there are {len(nodes)}")
    draw = Random(fault.seed)
    victims = draw.sample(list(nodes), count)
    when = sorted(draw.randrange(min(1, epochs - 1), epochs) for _ in victims)
    return [Fault("kill", When(epoch=epoch), nodes=(victim,)) for victim, epoch in zip(victims, when, strict=True)]


class _Sentence:
    """A sentence of the script, read word by word; every mistake says what was found and what is right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = text.replace(", ", ",").split()

    def faults(self) -> list[Fault]:
        what = self.words.pop(0).lower()
        reader = getattr(self, f"_{what}", None) if what in ("kill", "join", "slow", "unreachable", "fill") else None
        if reader is not None:
            made: list[Fault] = reader()
        elif what == "damage":
            self._expect("checkpoint")
            made = self._times(Fault("damage"))
        elif what == "restart":
            made = self._times(Fault("restart"))
        elif what == "random":
            made = [self._random()]
        elif what == "trace":
            made = [self._trace()]
        else:
            raise self._wrong(f"unknown fault {what!r}; {instead(what, KINDS)}")
        if self.words:
            raise self._wrong(f"{' '.join(self.words)!r} is one thing too many")
        return made

    def _kill(self) -> list[Fault]:
        return self._times(self._whom(Fault("kill")))

    def _join(self) -> list[Fault]:
        return self._times(self._whom(Fault("join")), after=True)

    def _slow(self) -> list[Fault]:
        fault = replace(self._whom(Fault("slow")), factor=self._factor())
        return self._lasting(fault)

    def _unreachable(self) -> list[Fault]:
        return self._lasting(self._whom(Fault("unreachable")))

    def _fill(self) -> list[Fault]:
        self._expect("store")
        return self._lasting(Fault("fill"))

    def _random(self) -> Fault:
        count = self._whole("a number of kills, such as 3", least=1)
        if self._next("the word kills") not in ("kills", "kill"):
            raise self._wrong("only kills can be random")
        self._expect("seed")
        return Fault("random", count=count, seed=self._whole("a seed, such as 7"))

    def _trace(self) -> Fault:
        path = self._next("a CSV file of failures")
        fault = Fault("trace", path=path, factor=self._factor())
        if self.words and self.words[0] == "system":
            self.words.pop(0)
            fault = replace(fault, system=self._next("the system's number"))
        return fault

    # Parts of a sentence

    def _whom(self, fault: Fault) -> Fault:
        word = self._next("nodes, such as node-1,node-2, or domain NAME")
        if word == "domain":
            return replace(fault, domain=self._next("the name of a domain"))
        nodes = tuple(name for name in word.split(",") if name)
        if not nodes or word in ("at", "after", "for"):
            raise self._wrong(f"nodes are needed, such as node-1,node-2, found {word!r}")
        if len(set(nodes)) < len(nodes):
            raise self._wrong(f"{next(n for i, n in enumerate(nodes) if n in nodes[:i])} is named twice")
        return replace(fault, nodes=nodes)

    def _times(self, fault: Fault, after: bool = False) -> list[Fault]:
        made = [replace(fault, when=self._when(after))]
        while self.words and self.words[0] == "again":
            self.words.pop(0)
            made.append(replace(fault, when=self._when(after)))
        return made

    def _lasting(self, fault: Fault) -> list[Fault]:
        made = self._times(fault)
        self._expect("for")
        seconds = self._seconds(self._next("how long, such as 8s"))
        return [replace(each, seconds=seconds) for each in made]

    def _when(self, after: bool) -> When:
        form = "when: at epoch 8, at 12s" + (" or after 5s" if after else "")
        word = self._next(form)
        if word == "after" and after:
            return When(seconds=self._seconds(self._next(form)), after=True)
        if word != "at":
            raise self._wrong(f"say {form}; found {word!r}")
        moment = self._next(form)
        if moment == "epoch":
            return When(epoch=self._whole("the number of an epoch, such as 8"))
        return When(seconds=self._seconds(moment))

    def _seconds(self, word: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(ms|s|m|min|h)", word)
        if match is None:
            raise self._wrong(f"a time is needed, such as 12s, 250ms or 5m, found {word!r}")
        return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}[match[2]]

    def _factor(self) -> float:
        word = self._next("a factor, such as 4x")
        match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)x", word)
        if match is None or float(match[1]) <= 0:
            raise self._wrong(f"a factor above 0 is needed, such as 4x, found {word!r}")
        return float(match[1])

    def _whole(self, what: str, least: int = 0) -> int:
        word = self._next(what)
        if not word.isdecimal() or int(word) < least:
            raise self._wrong(f"{what} is needed, found {word!r}")
        return int(word)

    def _expect(self, word: str) -> None:
        found = self._next(f"the word {word}")
        if found != word:
            raise self._wrong(f"the word {word!r} is needed here, found {found!r}")

    def _next(self, what: str) -> str:
        if not self.words:
            raise self._wrong(f"it ends too early; missing: {what}")
        return self.words.pop(0)

    def _wrong(self, what: str) -> Invalid:
        verb = self.text.split()[0].lower()
        right = [form for form in FORMS if form.startswith(verb)] or [FORMS[0]]
        return Invalid(f"fault {self.text!r}: {what}; write, for example: {' or '.join(right)}")


def _brief(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 80 else text[:77] + "..."
