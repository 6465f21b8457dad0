"""The fleet channel over one real agent on this machine, under each shell that is here."""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from process_helpers import counted
from sandbox_helpers import wait_for

from pytest_gpucluster.cluster.channel.channel import Fleet, new_nonce, srun_argv
from pytest_gpucluster.cluster.channel.protocol import agent_argv, request
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.sandbox import Sandbox

CANDIDATES = {"sh": ("sh",), "dash": ("dash",), "bash": ("bash", "--posix"), "busybox": ("busybox", "sh")}
# one of each: /bin/sh is a link to one of the others on most systems
FOUND = {Path(found).resolve(): name for name, argv in CANDIDATES.items() if (found := shutil.which(argv[0]))}
SHELLS = {name: CANDIDATES[name] for name in FOUND.values()}
PATIENCE = 60.0
CLOSED = "node lost: the channel is closed"
# the agent leads the process group of what it runs
AGENT = "set -- $(cat /proc/$PPID/stat); set -- $(cat /proc/$4/stat); echo $5"


@pytest.fixture(scope="module", params=SHELLS)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with Fleet.local("here", shell=SHELLS[request.param]) as channel:
        yield channel


@pytest.fixture
def own() -> Iterator[Fleet]:
    """A channel that a test may break."""
    with Fleet.local("here", ping_timeout=5.0, grace=1.0, launch_timeout=60.0) as channel:
        yield channel


def ask(fleet: Fleet, command: str, timeout: float = PATIENCE, cap: int = 1 << 20) -> Answer:
    return fleet.ask_node("here", command, timeout=timeout, cap=cap, fresh=True)


def sleeping(seconds: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"sleep\x00{seconds}".encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_agents_have_the_limits_of_slurmd_not_those_of_the_shell() -> None:
    assert "--propagate=NONE" in srun_argv(7, ("gpu01", "gpu02"), "n")


def test_commands_have_nothing_of_the_agent_and_nothing_of_each_other(fleet: Fleet) -> None:
    ask(fleet, "x=1; cd /; N=; id=; exec 3>&-; trap '' TERM")
    for command, rc, out in (
        ("", 0, b""),
        ('echo "$x$N$id"', 0, b"\n"),
        ("cat; echo end", 0, b"end\n"),
        ("ls /proc/$$/fd", 0, b"0\n1\n2\n"),
        ("exit 124", 124, b""),  # as timeout(1) ends
        ("kill -KILL $$", 128 + signal.SIGKILL, b""),
        ("kill -TERM $$", 128 + signal.SIGTERM, b""),
        ("no-such-tool-anywhere 2>/dev/null", 127, b""),
        ("echo " + "x" * 60_000, 0, b"x" * 60_000 + b"\n"),
    ):
        answer = ask(fleet, command)
        assert (answer.rc, answer.stdout, answer.problem) == (rc, out, ""), command


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200),
    out=st.binary(max_size=2000),
    err=st.binary(max_size=2000),
    rc=st.integers(0, 255),
)
def test_any_bytes_in_and_out(fleet: Fleet, text: str, out: bytes, err: bytes, rc: int) -> None:
    words = [base64.b64encode(data).decode() for data in (out, err)]
    command = f"echo {words[0]} | base64 -d; echo {words[1]} | base64 -d >&2; printf %s {shlex.quote(text)}; exit {rc}"
    answer = ask(fleet, command)
    assert (answer.rc, answer.stderr, answer.problem) == (rc, err, "")
    assert answer.stdout == out + text.encode()


def test_a_command_may_have_bytes_that_are_no_text_but_no_nul(fleet: Fleet) -> None:
    raw = b"\xff\x81\xfe"
    answer = ask(fleet, f"printf %s '{raw.decode(errors='surrogateescape')}'")
    assert answer.stdout == raw
    assert (answer.sent or 0) <= (answer.received or 0) != 0
    with pytest.raises(ValueError, match="NUL"):
        fleet.ask("echo \0")


