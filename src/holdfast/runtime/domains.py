"""What fails together: each node by itself, each host, or what a mapping or a script says of hosts and nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, Invalid

HOST = "host"
SCRIPT_WITHIN = 10.0

Given = Mapping[str, str] | str | os.PathLike[str] | None
FORMS = "host, a mapping of nodes or hosts to domains (a JSON or YAML file), or a script that is given hosts"


class DomainsFailed(HoldfastError):
    """A script that tells domains did not."""


class Domains:
    """``given``: None, each node is a domain by itself, or its host where there are several; ``"host"``; a mapping of
    nodes or hosts; a file with one; or a program that is called with hosts and prints a domain for each, as Hadoop's
    rack awareness has it. ``named``: what mistakes call it by, such as the option that it was typed with.
    """

    def __init__(self, given: Given = None, named: str = "domains") -> None:
        self._mapping: Mapping[str, str] = {}
        self._script: Path | None = None
        self._asked: dict[str, str] = {}
        self._named = named
        self._by_host = given == HOST
        self._plain = given is None
        if given is None or self._by_host:
            return
        if isinstance(given, Mapping):
            self._mapping = _checked(given, named)
            return
        path = Path(given)
        if not path.is_file():
            raise Invalid(f"{named} {str(given)!r}: no such file; give {FORMS}")
        if path.suffix in (".json", ".yaml", ".yml"):
            self._mapping = _checked(_read(path, named), f"{named} {path}")
        elif os.access(path, os.X_OK):
            self._script = path.absolute()
        else:
            raise Invalid(f"{named} {str(given)!r}: neither .json or .yaml nor a program that can be run; give {FORMS}")

    def of(self, hosts: Mapping[str, str]) -> dict[str, str]:
        """The domain of each of these nodes, which are on these hosts."""
        if self._plain:
            return dict(hosts) if len(set(hosts.values())) > 1 else {node: node for node in hosts}
        if self._script is not None:
            self._ask(self._script, sorted(set(hosts.values()) - self._asked.keys()))
            return {node: self._asked[host] for node, host in hosts.items()}
        if self._by_host:
            return dict(hosts)
        return {node: self._mapping.get(node) or self._mapping.get(host, node) for node, host in hosts.items()}

    def _ask(self, script: Path, hosts: list[str]) -> None:
        if not hosts:
            return
        try:
            done = subprocess.run(
                [str(script), *hosts], capture_output=True, text=True, timeout=SCRIPT_WITHIN, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"{self._named} {script}: it could not be asked for {', '.join(hosts)}: {error}"
            raise DomainsFailed(why) from None
        told = done.stdout.split()
        if done.returncode or len(told) != len(hosts):
            raise DomainsFailed(
                f"{self._named} {script}: it was given {len(hosts)} hosts ({', '.join(hosts)}) and must print a domain "
                f"for each; it printed {len(told)} and ended with {done.returncode}: "
                f"{' '.join(done.stderr.split())[:200]}"
            )
        self._asked |= dict(zip(hosts, told, strict=True))


def _read(path: Path, named: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise Invalid(f"{named} {path}: not JSON or YAML: {' '.join(str(error).split())[:120]}") from None


def _checked(given: Any, what: str) -> dict[str, str]:
    if not isinstance(given, Mapping) or not given or not all(isinstance(v, str) and v for v in given.values()):
        raise Invalid(
            f"{what}: a mapping of nodes or hosts to the names of domains is needed, such as "
            f'{{"node-0": "rack-1", "node-1": "rack-2"}}, found {repr(given)[:80]}'
        )
    return {str(name): str(domain) for name, domain in given.items()}
