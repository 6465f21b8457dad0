"""Temperature and optical power of the modules at a node's adapters, as mlxlink shows them. Pure.

Format: `mlxlink -d DEVICE -m --json` of MFT 4.18 to 4.35, and mstlink of mstflint (mlxlink/modules/mlxlink_commander.cpp): the section
`Module Info` has "54 [-5..75]", and a value per lane as in "1.886,1.989,2.281,1.976 [-10.41..6]", within the limits that the module
states; "N/A" without diagnostics in the module, and "0 [0..0]" of a copper cable that states nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Probe, last_line
from pytest_gpucluster.core.safe_json import as_dict, loads, text
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.probe import Answer

# key of mlxlink -> name and unit of the metric
QUANTITIES = {
    "Temperature [C]": ("module_temperature", "C"),
    "Rx Power Current [dBm]": ("rx_power", "dBm"),
    "Tx Power Current [dBm]": ("tx_power", "dBm"),
}
_NUMBER = r"-?\d{1,6}(?:\.\d{1,9})?"
_VALUE = re.compile(rf"({_NUMBER}(?:,{_NUMBER})*) ?\[({_NUMBER})\.\.({_NUMBER})\]")
_FAULT = re.compile(r"[1-9]\d{0,4}")  # 0: no issue was observed; N/A: the firmware does not state it


@dataclass(frozen=True)
class Reading:
    """A quantity of a module: a value per lane, one for a temperature, and the limits that the module states."""

    name: str
    unit: str
    values: tuple[float, ...]
    low: float
    high: float


@dataclass(frozen=True)
class Module:
    """A module or cable: what it is, for people, and its readings; () of one that states no limits, as copper.

    trouble: what the firmware finds wrong with the link, as 'Bad signal integrity'; '' for nothing.
    """

    kind: str
    readings: tuple[Reading, ...]
    trouble: str = ""
    serial: str = ""


@dataclass(frozen=True)
class Optics:
    """{adapter: its module}, and {adapter: why mlxlink shows none}."""

    modules: Mapping[str, Module] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def parse_optics(answer: Answer) -> Optics:
    """Return the modules; NotAvailable without the tool or the right to use it."""
    found = re.findall(r"^= (\S+)\n(.*?)^= exit (\d{1,3})$", answer.out, re.MULTILINE | re.DOTALL)
    if not re.search(r"^end$", answer.out, re.MULTILINE):
        if answer.rc:  # sudo refused it
            raise NotAvailable(f"{last_line(answer.err) or 'no message'} (exit {answer.rc})")
        raise ProbeError("mlxlink: the answer ended early")
    if re.search(r"^absent$", answer.out, re.MULTILINE):
        raise NotAvailable("mlxlink is not installed: install NVIDIA's MFT, or mstflint, on the nodes")
    modules: dict[str, Module] = {}
    problems: dict[str, str] = {}
    for adapter, output, status in found:
        module = read_module(output)
        if isinstance(module, str):
            problems[adapter] = module or f"no answer (exit {status})"
        else:
            modules[adapter] = module
    if problems and not modules and not re.search(r"^user 0$", answer.out, re.MULTILINE):
        raise NotAvailable(f"mlxlink needs root: set sudo: true in the cluster file ({next(iter(problems.values()))})")
    return Optics(modules, problems)


def read_module(output: str) -> Module | str:
    """Return the module of mlxlink's output, which warnings of stderr may precede; a text where it shows none."""
    start = output.find("{")
    try:
        found = as_dict(loads(output[start : output.rfind("}") + 1])) if start >= 0 else {}
    except ValueError:
        found = {}
    shown = as_dict(as_dict(found.get("result")).get("output"))
    info, advice = as_dict(shown.get("Module Info")), as_dict(shown.get("Troubleshooting Info"))
    if not info and "Operational Info" not in shown:
        error = re.search(r"-E-\s*(\S.*)", output)
        words = text(as_dict(found.get("status")).get("message")) if found else last_line(output)
        return error[1].strip() if error else words
    readings = tuple(
        Reading(name, unit, tuple(map(float, value[1].split(","))), float(value[2]), float(value[3]))
        for key, (name, unit) in QUANTITIES.items()
        if (value := _VALUE.fullmatch(text(info.get(key)).strip())) and float(value[2]) < float(value[3])
    )
    kind = (text(info.get(key)).strip() for key in ("Vendor Name", "Vendor Part Number", "Cable Type"))
    is_fault = _FAULT.fullmatch(text(advice.get("Status Opcode")))
    trouble = text(advice.get("Recommendation")).strip() if is_fault else ""
    serial = text(info.get("Vendor Serial Number")).strip()
    words = " ".join(word for word in kind if word not in ("", "N/A"))
    return Module(words, readings, trouble, serial if serial != "N/A" else "")


OPTICS = Probe(
    "optics",
    script(__package__, "optics.sh"),
    parse_optics,
    root=True,
    timeout=180,  # 8 adapters take a second each, or 15 where one hangs
    by_hand="mlxlink -d mlx5_0 -m",
    alone=True,
)
