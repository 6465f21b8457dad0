"""The wire of the fleet channel: pure."""

from __future__ import annotations

import base64
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.cluster.channel.protocol import (
    BASE64,
    HEX,
    Frame,
    FrameError,
    Stream,
    agent_source,
    cancelled,
    ending,
    parse,
    request,
    task_numbers,
    unlabel,
)

NONCE = b"gpucluster-abc"


def frame(text: bytes) -> Frame:
    found = parse(NONCE + b" " + text + b"\n", NONCE)
    assert found is not None
    return found


def test_plain_command_travels_as_it_is() -> None:
    assert request(7, None, 30, 99, "echo 'a  b' | wc") == b"7 * 30 99 p echo 'a  b' | wc|\n"


def test_nodes_are_recognised_by_task_number() -> None:
    assert request(7, [0, 12], 1, 2, "x") == b"7 ,0,12, 1 2 p x|\n"
    assert request(0, [], 1, 2, "").startswith(b"0 ,, ")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_command_is_one_line_of_ascii(command: str) -> None:
    line = request(1, None, 1, 1, command)
    assert line.count(b"\n") == 1
    assert line.endswith(b"|\n")
    assert line.isascii()
    form, code = line[:-2].split(b" ", 5)[4:]
    if form == b"b":
        printed = subprocess.run(["printf", "%b", code], capture_output=True, check=True).stdout
        assert printed == command.encode()
    else:
        assert code == command.encode()


def test_label_of_srun() -> None:
    assert unlabel(b" 3: hello\n") == (3, b"hello\n")
    assert unlabel(b"12: 4: x") == (12, b"4: x")
    assert unlabel(b"motd\n") == (None, b"motd\n")


def test_noise_is_not_ours() -> None:
    assert parse(b"Welcome to gpu03!\n", NONCE) is None
    assert parse(b"gpucluster-abcd 1 X 0\n", NONCE) is None


@pytest.mark.parametrize("text", [b"1 Z 0", b"x X 0", b"1 o 0 4", b"1", b"", b"1 O 3", b"1 H 0 b"])
def test_damaged_frames_are_reported(text: bytes) -> None:
    with pytest.raises(FrameError):
        parse(NONCE + b" " + text, NONCE)


def test_status_that_is_no_number() -> None:
    with pytest.raises(FrameError, match="not a number"):
        frame(b"1 X zero").integer(0)


@given(st.binary(max_size=3000), st.sampled_from([BASE64, HEX]))
def test_stream_of_any_bytes(data: bytes, coder: bytes) -> None:
    text = data.hex(" ").encode() if coder == HEX else base64.b64encode(data)
    width = 48 if coder == HEX else 76
    stream = Stream()
    pieces = [text[i : i + width] for i in range(0, len(text), width)]
    for number, piece in enumerate(pieces):
        stream.add(frame(b"1 o %d %d %s" % (number, len(piece), piece)), 3000)
    stream.end(frame(b"1 O %d 0" % len(pieces)))
    assert stream.data(coder, 1 << 20) == data
    assert (stream.damage, stream.truncated) == ("", False)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_piece_is_noticed(lost: int) -> None:
    stream = Stream()
    for number in range(3):
        if number != lost:
            stream.add(frame(b"1 o %d 4 YWJj" % number), 3000)
    stream.end(frame(b"1 O 3 0"))
    assert stream.damage


def test_a_cut_piece_is_noticed() -> None:
    stream = Stream()
    stream.add(frame(b"1 o 0 8 YWJj"), 3000)
    stream.end(frame(b"1 O 1 0"))
    assert stream.damage


def test_output_above_the_cap_is_cut_and_reported() -> None:
    stream = Stream()
    stream.add(frame(b"1 o 0 8 YWJjZGVm"), 3000)
    stream.end(frame(b"1 O 1 0"))
    assert stream.data(BASE64, 4) == b"abcd"
    assert stream.truncated


def test_undecodable_output_is_an_error() -> None:
    stream = Stream()
    stream.add(frame(b"1 o 0 4 Y*Jj"), 3000)
    with pytest.raises(FrameError, match="undecodable"):
        stream.data(BASE64, 99)


# recorded from srun 22.05.8, the last two from its source (src/api/step_launch.c, src/srun/libsrun/launch.c)
@pytest.mark.parametrize(
    ("line", "nodes", "tasks", "why"),
    [
        ("srun: error: gpu02: task 1: Killed", "gpu02", "1", "Killed"),
        ("srun: error: gpu[01-03]: tasks 0-2: Exited with exit code 9", "gpu[01-03]", "0-2", "Exited with exit code 9"),
        ("srun: error: Node failure on gpu03", "gpu03", "", "Node failure"),
        (
            "srun: error: Task launch for StepId=5.0 failed on node gpu04: Communication connection failure",
            "gpu04", "", "Communication connection failure",
        ),
    ],
)  # fmt: skip
def test_what_srun_says_of_ended_tasks(line: str, nodes: str, tasks: str, why: str) -> None:
    reported = ending(line)
    assert reported is not None
    assert (reported.nodes, reported.tasks, reported.why) == (nodes, tasks, why)


def test_other_lines_of_srun_end_nothing() -> None:
    assert ending("srun: cluster configuration lacks support for cpu binding") is None
    assert ending("srun: Job step aborted: Waiting up to 4 seconds for job step to finish.") is None


def test_task_lists() -> None:
    assert task_numbers("0-2,5") == (0, 1, 2, 5)
    assert task_numbers("") == ()


def test_agent_travels_without_comments() -> None:
    source = agent_source()
    assert source.isascii()
    assert not any(line.startswith("#") for line in source.splitlines())
    assert "while IFS=' ' read -r id" in source


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("slurmstepd-gpu01: error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 ***", True),
        (
            "slurmstepd: error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 DUE TO TIME LIMIT ***",
            True,
        ),
        (
            "slurmstepd: error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 DUE TO NODE FAILURE",
            False,
        ),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", True),
        ("srun: error: gpu02: task 1: Killed", False),
    ],
)
def test_who_ended_the_step(line: str, *, reported: bool) -> None:
    assert cancelled(line) == reported
