"""The first complaint of a program that failed. The outputs are of Open MPI, PyTorch, NCCL and glibc."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.complaint import MOST, first_complaint

TRACE = """\
2: Traceback (most recent call last):
2:   File "train.py", line 3, in <module>
2:     import apex
2: ModuleNotFoundError: No module named 'apex'
srun: error: gpu02: task 2: Exited with exit code 1
"""
SIGNAL = """\
[gpu01:12] *** Process received signal ***
[gpu01:12] Signal: Segmentation fault (11)
[gpu01:12] Failing at address: 0x8
[gpu02:13] *** Process received signal ***
"""
NCCL = """\
gpu02:12:34 [1] NCCL INFO Setting affinity failed for GPU 1
gpu02:12:34 [1] transport/net_ib.cc:1234 NCCL WARN NET/IB : Got completion from peer with status=12
gpu02:12:34 [1] NCCL INFO transport/net.cc:9 -> 6
gpu02: Test NCCL failure common.cu:961 'remote process exited or there was a network error / '
"""
THROWN = """\
0: libibverbs: Warning: couldn't load driver
0: terminate called after throwing an instance of 'std::runtime_error'
0:   what():  cannot open topology file
1: terminate called after throwing an instance of 'std::logic_error'
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRACE, "ModuleNotFoundError: No module named 'apex'"),
        (TRACE.replace("2: ", "2: [rank2]: "), "ModuleNotFoundError: No module named 'apex'"),
        (
            SIGNAL,
            "[gpu01:12] *** Process received signal *** / Signal: Segmentation fault (11) / Failing at address: 0x8",
        ),
        (NCCL, "gpu02:12:34 [1] transport/net_ib.cc:1234 NCCL WARN NET/IB : Got completion from peer with status=12"),
        (
            THROWN,
            "terminate called after throwing an instance of 'std::runtime_error' / what():  cannot open topology file",
        ),
        ("[1,3]<stderr>: bash: x: command not found\n", "bash: x: command not found"),
        ("srun: error: gpu02: task 2: Killed\nslurmstepd-gpu02: error: Detected 1 oom_kill event\n", ""),
        ("all is well\n", ""),
    ],
)
def test_the_first_complaint_has_its_block(text: str, said: str) -> None:
    assert first_complaint(text) == said


def test_a_complaint_is_short() -> None:
    assert len(first_complaint("error: " + "x" * 1000 + "\n   y" * 9)) == MOST
