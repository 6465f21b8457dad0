"""The 40 checks that every side of rivals.py makes: one command a check, and the text that a good node answers.

No side has another command or another verdict: all of them ask these lines and search the answer for these patterns.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """A check: its name, the command on the node, and the pattern that has to be found in its standard output."""

    name: str
    command: str
    pattern: str

    def right(self, text: str) -> bool:
        """Return True where a node's answer is as it has to be."""
        return re.search(self.pattern, text, re.MULTILINE) is not None


def eight(value: str) -> str:
    """Return the pattern of eight equal lines: one for each GPU."""
    return rf"\A(?:{value}\n){{8}}\Z"


def smi(name: str, fields: str, value: str) -> Question:
    """Ask nvidia-smi for fields of all GPUs."""
    return Question(name, f"nvidia-smi --query-gpu={fields} --format=csv,noheader", eight(value))


def sysctl(name: str, value: str) -> Question:
    """Ask for a kernel setting."""
    return Question(name.replace(".", "_"), f"sysctl -n {name}", rf"\A{value}$")


def file(name: str, path: str, pattern: str) -> Question:
    """Read a file."""
    return Question(name, f"cat {path}", pattern)


QUESTIONS = (
    file("governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", r"\Aperformance$"),
    file("os_release", "/etc/os-release", r'^VERSION_ID="24\.04"$'),
    file("memory", "/proc/meminfo", r"^MemTotal: +2113929216 kB$"),
    file("no_swap", "/proc/swaps", r"\AFilename.*\n\Z"),
    file("iommu", "/proc/cmdline", r"\biommu=pt\b"),
    file("hugepages", "/sys/kernel/mm/transparent_hugepage/enabled", r"\[madvise\]"),
    file("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource", r"\Atsc$"),
    file("nvidia_module", "/proc/driver/nvidia/version", r"580\.159\.04"),
    file("load", "/proc/loadavg", r"\A\d"),
    file("uptime", "/proc/uptime", r"\A\d{4,}"),
    sysctl("vm.swappiness", "10"),
    sysctl("vm.max_map_count", "1048576"),
    sysctl("vm.overcommit_memory", "0"),
    sysctl("vm.zone_reclaim_mode", "0"),
    sysctl("kernel.numa_balancing", "0"),
    sysctl("kernel.pid_max", "4194304"),
    sysctl("kernel.randomize_va_space", "2"),
    sysctl("net.core.rmem_max", "16777216"),
    sysctl("net.core.wmem_max", "16777216"),
    Question("kernel", "uname -r", r"\A6\.8\.0-79-generic$"),
    Question("architecture", "uname -m", r"\Ax86_64$"),
    Question("cpus", "nproc", r"\A128$"),
    Question("lscpu", "lscpu", r"^NUMA node\(s\): +2$"),
    Question("modules", "lsmod", r"^nvidia_peermem "),
    Question("slurmd", "systemctl is-active slurmd", r"\Aactive$"),
    Question("fabric_manager", "systemctl is-active nvidia-fabricmanager", r"\Aactive$"),
    Question("clock", "chronyc -n tracking", r"^Leap status +: Normal$"),
    Question("kernel_log", "dmesg", r"\A(?=.*Linux version)(?:(?!Xid)[\s\S])*\Z"),
    Question("inodes", "df -P -i /", r" [1-8]?\d% /$"),
    Question("root_account", "getent passwd root", r"\Aroot:x:0:0:"),
    Question("gpu_list", "nvidia-smi -L", r"\A(?:GPU \d: NVIDIA H200 \(UUID: GPU-[-\da-f]{36}\)\n){8}\Z"),
    smi("gpu_name", "name", "NVIDIA H200"),
    smi("gpu_driver", "driver_version", r"580\.159\.04"),
    smi("gpu_memory", "memory.total", "143771 MiB"),
    smi("gpu_modes", "ecc.mode.current,mig.mode.current,persistence_mode", "Enabled, Disabled, Enabled"),
    smi("gpu_pcie", "pcie.link.gen.current,pcie.link.width.current", "5, 16"),
    smi("gpu_ecc", "ecc.errors.uncorrected.volatile.total", "0"),
    smi("gpu_limits", "power.limit,clocks.max.sm", r"700\.00 W, 1980 MHz"),
    Question("gpu_apps", "nvidia-smi --query-compute-apps=pid --format=csv,noheader", r"\A\Z"),
    Question("nics", "ibstat -l", r"\A(?:mlx5_\d\n){8}\Z"),
)
ASKED = "GPUCLUSTER_BENCH_ASKED"
"""The environment names a file: {"checks": 40, "nodes": ["gpu01", ...], "free": false}."""


def free(question: Question) -> Question:
    """Return a check that starts no process on the node: what is left is what the side itself costs."""
    return Question(question.name, f"echo {question.name}", rf"\A{question.name}$")


def asked() -> tuple[tuple[Question, ...], list[str]]:
    """Return the checks and the nodes of the running comparison."""
    plan = json.loads(Path(os.environ[ASKED]).read_text())
    questions = QUESTIONS[: plan["checks"]]
    return tuple(map(free, questions)) if plan["free"] else questions, plan["nodes"]
