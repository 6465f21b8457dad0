"""Frames of a node that goes on without end: neither its output nor its numbers fill our memory."""

from __future__ import annotations

import pytest

from pytest_gpucluster.cluster.channel.protocol import BASE64, Frame, FrameError, Stream, parse


def frame(line: bytes) -> Frame:
    found = parse(line, b"n")
    assert found is not None
    return found


def test_an_agent_that_sends_without_end_is_cut() -> None:
    stream = Stream()
    for number in range(2000):
        stream.add(frame(b"n 1 o %d 1024 " % number + b"A" * 1024), 1000)
    assert "more than the limit of 1000 bytes" in stream.damage
    assert sum(map(len, stream.pieces)) < 100_000
    stream.end(frame(b"n 1 O 2000 0"))
    assert stream.damage
    assert stream.data(BASE64, 1000) == b""


@pytest.mark.parametrize("line", [b"n %s P" % (b"9" * 5000), b"n 1 X %s" % (b"9" * 5000)])
def test_a_number_without_end_is_a_damaged_frame(line: bytes) -> None:
    with pytest.raises(FrameError):
        frame(line).integer(0)
