"""Whatever a prolog or an export has put into a variable of a job: a sentence that names it, or no effect; never a traceback or ESC."""

from __future__ import annotations

import json
import re
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
from forked import Fork
from fuzz_readers import campaign
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from sandbox_helpers import environment

from pytest_gpucluster.kit.framework.payload_step import sent

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = ROOT / "src" / "pytest_gpucluster"
ODD = [
    "",
    "x!",
    "9" * 5000,
    "9" * 300,
    "-1",
    "1\n2",
    "\x1b[31m1",
    "\udcff",
    "a" * 100_000,
    "²",
    "a[0-9]" * 9,
    "a[1-999999999]",
    "a[2-",
]
VARIABLE = re.compile(
    r"\b((?:SLURM|SLURMD|PMI|PMIX|OMPI|NCCL|MASTER|HOROVOD|TF|CUDA|GLOO|TORCHELASTIC|WORLD|LOCAL)_[A-Z_]+|RANK|CPATH)\b"
)
BASE = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "4294967290",
}
BASE |= {"SLURM_STEP_NUM_TASKS": "1", **dict.fromkeys(("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), "localhost")}
BASE |= {"SLURM_NTASKS": "1", "SLURM_STEPID": "4294967290", "SLURMD_NODENAME": socket.gethostname().split(".")[0]}


class Program(NamedTuple):
    """A program that a job runs: its source, what is replaced in it, and its words."""

    source: str
    words: tuple[str, ...]
    before_main: str = ""


STORAGE = json.dumps({"phase": 20, "address": "127.0.0.1", "filesystems": [], "imports": []})
PROGRAMS = {
    "collective": Program("kit/payloads/collective.py", ("sweep", "--device", "cpu")),
    "ddp place": Program("suites/ddp/payload.py", ("place",)),
    "ddp work": Program("suites/ddp/payload.py", ("work",)),
    "horovod": Program(
        "suites/horovod/payload.py",
        ("--framework=torch", "--launcher=srun", "--hosts=localhost", "--address=127.0.0.1"),
        "FRAMEWORKS['torch'] = lambda: None\nrendezvous = find_rendezvous = lambda *_: None\n",
    ),
    "mpi": Program("kit/payloads/mpi/world.py", ("where",), "report(**host_and_node()); sys.exit()"),
    "nccl examples": Program(
        "suites/nccl_examples/payload.py",
        ("one-device", "127.0.0.1", "20"),
        "class Fake:\n bus, value, fill, number = '', 1, print, 0\n def __init__(self, *_): pass\n make = __init__\n"
        "Fake.make = lambda *_: Fake()\ncuda_driver = Library = Rank = Fake\nload_nccl = lambda: ''\n"
        "init_ranks = lambda *_: sys.exit(own_port(os.environ) - own_port(os.environ))\n",
    ),
    "rdma": Program("suites/rdma/payload.py", (), "own_port(os.environ); node_name(); sys.exit()"),
    "storage": Program("suites/storage/payload.py", ("work", STORAGE)),
    "tensorflow": Program("suites/tensorflow/payload.py", ("workers", "--hosts=localhost=127.0.0.1")),
    "training": Program("suites/training/payload.py", ("together",)),
    "gate": Program("__main__.py", ("gate", "--context=job", "--checks=gpu.count", "--fresh=0")),
    "gate --collect": Program("__main__.py", ("gate", "--collect")),
}  # fmt: skip


def text_of(program: Program) -> str:
    if program.source == "__main__.py":
        return (SOURCE / program.source).read_text()
    return sent(SOURCE / program.source)


READ = {
    name: sorted(set(VARIABLE.findall(text_of(program))) | set(BASE) | {"SLURM_GPUS_ON_NODE", "SLURM_CONF"})
    for name, program in PROGRAMS.items()
}


def run(name: str, folder: Path, changed: dict[str, str]) -> tuple[int, str]:
    _, words, before_main = PROGRAMS[name]
    text = text_of(PROGRAMS[name]).replace('if __name__ == "__main__":', f'{before_main}\nif __name__ == "__main__":')
    fork = Fork([sys.executable, "-c", text, *words], folder, {**environment(), **BASE, **changed})
    status = fork.wait(60)
    return status, "".join(fork.texts())


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_odd_variable_of_a_job_is_named_or_has_no_effect(name: str, tmp_path: Path) -> None:
    usual, said = run(name, tmp_path, {})

    @campaign(6)
    @given(st.sampled_from(READ[name]), st.sampled_from(ODD))
    def check(variable: str, value: str) -> None:
        status, printed = run(name, tmp_path, {variable: value})
        assert "Traceback" not in printed
        assert "\x1b" not in printed
        same = status == usual and (status == 0 or printed.splitlines()[-1:] == said.splitlines()[-1:])
        assert same or variable in printed, printed[-2000:]

    check()
