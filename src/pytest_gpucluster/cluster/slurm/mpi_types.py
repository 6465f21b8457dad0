"""The MPI types of srun, from `srun --mpi=list` (Slurm 22.05.8)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.probe import Probe, text_of

if TYPE_CHECKING:
    from pytest_gpucluster.core.probe import Answer

_LIST = re.compile(r"MPI plugin types are\.\.\.|MPI types are\.\.\.")


def read_mpi_list(answer: Answer) -> tuple[str, ...]:
    """Return the types of `srun --mpi=list`: before 21.08 'srun: pmi2' lines on stderr, later lines with a TAB."""
    text = answer.out + "\n" + answer.err
    begin = _LIST.search(text)
    if begin is None:
        text_of(answer)  # NotAvailable without srun
        raise ProbeError(f"srun --mpi=list prints {answer.out.strip()[:80]!r}, no list of MPI types")
    types: list[str] = []
    for line in text[begin.end() :].splitlines():
        label, _, versions = line.partition("versions available:")
        if versions:
            types += re.split(r"[,\s]+", versions.strip())
        elif word := re.fullmatch(r"(?:srun:)?\s*([a-z]\w*)", label.strip()):
            types.append(word[1])
    if not types:
        raise ProbeError("srun --mpi=list names no type at all")
    return tuple(dict.fromkeys(types))


PMI_TYPES = Probe("srun --mpi=list", "srun --mpi=list", read_mpi_list)
