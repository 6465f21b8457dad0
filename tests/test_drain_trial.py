"""Drained nodes on trial, with the real shell and a scontrol of files. A real Slurm is in test_drain_sandbox.py."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.drain import Trial, trial
from pytest_gpucluster.errors import SlurmError
from pytest_gpucluster.slurm.inventory import NodeInfo
from pytest_gpucluster.transport import LocalTransport

if TYPE_CHECKING:
    from pathlib import Path

OURS = "gpucluster:gpu.count 7<8 GPUs run=old"
# NODE.state and NODE.reason are the node; `broken` makes every command fail that many times
SCONTROL = """#!/bin/sh
cd "$WORLD" || exit 1
echo "$*" >>ran
if [ "$1" = show ]; then node=$4; else node=${2#NodeName=}; fi
n=$(cat "$node.broken" 2>/dev/null || echo 0)
if [ "$n" -gt 0 ]; then echo $((n - 1)) >"$node.broken"; exit 1; fi
if [ "$1" = show ]; then
  echo "NodeName=$node Arch=x86_64 State=$(cat "$node.state") Reason=$(cat "$node.reason") [root@2026-11-21T08:53:55]"
  exit 0
fi
[ -e "$node.refused" ] && exit 1
case "$3" in
  State=UNDRAIN) echo IDLE >"$node.state"; : >"$node.reason" ;;
  State=DRAIN) echo IDLE+DRAIN >"$node.state"; echo "${4#Reason=}" >"$node.reason" ;;
esac
"""


class World:
    """A Slurm of files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.transport = LocalTransport({"WORLD": str(folder), "PATH": f"{folder}/bin:{os.environ['PATH']}"})
        self.env: dict[str, str | None] = {}
        self.silent: set[str] = set()  # not heard yet
        self.refreshed = 0
        (folder / "bin").mkdir()
        for name, text in (("scontrol", SCONTROL), ("sleep", "#!/bin/sh\n")):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "ran").write_text("")

    def put(self, node: str, state: str = "IDLE+DRAIN", reason: str = OURS) -> None:
        (self.folder / f"{node}.state").write_text(f"{state}\n")
        (self.folder / f"{node}.reason").write_text(f"{reason}\n")

    def told(self, node: str) -> tuple[str, str]:
        return tuple((self.folder / f"{node}.{what}").read_text().strip() for what in ("state", "reason"))  # type: ignore[return-value] # two

    def mark(self, node: str, what: str, text: str = "") -> None:
        (self.folder / f"{node}.{what}").write_text(text)

    @property
    def ran(self) -> list[str]:
        return (self.folder / "ran").read_text().splitlines()

    def refresh(self) -> None:
        self.refreshed += 1

    def nodes(self) -> dict[str, NodeInfo]:
        found = {}
        for path in self.folder.glob("*.state"):
            state, reason = self.told(path.stem)
            base, *flags = state.split("+")
            quiet = ["NOT_RESPONDING"] if path.stem in self.silent and "DRAIN" not in flags else []
            found[path.stem] = NodeInfo(path.stem, base, frozenset([*flags, *quiet]), reason=reason)
        return found


class Log(list[dict[str, Any]]):
    def write(self, event: str, **fields: Any) -> None:
        self.append({"event": event, **fields})


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for node in ("gpu01", "gpu02"):
        made.put(node)
    return made


def a_trial(world: World, *nodes: str, lock: Path | None = None) -> tuple[Trial, Log]:
    log = Log()
    reasons = dict.fromkeys(nodes or ("gpu01", "gpu02"), OURS)
    return Trial(world, reasons, log.write, lock), log  # type: ignore[arg-type] # what it needs of a client


