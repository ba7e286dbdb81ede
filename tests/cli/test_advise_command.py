"""``holdfast advise`` and ``holdfast emulate`` as people and programs call them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.app import main
from holdfast.resilience import STRATEGIES

Call = Callable[..., tuple[int, str, str]]
PAPER = ("advise", "--window", "1d", "--checkpoint", "1d", "--sla", "0.99999", "--mtbf", "30d")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", *options])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = capsys.readouterr()
        return int(done.value.code or 0), out, err

    return run


@pytest.fixture
def ask(call: Call) -> Callable[..., dict[str, Any]]:
    def run(*options: str) -> dict[str, Any]:
        code, out, err = call(*options, "--format", "json")
        assert code == 0, err
        return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))

    return run


@pytest.fixture
def refused(call: Call) -> Callable[..., str]:
    """What one line on stderr says, with exit code 2 and nothing on stdout."""

    def run(*options: str) -> str:
        code, out, err = call(*options)
        assert code == 2 and out == "" and len(err.strip().splitlines()) == 1 and "Traceback" not in err
        return err.strip()

    return run


class TestAdvise:
    def test_the_contract(self, ask: Callable[..., dict[str, Any]]) -> None:
        answer = ask(*PAPER, "--storage-copies", "3", "--max-nodes", "10", "--max-recovery-factor", "2")
        assert {row["strategy"] for row in answer["strategies"]} == set(STRATEGIES)
        for row in answer["strategies"]:
            keys = {"strategy", "nodes", "period_s", "recovery_factor", "cost_factor", "feasible", "why"}
            assert keys <= set(row) and row["why"]
            assert row["feasible"] == (row["cost_factor"] is not None)
            assert not row["feasible"] or row["recovery_factor"] <= 2 * (1 + 1e-9)
        assert answer["best"] == answer["strategies"][0]["strategy"] == "active-replay"

    def test_sizes_and_percent(self, ask: Callable[..., dict[str, Any]]) -> None:
        time = ask("advise", "--checkpoint", "40s", "--sla", "0.999", "--mtbf", "30d")
        moved = ask("advise", "--checkpoint", "2GB", "--rate", "50MB/s", "--sla", "99.9%", "--mtbf", "30d")
        for one, two in zip(time["strategies"], moved["strategies"], strict=True):
            assert one["strategy"] == two["strategy"]
            assert one["cost_factor"] == pytest.approx(two["cost_factor"])

    def test_a_table_to_read(self, call: Call) -> None:
        code, out, _ = call(*PAPER, "--max-recovery-factor", "3")
        lines = out.splitlines()
        assert code == 0 and lines[1].startswith("active-replay*") and lines[-1] == "best: active-replay"
        assert any(line.startswith("replay is not feasible: needs at least 3333 times") for line in lines)
        assert max(map(len, lines[:4])) <= 80

    def test_none_feasible(self, call: Call, ask: Callable[..., dict[str, Any]]) -> None:
        hopeless = (*PAPER, "--max-recovery-factor", "1.0", "--lossless")
        assert ask(*hopeless)["best"] is None
        code, out, err = call(*hopeless)
        assert code == 0 and "best: none" in out and "no strategy is feasible" in err

    def test_prices_shards_and_inactive_state(self, ask: Callable[..., dict[str, Any]]) -> None:
        plain = ask(*PAPER)
        priced = ask(*PAPER, "--price", "storage=2,cpu=1,memory=0.5")
        rows = {row["strategy"]: row for row in priced["strategies"]}
        for row in rows.values():
            parts = row["cost_factor"] + 2 * row["storage_factor"] + row["cpu_factor"] + 0.5 * row["memory_factor"]
            assert row["total_factor"] == pytest.approx(parts / 4.5)
        sharded = ask(*PAPER, "--shards", "8")
        assert sharded["strategies"] != plain["strategies"]
        cached = ask(*PAPER, "--inactive", "0.9", "--inactive-traffic", "0.1,0.1")
        memory = {row["strategy"]: row["memory_factor"] for row in cached["strategies"]}
        assert memory["periodic"] == pytest.approx(0.1)

    def test_sweep(self, ask: Callable[..., dict[str, Any]], call: Call, tmp_path: Path) -> None:
        options = ("--lossless", "--max-recovery-factor", "200", "--sweep", "sla=0.9..0.99999", "--points", "9")
        answer = ask(*PAPER, *options)
        assert len(answer["values"]) == len(answer["best"]) == 9
        (change,) = answer["crossovers"]
        assert (change["before"], change["after"]) == ("replay-lossless", "active-periodic")
        assert change["at"] == pytest.approx(0.999832, abs=1e-6)
        code, out, _ = call(*PAPER, *options, "--plot", str(tmp_path / "sla.html"))
        assert code == 0 and "sla 0.999832: replay-lossless -> active-periodic" in out
        assert (tmp_path / "sla.html").stat().st_size > 5000

    @pytest.mark.parametrize("vary", ["window=1m..1000d", "checkpoint=1m..1000d", "mtbf=1d..1000d", "nodes=2..6"])
    def test_other_sweeps(self, ask: Callable[..., dict[str, Any]], call: Call, vary: str) -> None:
        assert ask(*PAPER, "--sweep", vary, "--points", "5")["sweep"] == vary.partition("=")[0]
        assert call(*PAPER, "--sweep", vary, "--points", "5")[0] == 0

    def test_what_is_swept_need_not_be_given(self, ask: Callable[..., dict[str, Any]]) -> None:
        assert ask("advise", "--sweep", "checkpoint=1m..1d", "--points", "3")["assumed"].keys() == {"sla", "mtbf"}

    def test_progress(self, ask: Callable[..., dict[str, Any]], call: Call, tmp_path: Path) -> None:
        file = tmp_path / "progress.json"
        state = {"memoryUsedBytes": 40_000_000}
        file.write_text(json.dumps({"numInputRows": 9, "inputRowsPerSecond": 1000.0, "stateOperators": [state]}))
        answer = ask("advise", "--progress", str(file), "--row-bytes", "200B", "--sla", "0.999", "--mtbf", "30d")
        plain = ask("advise", "--checkpoint", "200s", "--sla", "0.999", "--mtbf", "30d")
        assert answer["strategies"] == plain["strategies"]
        assert {"rate", "state", "checkpoint"} <= set(answer["derived"]) and answer["assumed"] == {}
        code, out, _ = call("advise", "--progress", str(file))
        assert code == 0 and "derived  rate: 1000 rows/s" in out and "assumed  row size: 100 bytes" in out

    def test_pipeline(self, ask: Callable[..., dict[str, Any]], call: Call, tmp_path: Path) -> None:
        file = tmp_path / "stages.yaml"
        file.write_text(
            "sla: 0.999\nmtbf: 30d\nstages:\n"
            "  - {name: parse, window: 10m, rate: 50MB/s}\n"
            "  - {name: join, checkpoint: 20GiB, rate: 30MB/s, shards: 4}\n"
        )
        answer = ask("advise", "--pipeline", str(file), "--max-recovery-factor", "10")
        assert [stage["name"] for stage in answer["stages"]] == ["parse", "join"]
        assert sum(stage["share"] for stage in answer["stages"]) == pytest.approx(1.0)
        assert all(stage["best"] for stage in answer["stages"])
        code, out, _ = call("advise", "--pipeline", str(file), "--sla", "99%")
        assert code == 0 and "join" in out and "cost" in out

    def test_a_pipeline_without_a_way(self, call: Call, tmp_path: Path) -> None:
        file = tmp_path / "stages.json"
        file.write_text(json.dumps({"sla": 0.99999, "stages": [{"name": "a", "checkpoint": "100d", "mtbf": "1d"}]}))
        code, out, err = call("advise", "--pipeline", str(file), "--max-recovery-factor", "1.1")
        assert code == 1 and out == "" and "stage a: no strategy is feasible" in err

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--sla", "1.5"), "--sla must be between 0 and 1 (0.999 for three nines), got 1.5"),
            (("--sla", "0"), "--sla must be"),
            (("--sla", "most"), "--sla: expected a number, got 'most'"),
            (("--window", "0s"), "--window: must be more than 0"),
            (("--window", "-5m"), "--window: must be more than 0"),
            (("--mtbf", "a month"), "--mtbf: expected a duration"),
            (("--checkpoint", "2GiB"), "--checkpoint: a size such as 2GiB needs the input rate too"),
            (("--checkpoint", "2GiB", "--rate", "fast"), "--rate: expected a rate"),
            (("--storage-copies", "0"), "--storage-copies must be at least 1, got 0"),
            (("--shards", "0"), "--shards must be at least 1, got 0"),
            (("--max-nodes", "0"), "--max-nodes must be from 1 to 100, got 0"),
            (("--max-recovery-factor", "-1"), "--max-recovery-factor must be more than 0"),
            (("--period", "0s"), "--period: must be more than 0"),
            (("--price", "gold=3"), "--price: expected storage=NUMBER"),
            (("--price", "cpu=-3"), "--price: price of cpu"),
            (("--inactive", "1"), "--inactive: inactive share"),
            (("--inactive-local",), "go with --inactive"),
            (("--inactive", "0.5", "--inactive-traffic", "1"), "--inactive-traffic: expected two factors"),
            (("--durability", "1"), "--durability must be between 0 and 1"),
            (("--sweep", "sla"), "--sweep: expected PARAMETER=FROM..TO"),
            (("--sweep", "colour=1..2"), "--sweep: expected PARAMETER=FROM..TO"),
            (("--sweep", "sla=0.9..2"), "sweep sla: both ends must be between 0 and 1"),
            (("--sweep", "window=1..2"), "--sweep window: expected a duration"),
            (("--sweep", "sla=0.9..0.99", "--points", "1"), "at least 2 points"),
            (("--plot", "x.png"), "--plot: draws a sweep"),
            (("--plot", "x.gif", "--sweep", "sla=0.9..0.99"), "--plot x.gif: must end in"),
            (("--progress", "missing.json"), "--progress: gives rate and checkpoint itself"),
            (("--row-bytes", "1B"), "--row-bytes: goes with --progress"),
            (("--pipeline", "stages.yaml"), "--pipeline: describes its stages itself"),
        ],
    )
    def test_bad_input(self, refused: Callable[..., str], options: tuple[str, ...], said: str) -> None:
        assert said in refused(*PAPER, *options)

    def test_bad_files(self, refused: Callable[..., str], tmp_path: Path) -> None:
        file = tmp_path / "f.json"
        assert "No such file" in refused("advise", "--progress", str(file))
        assert "cannot be read" in refused("advise", "--pipeline", str(file), "--sla", "0.9")
        for content, said in (
            ("{", "neither JSON nor YAML"),
            ("[]", "a pipeline"),
            ('{"stages": [{"name": "a", "windows": "1d"}]}', "stages.0.windows"),
            ('{"stages": [{"name": "a", "window": "1d"}]}', "stage a: mtbf is missing"),
            ('{"mtbf": "1d", "stages": [{"name": "a", "window": "1"}]}', "stage a: window: expected a duration"),
            ('{"mtbf": "1d", "stages": [{"name": "a", "shards": 0}]}', "stage a: shards must be at least 1"),
            ('{"mtbf": "1d", "stages": [{"name": "a"}, {"name": "a"}]}', "every name may occur once"),
            ('{"mtbf": "1d", "stages": [{"name": "a", "rate": "1MB/s"}, {"name": "b"}]}', "for all or for none"),
            ('{"mtbf": "1d", "stages": []}', "at least one stage"),
        ):
            file.write_text(content)
            assert said in refused("advise", "--pipeline", str(file), "--sla", "0.9")
        file.write_text('{"mtbf": "1d", "stages": [{"name": "a", "window": "1h"}]}')
        assert "--sla: is needed" in refused("advise", "--pipeline", str(file))
        assert "nothing to compare" in refused("advise", "--sla", "0.9")
        assert "--rate: goes with --checkpoint" in refused("advise", "--window", "1d", "--rate", "1MB/s")


class TestEmulate:
    SOME = ("emulate", "--window", "1h", "--checkpoint", "10m", "--sla", "0.999", "--mtbf", "30d", "--precision", "0.1")

    def test_each_strategy_with_an_interval(self, ask: Callable[..., dict[str, Any]]) -> None:
        answer = ask(*self.SOME, "--max-nodes", "3", "--max-failures", "600000")
        assert answer["target"] == pytest.approx(0.999) and answer["skipped"] == []
        assert {row["strategy"] for row in answer["emulations"]} == set(STRATEGIES)
        for row in answer["emulations"]:
            assert row["low"] <= row["uptime"] <= row["high"]
            assert row["uptime"] >= 0.999 - 0.0001 and row["failures"] >= 262_144

    def test_to_read(self, call: Call) -> None:
        code, out, _ = call(*self.SOME, "--strategy", "periodic", "--strategy", "replay", "--max-recovery-factor", "2")
        assert code == 0 and "target 0.999" in out and "+-" in out
        assert "periodic: needs at least" in out

    def test_bad_input(self, refused: Callable[..., str], call: Call) -> None:
        assert "--strategy: no strategy 'hope'" in refused(*self.SOME, "--strategy", "hope")
        assert "--precision must be between" in refused(*self.SOME, "--precision", "2")
        assert "--max-failures must be at least" in refused(*self.SOME, "--max-failures", "2")
        code, out, err = call(*self.SOME, "--strategy", "periodic", "--max-recovery-factor", "2")
        assert code == 1 and out == "" and err.startswith("holdfast: nothing to emulate: periodic needs at least")
