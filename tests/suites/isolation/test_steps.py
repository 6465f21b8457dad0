"""What `script` and srun print around the shell of `srun --pty`."""

from __future__ import annotations

from pytest_gpucluster.suites.isolation.steps import read_terminal

ENDED = "srun: error: gpu01: task 0: Exited with exit code 23"


def test_the_size_that_the_shell_printed() -> None:
    for text, found in (
        # as printed by script of util-linux 2.38 and srun 22.05.8
        (f"^@{ENDED}\r\npty|gpu01|33 101|end\r\n", ("33 101", f"^@{ENDED}")),
        ("pty|gpu01||end\r\n", ("", "")),
        ("\x1b[?2004lpty|gpu01|33 101|end\x1b[0m\n", ("33 101", "")),
        ("pty|gpu01|33 1", (None, "pty|gpu01|33 1")),
    ):
        assert read_terminal(text) == found