def test_what_is_kept_stays_and_the_others_are_drained_again_with_their_reason(world: World) -> None:
    run, log = a_trial(world, lock=world.folder / "x.lock")
    assert list(run.running) == []
    run.begin()
    assert list(run.running) == ["gpu01", "gpu02"]
    assert {world.told(node) for node in run.running} == {("IDLE", "")}
    run.keep("gpu02")
    assert list(run.running) == ["gpu01"]
    run.end()
    assert (world.told("gpu01"), world.told("gpu02")) == (("IDLE+DRAIN", OURS), ("IDLE", ""))
    assert (run.refused, run.ended) == ({}, {"gpu01": "drained"})
    assert list(run.running) == []
    undrain = [
        {
            "event": "node_intent",
            "node": node,
            "command": f"scontrol update NodeName={node} State=UNDRAIN",
            "why": "on trial inside the reservation",
            "state": "IDLE+DRAIN",
            "reason": OURS,
        }
        for node in ("gpu01", "gpu02")
    ]
    assert log == [
        *undrain,
        {"event": "node_result", "node": "gpu01", "result": "undrained"},
        {"event": "node_result", "node": "gpu02", "result": "undrained"},
        {
            "event": "node_intent",
            "node": "gpu01",
            "command": f"scontrol update NodeName=gpu01 State=DRAIN 'Reason={OURS}'",
            "why": "back to drained after its trial",
        },
        {"event": "node_result", "node": "gpu01", "result": "drained", "problem": ""},
    ]
    assert world.transport.started["scontrol"] == 2
    before = world.ran
    run.end()  # again is harmless
    assert (world.ran, len(log)) == (before, 6)


def test_the_first_node_is_kept_while_the_shell_drains_the_second_one(world: World) -> None:
    run, _ = a_trial(world)
    run.begin()
    run.keep("gpu01")
    run.end()  # the shell takes them in order: with gpu02 drained it is done with gpu01
    assert (world.told("gpu01"), world.told("gpu02")) == (("IDLE", ""), ("IDLE+DRAIN", OURS))


def test_the_shell_has_the_environment_of_slurm_and_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (trial.BEGIN_WITHIN, trial.END_WITHIN) == (60.0, 30.0)
    world.env = {"SLURM_CONF": "/etc/other.conf"}
    spawn, seen = world.transport.spawn, []

    def noted(argv: Any, **options: Any) -> Any:
        seen.append(options)
        return spawn(argv, **options)

    monkeypatch.setattr(world.transport, "spawn", noted)
    run, _ = a_trial(world, "gpu01")
    run.begin()
    run.end()
    assert seen == [{"env": {"SLURM_CONF": "/etc/other.conf"}}]


def test_a_node_that_has_changed_since_is_left_alone(world: World) -> None:
    world.put("gpu01", reason="bob: bad cable")
    run, log = a_trial(world, "gpu01", "gpu09")
    run.begin()
    why = 'its reason is another one now: "bob: bad cable"'
    assert run.refused == {"gpu01": why, "gpu09": "Slurm does not know this node"}
    assert log[0] == {"event": "trial_refused", "node": "gpu01", "why": why}
    assert [event["event"] for event in log] == ["trial_refused"] * 2
    assert run.running == ()
    assert world.ran == []
    run.end()
    assert len(log) == 2


def test_a_node_that_slurm_does_not_undrain_is_refused_and_stays_as_it_was(world: World) -> None:
    world.mark("gpu01", "refused")
    run, log = a_trial(world)
    run.begin()
    assert run.refused == {"gpu01": "it could not be undrained (refused): are you Slurm's administrator?"}
    assert [event.get("result") for event in log] == [None, None, "refused", "undrained"]
    run.end()
    assert run.ended == {"gpu01": "left", "gpu02": "drained"}
    told = {event["node"]: event["problem"] for event in log if "problem" in event}
    assert told == {
        "gpu01": "somebody drained it meanwhile, or it never was undrained: its reason stays",
        "gpu02": "",
    }


def test_a_node_that_somebody_drained_meanwhile_keeps_that_reason(world: World) -> None:
    run, _ = a_trial(world, "gpu01")
    run.begin()
    world.put("gpu01", "ALLOCATED+DRAIN", "bob: bad cable")
    run.end()
    assert world.told("gpu01") == ("ALLOCATED+DRAIN", "bob: bad cable")
    assert run.ended == {"gpu01": "left"}


def test_a_controller_that_is_away_is_tried_again(world: World) -> None:
    run, _ = a_trial(world, "gpu01")
    run.begin()
    world.mark("gpu01", "broken", "3")
    run.end()
    assert world.told("gpu01") == ("IDLE+DRAIN", OURS)
    assert run.ended == {"gpu01": "drained"}


def test_a_controller_that_stays_away_loses_the_node_in_the_end(world: World) -> None:
    run, log = a_trial(world, "gpu01")
    run.begin()
    world.mark("gpu01", "broken", "1000")
    run.end()
    assert run.ended == {"gpu01": "lost"}
    assert log[-1]["problem"] == "the controller did not take it for 10 minutes: drain it by hand"
    assert sum(line.startswith("show node") for line in world.ran) == 200


