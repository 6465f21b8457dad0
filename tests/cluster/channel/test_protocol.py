"""The wire of the fleet channel: pure."""

from __future__ import annotations

import pytest

from pytest_gpucluster.cluster.channel import protocol
from pytest_gpucluster.cluster.slurm.result import task_numbers

NONCE = b"gpucluster-abc"


def frame(text: bytes) -> protocol.Frame:
    found = protocol.parse(NONCE + b" " + text + b"\n", NONCE)
    assert found is not None
    return found


def test_label_of_srun_and_what_is_not_ours() -> None:
    assert protocol.unlabel(b" 3: hello\n") == (3, b"hello\n")
    assert protocol.unlabel(b"12: 4: x") == (12, b"4: x")
    assert protocol.unlabel(b"motd\n") == (None, b"motd\n")
    assert protocol.parse(b"Welcome to gpu03!\n", NONCE) is None
    assert protocol.parse(b"gpucluster-abcd 1 X 0\n", NONCE) is None


ENDLESS = b"9" * 5000


@pytest.mark.parametrize(
    "text",
    [*(b"1 Z 0", b"x X 0", b"1 o 0 4", b"1", b"", b"1 H 0 b", b"1 X zero"), *(ENDLESS + b" P", b"1 X " + ENDLESS)],
)
def test_damaged_frames_are_reported(text: bytes) -> None:
    with pytest.raises(protocol.FrameError):
        frame(text).integer(0)


@pytest.mark.parametrize("pieces", [[b"1 o 1 4 YWJj"], [b"1 o 0 4 YWJj"], [b"1 o 0 8 YWJj", b"1 o 1 4 YWJj"]])
def test_a_piece_that_is_lost_or_cut_is_noticed(pieces: list[bytes]) -> None:
    stream = protocol.Stream()
    for piece in pieces:
        stream.add(frame(piece), 3000)
    stream.end(frame(b"1 O 2 0"))
    assert stream.damage


def test_output_above_the_cap_is_cut_and_undecodable_output_is_an_error() -> None:
    stream, odd, endless = protocol.Stream(), protocol.Stream(), protocol.Stream()
    stream.add(frame(b"1 o 0 8 YWJjZGVm"), 3000)
    stream.end(frame(b"1 O 1 0"))
    assert (stream.data(protocol.BASE64, 4), stream.truncated) == (b"abcd", True)
    odd.add(frame(b"1 o 0 4 Y*Jj"), 3000)
    with pytest.raises(protocol.FrameError, match="undecodable"):
        odd.data(protocol.BASE64, 99)
    for number in range(2000):
        endless.add(frame(b"1 o %d 1024 " % number + b"A" * 1024), 1000)
    assert "more than the limit of 1000 bytes" in endless.damage
    assert sum(map(len, endless.pieces)) < 100_000
    endless.end(frame(b"1 O 2000 0"))
    assert (bool(endless.damage), endless.data(protocol.BASE64, 1000)) == (True, b"")


# recorded from srun 22.05.8, two from its source (src/api/step_launch.c, src/srun/libsrun/launch.c)
KILLED = "srun: error: gpu02: task 1: Killed"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (KILLED, ("gpu02", "1", "Killed")),
        ("srun: error: gpu[01-03]: tasks 0-2: Exited with 9", ("gpu[01-03]", "0-2", "Exited with 9")),
        ("srun: error: Node failure on gpu03", ("gpu03", "", "Node failure")),
        ("srun: error: Task launch for StepId=5.0 failed on node gpu04: Failed", ("gpu04", "", "Failed")),
        ("srun: cluster configuration lacks support for cpu binding", None),
    ],
)
def test_what_srun_says_of_ended_tasks(line: str, said: tuple[str, str, str] | None) -> None:
    found = protocol.ending(line)
    assert (found and (found.nodes, found.tasks, found.why)) == said
    assert (task_numbers("0-2,5"), task_numbers("")) == ((0, 1, 2, 5), ())


STEP = "slurmstepd-gpu01: error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04"


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (f"{STEP} ***", True),
        (f"{STEP} DUE TO TIME LIMIT ***", True),
        (f"{STEP} DUE TO NODE FAILURE", False),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", True),
        (KILLED, False),
    ],
)
def test_who_ended_the_step(line: str, *, reported: bool) -> None:
    assert protocol.cancelled(line) == reported
