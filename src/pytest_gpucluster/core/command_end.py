"""How a command ended: the one type that may say that it hangs.

An exit status is no cause. Whatever kills a command, as the kernel without memory does, leaves the same status as timeout(1).
So the program that sets a deadline measures it where the command runs (limited.sh), and writes `deadline` in place of a status.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpucluster.core.scripts import script

LIMITED_SH = script(__package__, "limited.sh") + "\n"  # `limited SECONDS COMMAND...`, `$ended`
DEADLINE = "deadline"
STATUS = rf"\d{{1,3}}|{DEADLINE}"  # pattern of a word that `CommandEnd.of` reads
_SIGNALS = range(129, 129 + 64)  # sh's status for a signal


@dataclass(frozen=True)
class CommandEnd:
    """The end of a command. `status`: as sh has it, None if our own deadline ended the command."""

    status: int | None

    @classmethod
    def of(cls, word: str) -> CommandEnd:
        """Return the end that a script has written: a status, or `deadline`."""
        return cls(None if word == DEADLINE else int(word))

    @property
    def hung(self) -> bool:
        """Whether our own deadline was over, by the clock of the machine that ran the command."""
        return self.status is None

    @property
    def signal(self) -> int | None:
        """The signal that something else than our deadline sent, None if the command exited."""
        status = self.status or 0
        return status - 128 if status in _SIGNALS else None

    def __str__(self) -> str:
        """Return the end in words."""
        if self.hung:
            return "no end within its deadline"
        return f"killed by signal {self.signal}" if self.signal else f"exit {self.status}"