@pytest.mark.parametrize("size", [524, 525, 526, 300_000])
def test_output_up_to_the_cap_is_whole_and_endless_output_is_cut(fleet: Fleet, size: int) -> None:
    answer = ask(fleet, f"head -c {size} /dev/zero", cap=size)
    assert (len(answer.stdout), answer.truncated, answer.rc) == (size, False, 0)
    answer = ask(fleet, "yes", cap=size)
    assert (len(answer.stdout), answer.truncated, answer.rc) == (size, True, 128 + signal.SIGPIPE)
    answer = ask(fleet, "yes >&2", cap=0)
    assert (len(answer.stderr), answer.truncated) == (0, True)


def test_a_library_that_is_preloaded_and_not_there_spoils_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task prolog with such an LD_PRELOAD: os.hostname asked for a drain, since 'ERROR:' was no name."""
    monkeypatch.setenv("LD_PRELOAD", "/nonexistent/lib.so")
    with Fleet.local("here") as channel:
        answer = ask(channel, "uname -n 2>&1")
    assert (answer.out, answer.stderr) == (f"{os.uname().nodename}\n", b"")


@pytest.mark.thorough
def test_a_command_and_its_children_end_at_its_deadline(fleet: Fleet) -> None:
    answer = ask(fleet, "sleep 62.5 & echo before; sleep 61.5", timeout=3)
    assert (answer.rc, answer.stdout, answer.problem) == (None, b"before\n", "timed out after 3 s")
    wait_for(lambda: not sleeping("61.5") and not sleeping("62.5"), "they end")
    answer = ask(fleet, "trap '' TERM; while :; do sleep 0.2; done", timeout=1)
    assert (answer.rc, answer.problem) == (None, "timed out after 1 s"), "it is deaf to SIGTERM"
    assert ask(fleet, "sleep 62.5 & echo started").stdout == b"started\n"
    wait_for(lambda: not sleeping("62.5"), "a child ends with its command")


def test_many_at_once_from_many_threads(fleet: Fleet) -> None:
    def work(number: int) -> bool:
        answer = ask(fleet, f"seq {number} {number + 400}; echo {number} >&2")
        lines = "".join(f"{n}\n" for n in range(number, number + 401))
        return (answer.out, answer.err) == (lines, f"{number}\n")

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(0, 30_000, 1000)))


def test_an_answer_is_remembered_unless_it_must_be_fresh(own: Fleet, tmp_path: Path) -> None:
    commands = [f"echo x >>{tmp_path}/{number}; wc -l <{tmp_path}/{number}" for number in range(20)]
    own.prefetch([(command, PATIENCE) for command in commands])
    for _ in range(2):
        assert {own.ask(command)["here"].out.strip() for command in commands} == {"1"}
    assert own.ask_node("here", commands[0]).out.strip() == "1"
    assert own.ask_node("here", commands[0], fresh=True).out.strip() == "2"
    with pytest.raises(ValueError, match="gpu99 is no node of this channel"):
        own.ask_node("gpu99", "true")


def held_and_next(own: Fleet, folder: Path) -> str:
    """Ask two commands ahead: one that lasts until there is a file `go`, and one that tells whether it was there."""
    held = f"cd {folder}; touch begun; until [ -e go ]; do sleep 0.05; done"
    following = f"cd {folder}; if [ -e go ]; then echo after; else echo before; fi; touch told"
    own.prefetch([(held, PATIENCE), (following, PATIENCE)])
    wait_for((folder / "begun").exists, "the first begins")
    return following


def test_a_slow_command_is_passed_by(own: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpucluster.cluster.channel.channel.AHEAD", 0.2)
    held_and_next(own, tmp_path)
    wait_for((tmp_path / "told").exists, "the second runs too")
    (tmp_path / "go").touch()


def test_agent_killed(own: Fleet) -> None:
    os.kill(int(ask(own, AGENT).out), signal.SIGKILL)
    answer = ask(own, "true")
    assert (answer.rc, list(own.lost)) == (None, ["here"])
    assert answer.problem.startswith("node lost: the agent ended (exit -9)")


@pytest.mark.thorough
def test_agent_stopped_costs_one_deadline(own: Fleet) -> None:
    os.kill(int(ask(own, AGENT).out), signal.SIGSTOP)
    assert ask(own, "true", timeout=600).problem.startswith("node lost: silent for 5 s")
    assert all(ask(own, f"echo {number}", timeout=600).rc is None for number in range(100))


@pytest.mark.thorough
@pytest.mark.parametrize("stopped", [False, True])
def test_closing_ends_what_runs_and_waits_for_a_shell_that_is_slow_to_end_it(*, stopped: bool) -> None:
    fleet = Fleet.local("here")
    agent = int(ask(fleet, AGENT).out)
    seconds = f"63.{os.getpid()}"  # no other run on this machine sleeps as long
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(fleet, f"sleep {seconds}", timeout=600)))
    waiting.start()
    (slow,) = wait_for(lambda: sleeping(seconds), "it runs")
    if stopped:
        while os.getpgid(slow) != agent:
            slow = int(Path(f"/proc/{slow}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(slow, signal.SIGSTOP)
    closing = threading.Thread(target=fleet.close)
    closing.start()
    if stopped:
        closing.join(1)
        os.kill(slow, signal.SIGCONT)  # ProcessLookupError if the rest of the group was killed before
    for thread in (closing, waiting):
        thread.join(PATIENCE)
    assert answers[0].problem == CLOSED
    wait_for(lambda: not sleeping(seconds), "it ends")
    assert ask(fleet, "true").problem == CLOSED
    fleet.close()


CONTROLLER = f"""
from pytest_gpucluster.cluster.channel.channel import Fleet
fleet = Fleet.local("here")
fleet.prefetch([("sleep 64.5", 600.0)])
print(fleet.ask_node("here", {AGENT!r}).out, flush=True)
fleet.ask("sleep 65.5", timeout=600)
"""


@pytest.mark.thorough
def test_controller_killed() -> None:
    argv = [sys.executable, "-c", CONTROLLER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        try:
            agent = Path("/proc", controller.stdout.readline().strip())
            wait_for(lambda: sleeping("64.5") and sleeping("65.5"), "both run")
        finally:  # else a failure would wait for its end
            controller.kill()
    wait_for(lambda: not (agent.exists() or sleeping("64.5") or sleeping("65.5")), "all end")


def impostor(script: str, *nodes: str, labelled: bool = False, **options: Any) -> Fleet:
    """A channel whose agent, or srun, is another program; $1 is the nonce."""
    nonce = new_nonce()
    popen = LocalTransport().spawn(["sh", "-c", script, "impostor", nonce])
    return Fleet(popen, nodes or ("here",), nonce, labelled=labelled, **options)


PROLOG = (
    "echo '0: slurmstepd-here: error: TaskProlog failed' >&2; "
    "echo 'srun: error: here: task 0: Exited with exit code 1' >&2; cat"
)
NO_STEP = "echo 'srun: error: Unable to create step for job 5: Job/step already completing' >&2; exit 1"
RUBBISH = "head -c 200000 /dev/urandom; echo; echo login:; cat"


@pytest.mark.parametrize(
    ("script", "options", "why"),
    [
        (PROLOG, {"labelled": True}, "Exited with exit code 1 (slurmstepd-here: error: TaskProlog failed)"),
        (NO_STEP, {}, "Unable to create step for job 5"),
        pytest.param(RUBBISH, {"launch_timeout": 5.0}, "within 5 s; it printed ", marks=pytest.mark.thorough),
        ("cat /dev/zero", {"launch_timeout": 1.0}, "no agent started within 1 s"),  # it fills no memory
    ],
)
def test_what_is_no_agent_is_quoted(script: str, options: dict[str, Any], why: str) -> None:
    with impostor(script, **options) as fleet:
        assert why in ask(fleet, "true").problem
        assert fleet.lost["here"].code == ("prolog_failed" if script == PROLOG else "")
        assert script != RUBBISH or fleet.noise["here"] > 0


@pytest.mark.thorough
def test_where_all_nodes_fall_silent_at_once_none_is_to_blame() -> None:
    hello = 'for task in 0 1; do echo "$task: $1 0 H 1 b sh"; done; exec sleep 60'
    with impostor(hello, "one", "two", labelled=True, ping_timeout=1.0) as fleet:
        answers = fleet.ask("true", timeout=600)
        assert {answer.problem.partition(":")[0] for answer in answers.values()} == {"node lost"}
        assert "all 2 nodes are silent" in fleet.lost["one"].text
        assert fleet.disconnected == {"one", "two"}


def test_noise_between_frames_is_ignored() -> None:
    agent = agent_argv("unused")[2]
    with impostor(f"echo motd; echo; {agent}") as fleet:
        assert ask(fleet, "echo fine").stdout == b"fine\n"
        assert fleet.noise["here"] == 2


GARBLER = r"""
printf '%s 0 H 0 b here\n' "$1"
while read -r id rest; do
  [ "$id" = 0 ] && continue
  printf '%s %s o 0 9 YWJj\n%s %s O 1 0\n%s %s E 0 0\n%s %s X 0\n' "$1" "$id" "$1" "$id" "$1" "$id" "$1" "$id"
