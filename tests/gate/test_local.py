"""The channel of a gate: a time budget, one shell for the commands of a suite, answers of others from the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import is_alive
from sandbox_helpers import wait_for

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.gate.local import LocalChannel, shown

if TYPE_CHECKING:
    from pathlib import Path

HANGS = "sleep 60"


def channel(
    budget: float = 300.0,
    peers: dict[str, dict[str, Answer]] | None = None,
    known: dict[str, Answer] | None = None,
    **options: Any,
) -> LocalChannel:
    return LocalChannel("gpu01", peers or {}, LocalTransport(), budget=budget, known=known or {}, **options)


def unanswered(one: LocalChannel, command: str) -> str:
    """Return why a command of this machine has no answer: what the budget ended is no answer that a check could judge."""
    with pytest.raises(NotAvailable) as caught:
        one.ask_node("gpu01", command)
    return str(caught.value)


def test_commands_of_a_batch_have_their_answers() -> None:
    one, loud = channel(), "echo b; echo c >&2; exit 3"
    one.start([[("echo a", 9.0), (loud, 9.0)], [("echo d", 9.0)]])
    answers = [one.ask_node("gpu01", command) for command in ("echo a", loud, "echo d")]
    assert [(it.rc, it.out, it.err) for it in answers] == [(0, "a\n", ""), (3, "b\n", "c\n"), (0, "d\n", "")]
    assert one.ask("echo e")["gpu01"].out == "e\n"
    one.close()


def test_what_the_budget_ends_is_named_and_costs_no_other_shell() -> None:
    one = channel(budget=1.5, names={HANGS: "nvidia-smi -q"})
    one.start([[("echo a", 9.0), (HANGS, 9.0), ("echo b", 9.0)], [("echo c", 9.0)]])
    assert one.ask_node("gpu01", "echo a").out == "a\n"
    late = "nvidia-smi -q did not end within the budget of 1.5 s"
    assert unanswered(one, HANGS) == late
    assert unanswered(one, "echo b") == f"it waited for another command: {late}"
    assert one.ask_node("gpu01", "echo c").out == "c\n"
    assert unanswered(one, "echo not started") == late
    assert one.slow == ["nvidia-smi -q"]


def test_known_answers_start_nothing() -> None:
    one = channel(known={"false": Answer("gpu01", 0, b"known")})
    one.start([[("false", 9.0)]])
    assert one.ask_node("gpu01", "false").out == "known"
    assert one.ask_node("gpu01", "false", fresh=True).rc == 1


def test_other_nodes_answer_from_the_baseline_or_not_at_all() -> None:
    one = channel(peers={"gpu02": {"uname": Answer("gpu02", 0, b"Linux")}})
    assert one.nodes == ("gpu01", "gpu02")
    assert one.ask_node("gpu02", "uname").out == "Linux"
    assert one.ask_node("gpu02", "id").problem == "the baseline has no answer of it"


def test_a_message_quotes_the_start_of_a_command() -> None:
    quoted = {"nvidia-smi -q  -d 'ECC'": "nvidia-smi -q -d ECC", "it's": "it's", "a" * 80: f"{'a' * 57}..."}
    plain = "nvidia-smi --query-gpu=index --format=csv"
    scripts = ["export LC_ALL=C\ns() { :; }", "o=$(nvidia-smi nvlink -e 2>&1); echo $o", "keys=; d=/sys"]
    scripts += ["for n in $(ls /sys); do :; done", "[ ! -e /x ] || { cat /x; }"]
    cases = {**quoted, plain: plain, **dict.fromkeys(scripts, "a script of gpucluster")}
    for command, words in cases.items():
        assert shown(command) == words


@pytest.mark.thorough
@pytest.mark.parametrize("leaves", ["sh -c '{}' & sleep 50", "timeout 50 sh -c '{}'"])
def test_a_child_that_leaves_its_shell_or_its_group_is_ended_with_it(tmp_path: Path, leaves: str) -> None:
    one, file = channel(budget=1.0), tmp_path / "pid"
    command = leaves.format(f"echo $$ >{file}; exec sleep 60")
    one.start([[(command, 9.0)]])
    assert unanswered(one, command)
    wait_for(lambda: not is_alive(int(file.read_text())), "the child has ended")
