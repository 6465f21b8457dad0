"""Commands for the parts that a finding names. Pure.

INDEX in a command stands for their numbers (`GPU 3 (...)`: 3), PART for the name of the first (`sshd.service`), ADDRESS for
the first PCI address.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBERED = re.compile(r"[A-Za-z]+ (\d+)\b")
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_OPTION = re.compile(r" -i INDEX\b")


def for_parts(command: str, parts: Iterable[str]) -> str:
    """Put the parts into a command; without a number for each of them `-i INDEX` is left out.

    >>> for_parts("nvidia-smi -q -i INDEX", ["GPU 3 (0000:1b:00.0)", "GPU 5"])
    'nvidia-smi -q -i 3,5'
    >>> for_parts("nvidia-smi -q -i INDEX", ["GPUs"])
    'nvidia-smi -q'
    >>> for_parts("systemctl status PART", ["sshd.service"])
    'systemctl status sshd.service'
    >>> for_parts("ls /sys/bus/pci/devices/ADDRESS", ["mlx5_4 (0000:18:00.0)"])
    'ls /sys/bus/pci/devices/0000:18:00.0'
    """
    known = list(dict.fromkeys(parts))
    numbers = [match[1] for part in known if (match := _NUMBERED.match(part))]
    if not numbers or len(numbers) < len(known):
        command = _OPTION.sub("", command)
    else:
        command = re.sub(r"\bINDEX\b", ",".join(dict.fromkeys(numbers)), command)
    if address := _ADDRESS.search(" ".join(known)):
        command = re.sub(r"\bADDRESS\b", address[0], command)
    first = next((shlex.quote(part.split()[0]) for part in known if part.strip()), "")
    return re.sub(r"\bPART\b", lambda _: first, command) if first else command
