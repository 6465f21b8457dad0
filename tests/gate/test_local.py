"""The channel of a gate: a time budget, one shell for the commands of a suite, answers of others from the baseline."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.gate.local import LocalChannel, shown

HANGS = "sleep 60"


def channel(budget: float = 30.0, **options: Any) -> LocalChannel:
    options = {"peers": {}, "known": {}, **options}
    return LocalChannel("gpu01", options["peers"], LocalTransport(), budget=budget, known=options["known"])


def unanswered(one: LocalChannel, command: str) -> str:
    """Return why a command of this machine has no answer: what the budget ended is no answer that a check could judge."""
    with pytest.raises(NotAvailable) as caught:
        one.ask_node("gpu01", command)
    return str(caught.value)


def test_commands_of_a_batch_have_their_answers() -> None:
    one = channel()
    one.start([[("echo a", 9.0), ("echo b; echo c >&2; exit 3", 9.0)], [("echo d", 9.0)]])
    answers = [
        one.ask_node("gpu01", command) for command in ("echo a", "echo b; echo c >&2; exit 3", "echo d")
    ]
    assert [(it.rc, it.out, it.err) for it in answers] == [(0, "a\n", ""), (3, "b\n", "c\n"), (0, "d\n", "")]
    assert one.ask("echo e")["gpu01"].out == "e\n"
    one.close()


def test_what_the_budget_ends_is_named_and_costs_no_other_shell() -> None:
    one = channel(budget=1.5)
    one.start([[("echo a", 9.0), (HANGS, 9.0), ("echo b", 9.0)], [("echo c", 9.0)]])
    assert one.ask_node("gpu01", "echo a").out == "a\n"
    late = "sleep 60 did not end within the budget of 1.5 s"
    assert unanswered(one, HANGS) == late
    assert unanswered(one, "echo b") == f"it waited for another command: {late}"
    assert one.ask_node("gpu01", "echo c").out == "c\n"
    assert one.slow == ["sleep 60"]


@pytest.mark.thorough
def test_a_child_that_leaves_its_shell_is_ended_with_it(tmp_path: Any) -> None:
    one = channel(budget=1.0)
    alive = tmp_path / "alive"
    one.start([[(f"(sleep 3; touch {alive}) & sleep 50", 9.0)]])
    assert unanswered(one, f"(sleep 3; touch {alive}) & sleep 50")
    time.sleep(3.5)
    assert not alive.exists()


@pytest.mark.thorough
def test_a_command_in_a_group_of_its_own_is_ended_too(tmp_path: Any) -> None:
    one = channel(budget=1.0)
    own, alive = "timeout 50 sh -c", tmp_path / "alive"
    one.start([[(f"{own} 'sleep 3; touch {alive}'", 9.0)]])
    assert unanswered(one, f"{own} 'sleep 3; touch {alive}'")
    time.sleep(3.5)
    assert not alive.exists()


def test_a_message_names_a_command_as_its_probe_does() -> None:
    one = LocalChannel("gpu01", {}, LocalTransport(), budget=0.5, known={}, names={HANGS: "nvidia-smi -q"})
    one.start([[(HANGS, 9.0)]])
    assert unanswered(one, HANGS) == "nvidia-smi -q did not end within the budget of 0.5 s"


def test_known_answers_start_nothing() -> None:
    known = {"false": Answer("gpu01", 0, b"known")}
    one = channel(known=known)
    one.start([[("false", 9.0)]])
    assert one.ask_node("gpu01", "false").out == "known"
    assert one.ask_node("gpu01", "false", fresh=True).rc == 1


def test_other_nodes_answer_from_the_baseline_or_not_at_all() -> None:
    one = channel(peers={"gpu02": {"uname": Answer("gpu02", 0, b"Linux")}})
    assert one.nodes == ("gpu01", "gpu02")
    assert one.ask_node("gpu02", "uname").out == "Linux"
    assert one.ask_node("gpu02", "id").problem == "the baseline has no answer of it"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("nvidia-smi -q  -d 'ECC'", "nvidia-smi -q -d ECC"),
        ("it's", "it's"),
        ("a" * 80, f"{'a' * 57}..."),
        ("nvidia-smi --query-gpu=index --format=csv", "nvidia-smi --query-gpu=index --format=csv"),
        *(
            (text, "a script of gpucluster")
            for text in (
                "export LC_ALL=C\ns() { :; }",
                "o=$(nvidia-smi nvlink -e 2>&1); echo $o",
                "for n in $(ls /sys); do :; done",
                "[ ! -e /x ] || { cat /x; }",
                "keys=; d=/sys",
            )
        ),
    ],
)
def test_a_message_quotes_the_start_of_a_command(command: str, words: str) -> None:
    assert shown(command) == words
