from __future__ import annotations

from dataclasses import replace
from typing import Any

from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, VENDOR, WARNING
from judged import figures, judged
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import ALONE, CPUS, GIB, GROUP, MEMORY, PLAIN, peers

from pytest_gpucluster.config.models import Group, NodeProfile
from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.kit.node.peers import Peers, norm
from pytest_gpucluster.suites.os.checks import hardware as checks
from pytest_gpucluster.suites.os.facts import Cpus, MemoryInfo, MemoryParts, read_cpus

DIMMS = ("a 64", "b 64")
RANKS = ("a 32", "b 32")


def of(size: float) -> MemoryInfo:
    return MemoryInfo(int(size * GIB), 0, 0, 0, 0, 0)


def memory(mine: float, usual: float | None = None, stated: float | None = None, **more: Any) -> Verdict:
    """Judge MemTotal in GiB; `usual`: of three other nodes.

    reserved: for a crash kernel; without_cpus: on NUMA nodes without CPUs, here and on the others; dimms, all_dimms: what EDAC
    lists here and on the others, "NAME GiB"; smaller: slurm.conf states so; cmdline: of the kernel.
    """

    def parts(extra: float, modules: tuple[str, ...], held: float = 0) -> MemoryParts:
        listed = {one.rpartition(" ")[0]: int(one.rpartition(" ")[2]) * GIB for one in modules}
        return MemoryParts(int(extra * GIB), int(held * GIB), listed)

    infos = {"n1": of(mine), **(dict.fromkeys(("n2", "n3", "n4"), of(usual)) if usual else {})}
    here, elsewhere = more.get("without_cpus", (0, 0))
    own = parts(here, more.get("dimms", ()), more.get("reserved", 0))
    theirs = dict.fromkeys(infos, parts(elsewhere, more.get("all_dimms", ())))
    found = checks.installed(Peers(infos), {**theirs, "n1": own})
    group = Group(nodes=f"n[1-{len(infos)}]", profile=PLAIN)
    profile = NodeProfile(memory=None if stated is None else int(stated * GIB))
    most, dimms = found.of(group, "total", checks.PEER_MEMORY_TOLERANCE), found.of(group, "dimms")
    cmdline = f"{more.get('cmdline', '')} quiet"
    return checks.memory(infos["n1"], profile, most, more.get("smaller", False), own, dimms, cmdline)


def lscpu(online: str, off: str = "", threads: int = 2, more: str = "NUMA node(s): 1\n") -> Cpus:
    text = f"Architecture: x86_64\nOn-line CPU(s) list: {online}\nThread(s) per core: {threads}\n"
    return read_cpus(text + (f"Off-line CPU(s) list: {off}\n" if off else "") + more)


def cpus(mine: Cpus, usual: Cpus | None = None, stated: int | None = None) -> Verdict:
    return checks.cpus(mine, stated, peers(mine.online, usual.online) if usual else ALONE)


WHOLE, SMT_OFF = lscpu("0-223"), lscpu("0-111", "112-223", 1)
HALVES = norm({"n1": 8, "n2": 9})
MACHINES: Machines = {
    ("os.memory", memory): [
        ("more memory than the others | mixed order of DIMMs", PASSED, 2015, 1007),
        ("5% less than stated | kernel", PASSED, 95, None, 100),
        ("5% more than stated | profile", PASSED, 105, None, 100),
        ("more than the profile states | twice the DIMMs", WARNING, 105.01, None, 100),
        ("less than stated, the only node | profile", CONFIGURE, 94.99, None, 100),
        ("crashkernel=4G on 256 GiB | debug kernel", PASSED, lambda: memory(246.9, 250.9, reserved=4)),
        ("GH200 in CDMM among NUMA mode | R580", PASSED, lambda: memory(473, 568, without_cpus=(0, 95))),
        ("its HBM as a NUMA node | GH200", PASSED, lambda: memory(568, None, 480, without_cpus=(95, 0))),
        ("smaller on purpose | RealMemory", CONFIGURE, lambda: memory(500, 1000, smaller=True)),
        ("a test | kernel-parameters.txt", CONFIGURE, lambda: memory(503, 2015, cmdline="mem=512G")),
        ("1% less than the others | DIMMs of two vendors", PASSED, 990, 1000),
        ("1 GiB less, small | firmware", PASSED, 15, 16),
        ("no other node, nothing stated | one node", NOT_APPLICABLE, 64),
        ("sick: one rank | EDAC", VENDOR, lambda: memory(4001, 4033, dimms=("a 32",), all_dimms=RANKS)),
        ("sick: more than 1% less | reseat", VENDOR, 989.99, 1000),
        ("sick: more than 1 GiB less | reseat", VENDOR, 14.99, 16),
        ("sick: one DIMM missing, below the profile too | reseat", VENDOR, 756, 1008, 1024),
        ("sick: no DIMM lacks | EDAC", CONFIGURE, lambda: memory(900, 1008, dimms=DIMMS, all_dimms=DIMMS)),
    ],
    ("os.cpus", cpus): [
        ("nosmt: all cores online | l1tf.rst, nosmt", WARNING, SMT_OFF, WHOLE),
        ("nosmt, the only node | echo off > smt/control", WARNING, SMT_OFF),
        ("more CPUs than the others | newer processors", PASSED, WHOLE, lscpu("0-191")),
        ("SMT is off everywhere | firmware", PASSED, lscpu("0-5", "6-7"), lscpu("0-5")),
        ("profile counts threads, SMT is off | site policy", WARNING, lscpu("0-111", "", 1), None, 224),
        ("as stated, one is offline | profile", PASSED, lscpu("0-7", "8"), lscpu("0-8"), 8),
        ("more than stated | profile", WARNING, lscpu("0-8"), None, 8),
        ("one of two | group in halves", CONFIGURE, lambda: checks.cpus(CPUS, None, HALVES)),
        ("sick: two cores offline | chcpu", CONFIGURE, lscpu("0-109,112-221", "110-111,222-223"), WHOLE),
        ("sick: offline, the only node | chcpu", CONFIGURE, lscpu("0-5", "6-7")),
        ("sick: less than stated | profile", CONFIGURE, lscpu("0-6", "7"), None, 8),
        ("sick: SMT off and a core missing | lscpu", CONFIGURE, lscpu("0-109", "110-223", 1), WHOLE),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


def test_memory_of_a_group_in_halves_is_not_returned_to_its_vendor() -> None:
    half = replace(MEMORY, total=60 * GIB)
    pages = [replace(one, total=one.total - 4096 * n) for n, one in enumerate((MEMORY, MEMORY, half, half))]
    fleet = Peers({f"n{n}": one for n, one in enumerate(pages, 1)})
    most = fleet.of(GROUP, "total", checks.PEER_MEMORY_TOLERANCE)
    assert judged(checks.memory(MEMORY, NodeProfile(), most)) == (PASSED, [])  # it lacks nothing
    verdict = checks.memory(half, NodeProfile(), most)
    assert judged(verdict) == (CONFIGURE, ["memory"])
    assert figures(verdict.findings[0].expected)[::3] == [64, 60]
