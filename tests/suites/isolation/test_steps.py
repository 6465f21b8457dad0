"""What `script` and srun print around the shell of `srun --pty`."""

from __future__ import annotations

from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.suites.isolation.steps import read_terminal

ENDED = "srun: error: gpu01: task 0: Exited with exit code 1"


def test_whether_the_shell_has_a_terminal() -> None:
    for text, found in (
        # as printed by script of util-linux 2.38 and srun 22.05.8
        (f"^@{ENDED}\r\npty|yes|end\r\n", (None, True, f"^@{ENDED}")),
        ("pty|no|end\r\n", (None, False, "")),
        ("\x1b[?2004lpty|yes|end\x1b[0m\nended|0|end\r\n", (CommandEnd(0), True, "")),
        ("pty|ye\r\nended|deadline|end\r\n", (CommandEnd(None), None, "pty|ye")),
    ):
        assert read_terminal(text) == found
