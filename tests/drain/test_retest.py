"""Drained nodes on trial, with the real shell and a scontrol of files. A real Slurm is in tests/system/test_drain.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from drain.test_executor import Log
from sandbox_helpers import wait_for

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, parse_state
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import GpuClusterError, SlurmError
from pytest_gpucluster.drain import Retest, retest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

OURS = "gpucluster:gpu.count 7<8 GPUs run=old"
DRAIN = ("scontrol", "update", "NodeName=gpu01", "State=DRAIN", f"Reason={OURS}")
TYPED = f"scontrol update NodeName=gpu01 State=DRAIN 'Reason={OURS}'"
BOB = ("IDLE+DRAIN", "bob: bad cable")


# NODE.state and NODE.reason are the node; `broken` makes every command fail that many times, `away` all
SCONTROL = """#!/bin/sh
cd "$WORLD" || exit 1
echo "$*" >>ran
if [ "$1" = show ]; then node=$4; else node=${2#NodeName=}; fi
[ -e "$node.away" ] && exit 1
n=0; [ -e "$node.broken" ] && n=$(cat "$node.broken")
if [ "$n" -gt 0 ]; then echo $((n - 1)) >"$node.broken"; exit 1; fi
if [ "$1" = show ]; then
  read -r state <"$node.state"; read -r reason <"$node.reason"
  echo "NodeName=$node Arch=x86_64 State=$state CPUs=8${reason:+ Reason=$reason [root@2026-11-21T08:53:55]} Comment=a Reason=b"
  exit 0
fi
[ -e "$node.refused" ] && exit 1
[ -e "$node.kills" ] && { rm "$node.kills"; kill -9 $PPID; }
case "$3" in
  State=UNDRAIN) echo IDLE >"$node.state"; echo >"$node.reason" ;;
  State=DRAIN) echo IDLE+DRAIN >"$node.state"; echo "${4#Reason=}" >"$node.reason" ;;
esac
"""


class Transport(LocalTransport):
    def spawn(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        self.shell = super().spawn(argv, **options)
        return self.shell


class World:
    """A Slurm of files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.transport = Transport({"WORLD": str(folder), "PATH": f"{folder}/bin:{os.environ['PATH']}"})
        self.env: dict[str, str | None] = {}
        self.silent: set[str] = set()  # not heard yet
        self.refreshed = 0
        self.retry_for = 5.0
        self.away = ""  # why the controller does not answer us
        self.ours: list[tuple[str, ...]] = []  # what the run itself has had scontrol do
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

    def run(self, *argv: str) -> str:
        if self.away:
            raise SlurmError(self.away)
        self.ours.append(argv)
        node = argv[2].removeprefix("NodeName=")
        if (self.folder / f"{node}.refused").exists():
            raise SlurmError("scontrol: refused")
        self.put(node, "IDLE+DRAIN", argv[4].removeprefix("Reason="))
        return ""

    def nodes(self) -> dict[str, NodeInfo]:
        if self.away:
            raise SlurmError(self.away)
        found = {}
        for path in self.folder.glob("*.state"):
            state, reason = self.told(path.stem)
            base, flags = parse_state(state)
            quiet = ["NOT_RESPONDING"] if path.stem in self.silent and "DRAIN" not in flags else []
            found[path.stem] = NodeInfo(path.stem, base, frozenset([*flags, *quiet]), reason=reason)
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for node in ("gpu01", "gpu02"):
        made.put(node)
    return made


def hold(world: World) -> Path:
    """Let scontrol wait for as long as the returned file is there."""
    held = world.folder / "held"
    held.touch()
    waits = f"#!/bin/sh\nwhile [ -e {held} ]; do /bin/sleep 0.05; done\n"
    (world.folder / "bin" / "scontrol").write_text(waits + SCONTROL.removeprefix("#!/bin/sh\n"))
    return held


def a_retest(world: Any, *nodes: str, lock: str = "x.lock", reason: str = OURS) -> tuple[Retest, Log]:
    log = Log()
    reasons = dict.fromkeys(nodes or ("gpu01", "gpu02"), reason)
    return Retest(world, reasons, log.write, world.folder / lock), log


def begun(world: Any, *nodes: str, lock: str = "x.lock", reason: str = OURS) -> tuple[Retest, Log]:
    run, log = a_retest(world, *nodes, lock=lock, reason=reason)
    run.begin()
    return run, log


