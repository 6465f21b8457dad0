"""Commands for the parts that a finding names. Pure.

INDEX in a command stands for their numbers (GPU 3: 3), PART for the name of the first (`sshd.service`), ADDRESS for
the first PCI address.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucluster.core.part import Part

_OPTION = re.compile(r" -i INDEX\b")


def for_parts(command: str, parts: Iterable[Part]) -> str:
    """Put the parts into a command; without a number for each of them `-i INDEX` is left out.

    >>> from pytest_gpucluster.core.part import GPUS, Part, gpu, named
    >>> for_parts("nvidia-smi -q -i INDEX", [gpu(3, address="0000:1b:00.0"), gpu(5)])
    'nvidia-smi -q -i 3,5'
    >>> for_parts("nvidia-smi -q -i INDEX", [GPUS])
    'nvidia-smi -q'
    >>> for_parts("systemctl status PART", [named("service", "sshd.service")])
    'systemctl status sshd.service'
    >>> for_parts("ls /sys/bus/pci/devices/ADDRESS", [Part("adapter", name="mlx5_4", address="0000:18:00.0")])
    'ls /sys/bus/pci/devices/0000:18:00.0'
    """
    known = list(dict.fromkeys(parts))
    numbers = [part.index if part.gpu is None else part.gpu for part in known]
    if not numbers or None in numbers:
        command = _OPTION.sub("", command)
    else:
        command = re.sub(r"\bINDEX\b", ",".join(dict.fromkeys(map(str, numbers))), command)
    if address := next((part.address for part in known if part.address), ""):
        command = re.sub(r"\bADDRESS\b", lambda _: address, command)
    first = next((shlex.quote(part.name or part.short) for part in known), "")
    return re.sub(r"\bPART\b", lambda _: first, command) if first.strip("'") else command