def test_an_answer_that_does_not_come_is_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run, log = a_trial(world, "gpu01")
    run.begin()
    world.mark("gpu01", "broken", "1000")
    monkeypatch.setattr(trial, "END_WITHIN", 0.0)
    run.end()
    assert run.ended == {"gpu01": "unknown"}
    assert log[-1] == {
        "event": "node_result",
        "node": "gpu01",
        "result": "unknown",
        "problem": "the controller has not answered yet; it is tried for 10 minutes",
    }


def test_a_shell_that_says_nothing_in_time_refuses_the_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "BEGIN_WITHIN", 0.0)
    run, _ = a_trial(world, "gpu01")
    run.begin()
    assert run.refused == {"gpu01": "it could not be undrained (unknown): are you Slurm's administrator?"}
    run.end()


def test_an_undrained_node_is_waited_for_until_it_is_heard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            world.silent.clear()

    monkeypatch.setattr("pytest_gpucluster.drain.trial.time.sleep", sleep)
    world.silent.add("gpu02")
    run, _ = a_trial(world)
    run.begin()
    assert slept == [0.5, 0.5]
    assert run.refused == {}
    run.end()


def test_a_node_that_is_never_heard_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "pytest_gpucluster.drain.trial.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    real = time.monotonic
    monkeypatch.setattr("pytest_gpucluster.drain.trial.time.monotonic", lambda: real() + now[0])
    monkeypatch.setattr(trial, "BEGIN_WITHIN", 30.0)
    world.silent.add("gpu01")
    run, _ = a_trial(world)
    run.begin()
    assert run.refused == {"gpu01": "it is not heard by Slurm after it was undrained"}
    assert now[0] >= 29
    run.end()
    assert run.ended == {"gpu01": "drained", "gpu02": "drained"}


def test_a_controller_that_does_not_answer_while_a_node_is_waited_for_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = world.nodes, [0]

    def nodes() -> dict[str, NodeInfo]:
        calls[0] += 1
        if calls[0] == 2:
            raise SlurmError("no controller")
        return real()

    monkeypatch.setattr(world, "nodes", nodes)
    monkeypatch.setattr("pytest_gpucluster.drain.trial.time.sleep", lambda _seconds: None)
    run, _ = a_trial(world, "gpu01")
    run.begin()
    assert (calls[0], run.refused, world.refreshed) == (3, {}, 3)
    run.end()


def test_the_pipe_drains_every_node_again_however_the_run_dies(world: World) -> None:
    run, _ = a_trial(world)
    run.begin()
    shell = run._shell
    assert shell is not None
    assert shell.stdin is not None
    shell.stdin.close()  # as the kernel does where we are killed
    deadline = time.monotonic() + 30
    while world.told("gpu02")[0] != "IDLE+DRAIN" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {world.told(node) for node in ("gpu01", "gpu02")} == {("IDLE+DRAIN", OURS)}
    run.end()


def test_a_shell_that_was_killed_is_no_crash(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "END_WITHIN", 0.0)
    run, _ = a_trial(world)
    run.begin()
    shell: Any = run._shell
    shell.kill()
    shell.wait()
    run.keep("gpu02")
    assert run.running == ("gpu01",)
    run.end()
    assert run.ended == {"gpu01": "unknown"}


def test_the_shell_survives_the_signals_of_a_terminal(world: World) -> None:
    run, _ = a_trial(world, "gpu01")
    run.begin()
    shell: Any = run._shell
    for number in (1, 2, 15, 13):
        os.kill(shell.pid, number)
    time.sleep(0.05)
    assert shell.poll() is None
    run.end()
    assert world.told("gpu01") == ("IDLE+DRAIN", OURS)


def test_a_hostile_reason_is_one_word_to_the_shell(world: World) -> None:
    hostile = "gpucluster:gpu.count 7<8 $(touch pwned) ; touch pwned run=old"
    world.put("gpu01", reason=hostile)
    log = Log()
    run = Trial(world, {"gpu01": hostile}, log.write, None)  # type: ignore[arg-type] # as above
    run.begin()
    run.end()
    assert world.told("gpu01") == ("IDLE+DRAIN", hostile)
    assert not (world.folder / "pwned").exists()