def test_what_is_kept_stays_and_the_others_are_drained_again_with_their_reason(world: World) -> None:
    world.env = {"SLURM_CONF": "/etc/other.conf"}
    run, log = a_retest(world)
    assert list(run.running) == []
    run.begin()
    assert list(run.running) == ["gpu01", "gpu02"]
    assert {thread.daemon for thread in threading.enumerate() if thread.name == "trial"} == {True}
    assert {world.told(node) for node in run.running} == {("IDLE", "")}
    assert run.keep("gpu02")
    assert (list(run.running), run.ended) == (["gpu01"], {})
    assert run.end() == []
    assert world.transport.shell.wait(30) == 0
    assert (world.told("gpu01"), world.told("gpu02")) == (("IDLE+DRAIN", OURS), ("IDLE", ""))
    assert (run.refused, run.ended) == ({}, {"gpu01": "drained", "gpu02": "resumed"})
    assert (world.ours, list(run.running)) == ([], [])
    assert [" ".join((event["event"], event["node"], event.get("result", ""))) for event in log] == [
        *("node_intent gpu01 ", "node_intent gpu02 "),
        *("node_result gpu01 undrained", "node_result gpu02 undrained"),
        *("node_intent gpu01 ", "node_result gpu01 drained", "node_result gpu02 resumed"),
    ]
    undrain = "scontrol update NodeName=gpu01 State=UNDRAIN"
    assert (log[0]["command"], log[0]["state"], log[0]["reason"]) == (undrain, "IDLE+DRAIN", OURS)
    assert (log[4]["command"], bool(log[4]["why"])) == (TYPED, True)
    assert [log[5][key] for key in ("problem", "state", "reason")] == ["", "IDLE+DRAIN", OURS]
    assert world.transport.started["scontrol"] == 2
    before = world.ran
    assert run.end() == []  # again is harmless
    assert (world.ran, len(log)) == (before, 7)


def test_a_node_that_slurm_does_not_undrain_is_refused_and_stays_as_it_was(world: World) -> None:
    world.mark("gpu01", "refused")
    run, log = begun(world)
    assert "are you Slurm's administrator?" in run.refused.pop("gpu01")
    assert (run.refused, [event.get("result") for event in log[2:]]) == ({}, ["refused", "undrained"])
    assert run.end() == []
    assert run.ended == {"gpu01": "drained", "gpu02": "drained"}


@pytest.mark.parametrize(
    ("change", "result", "why"),
    [
        (("IDLE", ""), "changed", "another user changed it"),
        (BOB, "changed", "another user changed it"),
        (("IDLE", "broken"), "unread", "its state could not be read"),
    ],
)
def test_a_node_that_changes_directly_before_its_trial_is_not_on_trial_and_the_shell_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], result: str, why: str
) -> None:
    before = world.nodes()
    world.put("gpu01", *change)
    if result == "unread":
        world.mark("gpu01", "broken", "1")
    run, log = a_retest(world, "gpu01")
    monkeypatch.setattr(world, "nodes", lambda: before)
    run.begin()
    assert run.refused["gpu01"].startswith(f"{why} directly before its trial")
    assert (run.running, run.end()) == ((), [])
    assert log[-1] == {"event": "node_result", "node": "gpu01", "result": result}
    assert world.transport.shell.wait(30) == 0
    assert world.told("gpu01") == change


def test_without_a_lock_no_node_goes_on_trial(world: World) -> None:
    (world.folder / "file").touch()
    run, log = begun(world, lock="file/x.lock")
    assert all("no node is changed" in why for why in run.refused.values())
    assert list(run.refused) == [event["node"] for event in log] == ["gpu01", "gpu02"]
    assert (run.end(), world.ran, world.ours) == ([], [], [])


@pytest.mark.parametrize("state", ["DOWN", "IDLE+DRAIN"])
def test_what_a_person_sets_during_a_trial_stands_though_the_node_passed(world: World, state: str) -> None:
    run, _ = begun(world, "gpu01")
    assert run.keep("gpu01")
    world.put("gpu01", state, "bob: bad cable")
    assert (run.end(), run.ended) == ([], {"gpu01": "left"})
    assert run.left["gpu01"].endswith(': "bob: bad cable"')
    assert world.told("gpu01") == (state, "bob: bad cable")