done
"""


def test_garbage_is_never_an_answer_and_then_the_node_is_lost() -> None:
    with impostor(GARBLER) as fleet:
        first = ask(fleet, "true")
        assert (first.rc, first.stdout, fleet.lost) == (None, b"", {})
        assert first.problem.startswith("answer damaged in transit")
        ask(fleet, "true")
        ask(fleet, "true")
        assert "it sends invalid data" in fleet.lost["here"].text


@pytest.mark.thorough
@pytest.mark.parametrize(
    "hidden", [["base64"], ["base64", "openssl"], ["timeout"], ["timeout", "setsid"]], ids=" ".join
)
def test_nodes_that_lack_a_tool(hidden: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {tool.name: tool for folder in ("/bin", "/usr/bin") for tool in Path(folder).iterdir()}
    for name in tools.keys() - set(hidden):
        (tmp_path / name).symlink_to(tools[name])
    monkeypatch.setenv("PATH", str(tmp_path))
    with Fleet.local("here") as fleet:
        answer = ask(fleet, r"printf 'a\0b\377'; seq 300; echo err >&2; exit 4")
        assert answer.stdout == b"a\0b\xff" + b"".join(b"%d\n" % number for number in range(1, 301))
        assert (answer.stderr, answer.rc) == (b"err\n", 4)
        assert ask(fleet, "exec sleep 66.5", timeout=1).problem == "timed out after 1 s"
        assert ask(fleet, "yes", cap=1000).truncated
    wait_for(lambda: not sleeping("66.5"), "it ends")


def test_agent_leaves_no_zombies_when_idle(own: Fleet) -> None:
    argv = ["ps", "--no-headers", "-o", "stat=", "--ppid", ask(own, AGENT).out.strip()]
    # all have ended; the line that wakes an idle agent comes a moment later
    wait_for(lambda: b"Z" not in subprocess.run(argv, capture_output=True, check=False).stdout, "none left")


@pytest.mark.thorough
def test_a_killed_srun_is_the_fault_of_no_node(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    spawn = LocalTransport.spawn

    def noted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(spawn(*args, **options))
        return started[-1]

    request = AllocationRequest(nodes=tuple(sandbox.nodes), gpus_per_node=8)
    with Allocation.request(Slurm(LocalTransport(sandbox.env)), request) as held:
        monkeypatch.setattr(LocalTransport, "spawn", noted)
        with Fleet.over_slurm(held.slurm, held) as fleet:
            fleet.ask("true")
            os.killpg(started[0].pid, signal.SIGKILL)
            assert {answer.rc for answer in fleet.ask("echo after").values()} == {None}
            assert all("srun ended (exit -9)" in why.text for why in fleet.lost.values())
            assert fleet.disconnected == set(fleet.lost) == set(held.nodes)


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
@pytest.mark.parametrize(("command", "most"), [("true", 12), ("true\ntrue", 12)])
def test_processes_of_a_request(command: str, most: int, tmp_path: Path) -> None:
    def started(requests: int) -> int:
        argv = counted(tmp_path / "count", *agent_argv("nonce"))
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write(b"".join(request(at + 1, None, 30, 100, command) for at in range(requests)))
            agent.stdin.flush()
            for _ in range(requests):
                assert any(b" X 0" in line for line in agent.stdout)
            agent.stdin.close()
        return int((tmp_path / "count").read_text())

    assert started(5) - started(0) <= 5 * most