def signals(world: World) -> None:
    for number in (1, 2, 15, 13):
        os.kill(world.transport.shell.pid, number)


ADDED = ("DOWN+DRAIN", f"{OURS} : Not responding")
END: dict[str, tuple[Callable[[World], object], list[Any], tuple[str, str]]] = {
    "signals of a terminal": (signals, [], ("IDLE+DRAIN", OURS)),
    "the controller is away": (lambda it: it.mark("gpu01", "broken", "3"), [], ("IDLE+DRAIN", OURS)),
    "it is away for good": (lambda it: it.mark("gpu01", "broken", "200"), [DRAIN], ("IDLE+DRAIN", OURS)),
    "text that Slurm adds": (lambda it: it.put("gpu01", *ADDED), [], ADDED),
}


@pytest.mark.parametrize("what", END)
def test_the_shell_drains_the_node_and_else_the_run(world: World, what: str) -> None:
    act, by_the_run, told = END[what]
    run, _ = begun(world, "gpu01")
    act(world)
    assert (run.end(), run.ended, world.ours) == ([], {"gpu01": "drained"}, by_the_run)
    assert world.told("gpu01") == told
    if by_the_run:
        assert sum(line.startswith("show node") for line in world.ran) == 1 + 200


# --- the shell is gone, hangs, or cannot do it: the run does it, or says that it is not done


def killed(world: World, run: Retest, *nodes: str) -> None:
    world.transport.shell.kill()
    world.transport.shell.wait()
    settled(run, *nodes)


def settled(run: Retest, *nodes: str) -> None:
    wait_for(lambda: set(nodes) <= run.ended.keys(), "the nodes are settled")


def test_when_the_shell_is_killed_the_run_drains_its_nodes_at_once(world: World) -> None:
    run, log = begun(world)
    killed(world, run, "gpu01", "gpu02")
    assert {world.told(node) for node in ("gpu01", "gpu02")} == {("IDLE+DRAIN", OURS)}
    assert (run.ended, run.running) == ({"gpu01": "drained", "gpu02": "drained"}, ())
    assert (log[4]["event"], log[4]["command"]) == ("node_intent", TYPED)
    assert (log[5]["result"], log[5]["state"], log[5]["reason"]) == ("drained", "IDLE+DRAIN", OURS)
    assert world.ours[0] == DRAIN
    assert world.retry_for == 30.0  # nobody else tries
    assert run.end() == []
    assert (len(log), len(world.ours)) == (8, 2)


def test_when_the_shell_is_killed_while_it_undrains_its_nodes_are_not_on_trial(world: World) -> None:
    nodes = ("gpu01", "gpu02", "gpu03")
    world.mark("gpu02", "kills")
    world.put("gpu03")
    run, log = begun(world, *nodes)
    settled(run, *nodes)
    assert list(run.refused) == [*nodes]
    assert all(why.startswith("it was not undrained in time: ") for why in run.refused.values())
    undrained = [event["result"] for event in log if event["event"] == "node_result" and "state" not in event]
    assert undrained == ["undrained", "unknown", "unknown"]
    assert run.ended == dict.fromkeys(nodes, "drained")
    assert {world.told(node) for node in nodes} == {("IDLE+DRAIN", OURS)}
    assert run.end() == []


def test_nothing_is_kept_once_the_shell_is_gone(world: World) -> None:
    run, _ = begun(world, "gpu01")
    with run._news:  # nobody has noticed yet
        killed(world, run)
        assert not run.keep("gpu01")
        assert run.ended == {"gpu01": "drained"}
    assert world.told("gpu01") == ("IDLE+DRAIN", OURS)
    settled(run, "gpu01")
    assert not run.keep("gpu01")
    assert (run.end(), world.ours) == ([], [DRAIN])


def test_a_shell_that_hangs_is_killed_and_the_run_acts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retest, "END_WITHIN", 0.2)
    run, _ = begun(world, "gpu01")
    os.kill(world.transport.shell.pid, signal.SIGSTOP)
    assert run.end() == []
    assert world.transport.shell.poll() == -signal.SIGKILL  # it would act once it goes on
    assert (run.ended, world.ours) == ({"gpu01": "drained"}, [DRAIN])
    assert world.told("gpu01") == ("IDLE+DRAIN", OURS)
    assert world.retry_for == 5.0


def test_a_shell_that_hangs_at_first_is_killed_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEGIN_WITHIN", "END_WITHIN"):
        monkeypatch.setattr(retest, name, 0.0)
    held = hold(world)
    run, _ = begun(world, "gpu01")
    assert run.refused["gpu01"].startswith("it was not undrained in time: ")
    assert run.end() == []
    # else it would undrain the node after the run, outside the reservation
    assert world.transport.shell.wait(30) == -signal.SIGKILL
    held.unlink()
    assert (run.ended, world.ours) == ({"gpu01": "drained"}, [])
    assert world.told("gpu01") == ("IDLE+DRAIN", OURS)


@pytest.mark.parametrize("gone", [True, False])
def test_a_node_that_is_not_drained_again_is_reported_with_the_command(world: World, *, gone: bool) -> None:
    run, log = begun(world, "gpu01")
    world.mark("gpu01", "refused")
    if gone:
        killed(world, run, "gpu01")
    (problem,) = run.end()
    assert problem == f"gpu01: could not be drained again after its trial (scontrol: refused); run: {TYPED}"
    assert run.ended == {"gpu01": "failed"}
    assert [log[-1][key] for key in ("result", "problem", "state")] == ["failed", "scontrol: refused", "IDLE"]
    assert run.end() == []


@pytest.mark.parametrize("gone", [True, False])
def test_without_a_controller_nothing_is_known(world: World, monkeypatch: pytest.MonkeyPatch, *, gone: bool) -> None:
    monkeypatch.setattr(retest, "END_WITHIN", 0.0)
    # a real pause: else the shell's tries may be over before this test goes on
    (world.folder / "bin" / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")
    run, log = begun(world, "gpu01")
    world.away = "no controller"
    world.mark("gpu01", "away")
    if gone:
        killed(world, run, "gpu01")
    (problem,) = run.end()
    assert "is drained again after its trial is not known (no controller)" in problem
    assert problem.endswith(TYPED)
    assert ("a shell tries" in problem) is not gone
    assert run.ended == {"gpu01": "unknown"}
    assert [log[-1][key] for key in ("result", "problem", "state", "reason")] == [
        *("unknown", "no controller", None, None)
    ]
    if not gone:
        assert world.transport.shell.poll() is None  # it takes the node once the controller is back
        (world.folder / "gpu01.away").unlink()
        assert world.transport.shell.wait(30) == 0
        assert world.told("gpu01") == ("IDLE+DRAIN", OURS)


def test_the_word_of_the_shell_counts_where_the_run_cannot_read(world: World) -> None:
    run, log = begun(world)
    world.put("gpu02", *BOB)
    world.away = "no controller"
    assert (run.end(), run.ended) == ([], {"gpu01": "drained", "gpu02": "left"})
    assert (log[-1]["state"], log[-1]["problem"]) == (None, "")


def test_a_kept_node_that_is_drained_all_the_same_is_no_success(world: World) -> None:
    run, _ = begun(world)
    assert run.keep("gpu01")
    assert run.keep("gpu02")
    world.put("gpu01")  # as a shell beyond a lost connection does
    world.put("gpu02", *BOB)
    (problem,) = run.end()
    assert problem.startswith("gpu01: could not be resumed after its trial (Slurm shows IDLE+DRAIN); run: ")
    assert (run.ended, world.ours) == ({"gpu01": "drained", "gpu02": "left"}, [])


def test_whether_a_kept_node_is_resumed_is_not_known_without_slurm(world: World) -> None:
    run, _ = begun(world, "gpu01")
    assert run.keep("gpu01")
    world.away = "no controller"
    (problem,) = run.end()
    assert "is resumed after its trial is not known (no controller): " in problem
    assert problem.endswith("run: scontrol update NodeName=gpu01 State=UNDRAIN")


def at_query(world: World, monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> list[int]:
    """Let something happen directly before the run reads the nodes for this time; return the numbers of its queries."""
    real, calls = world.nodes, [0]

    def nodes() -> dict[str, NodeInfo]:
        calls.append(calls[-1] + 1)
        if calls[-1] == number:
            act()
        return real()

    monkeypatch.setattr(world, "nodes", nodes)
    return calls


def test_who_drains_a_node_earlier_is_not_overruled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run, log = begun(world, "gpu01")
    with run._news:
        at_query(world, monkeypatch, 2, lambda: world.put("gpu01", *BOB))
        killed(world, run)
    settled(run, "gpu01")
    assert (run.end(), run.ended, world.ours) == ([], {"gpu01": "left"}, [])
    assert [event["event"] for event in log] == ["node_intent", "node_result", "node_result"]
    assert world.told("gpu01") == BOB


def test_who_resumes_a_node_later_is_not_overruled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = begun(world, "gpu01")
    at_query(world, monkeypatch, 1, lambda: world.put("gpu01", "IDLE", ""))
    (problem,) = run.end()
    assert "(Slurm shows IDLE)" in problem
    assert world.ours == []


def test_a_full_log_keeps_no_node_in_service(world: World) -> None:
    run, log = a_retest(world)

    def full(event: str, **_: Any) -> None:
        log.write(event)
        if len(log) > 4:
            raise GpuClusterError("no space left")

    run.write = full
    run.begin()
    assert run.end() == []
    assert {world.told(node) for node in ("gpu01", "gpu02")} == {("IDLE+DRAIN", OURS)}
    assert len(log) == 8


def test_an_interrupted_end_is_ended_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_args: object) -> None:
        raise KeyboardInterrupt

    run, _ = begun(world)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Condition, "wait_for", stop)
        with pytest.raises(KeyboardInterrupt):
            run.end()
    assert (run.end(), run.ended) == ([], {"gpu01": "drained", "gpu02": "drained"})


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses of the run, which pass at once by its clock."""
    pauses: list[float] = []
    real = time.monotonic
    monkeypatch.setattr("pytest_gpucluster.drain.retest.time.sleep", pauses.append)
    monkeypatch.setattr("pytest_gpucluster.drain.retest.time.monotonic", lambda: real() + sum(pauses))
    return pauses


def test_an_undrained_node_is_waited_for_until_it_is_heard(
    world: World, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise SlurmError("no controller")

    world.silent.add("gpu01")
    calls = at_query(world, monkeypatch, 2, refuse)  # it is queried again
    run, _ = a_retest(world)
    monkeypatch.setattr(world, "refresh", lambda: world.silent.clear() if len(slept) == 2 else None)
    run.begin()
    assert (slept, run.refused, calls) == ([0.5, 0.5], {}, [0, 1, 2, 3, 4][: len(calls)])
    run.end()


def test_unheard_nodes_are_refused(world: World, slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retest, "BEGIN_WITHIN", 30.0)
    world.silent.add("gpu01")
    run, _ = begun(world)
    assert run.refused == {"gpu01": "it does not respond to Slurm after it was undrained"}
    run.end()
    assert run.ended == {"gpu01": "drained", "gpu02": "drained"}


def test_a_hostile_reason_is_one_word_to_the_shell(world: World) -> None:
    hostile = "gpucluster:gpu.count 7<8 $(touch pwned) ; touch pwned run=old"
    world.put("gpu01", reason=hostile)
    begun(world, "gpu01", reason=hostile)[0].end()
    assert world.told("gpu01") == ("IDLE+DRAIN", hostile)
    assert not (world.folder / "pwned").exists()


def test_what_was_kept_stays_so_where_the_shell_is_killed_then(world: World) -> None:
    run, _ = begun(world)
    assert run.keep("gpu02")
    killed(world, run)
    assert (run.end(), run.ended) == ([], {"gpu01": "drained", "gpu02": "resumed"})
    assert (world.told("gpu01")[0], world.told("gpu02")[0]) == ("IDLE+DRAIN", "IDLE")


def test_the_pipe_drains_every_node_again_however_the_run_dies(world: World) -> None:
    run, _ = begun(world)
    assert world.transport.shell.stdin is not None
    world.transport.shell.stdin.close()  # as the kernel does where we are killed
    wait_for(lambda: world.told("gpu02") == ("IDLE+DRAIN", OURS), "gpu02 is drained again")
    assert world.told("gpu01") == ("IDLE+DRAIN", OURS)
    run.end()


def test_a_node_that_changed_before_or_is_unknown_is_not_on_trial(world: World) -> None:
    world.put("gpu01", *BOB)
    run, log = begun(world, "gpu01", "gpu09")
    assert list(run.refused) == ["gpu01", "gpu09"]
    assert "bob: bad cable" in run.refused["gpu01"]
    assert [event["event"] for event in log] == ["trial_refused"] * 2
    assert (run.running, world.ran, run.end(), len(log)) == ((), [], [], 2)
