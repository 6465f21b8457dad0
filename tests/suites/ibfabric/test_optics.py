"""What mlxlink shows of modules, and what is said where it is absent, may not run or cannot read one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.ibfabric.optics import OPTICS, Module, Optics, Reading, read_module

# of an OSFP module with MFT 4.3x, one lane with little light
OSFP = {
    "Cable Type": "Optical Module (separated)",
    "Rx Power Current [dBm]": "0,2,-9,0 [-8..6]",
    "Temperature [C]": "48 [-5..75]",
    "Tx Power Current [dBm]": "2.281,2.1,2,2 [-8.508..5]",
    "Vendor Name": "ACCELINK",
    "Vendor Part Number": "RTXM600-2401        ",
    "Vendor Serial Number": "AC7042   ",
    "Voltage [mV]": "3273.6 [2970..3630]",
}
LIGHT = dict.fromkeys(("Rx Power Current [dBm]", "Tx Power Current [dBm]"), "0,0,0,0 [0..0]")
# copper: MFT 4.35 with diagnostics that state nothing, and 4.30 without
DAC = OSFP | LIGHT | {"Temperature [C]": "0 [0..0]", "Cable Type": "Passive copper cable"}
NONE = dict.fromkeys(OSFP, "N/A") | {"Cable Type": "Passive copper cable"}
ICMD = "Checking firmware raised the following exception: Failed to send access register: ICMD error 0x4"


def shown(info: dict[str, str], others: dict[str, Any] | None = None) -> str:
    output = {"Module Info": info, **(others or {})}
    return json.dumps({"result": {"output": output}, "status": {"code": 0}}, indent="\t")


def printed(user: int = 0, **modules: str) -> bytes:
    parts = (f"= {name}\n{text}\n= exit {int('-E-' in text)}\n" for name, text in modules.items())
    return f"{''.join(parts)}user {user}\nend\n".encode()


def read(out: bytes, rc: int = 0, err: bytes = b"") -> Optics:
    return OPTICS.parse(Answer("gpu01", rc, out, err))


def test_lanes_and_limits_of_an_optical_module() -> None:
    found = read(printed(mlx5_0=shown(OSFP), mlx5_1=f"\x1b[31m\n-E- {ICMD}\n\n\x1b[0m\n"))
    module = found.modules["mlx5_0"]
    assert (module.kind, module.serial) == ("ACCELINK RTXM600-2401 Optical Module (separated)", "AC7042")
    assert module.readings == (
        Reading("module_temperature", "C", (48.0,), -5.0, 75.0),
        Reading("rx_power", "dBm", (0.0, 2.0, -9.0, 0.0), -8.0, 6.0),
        Reading("tx_power", "dBm", (2.281, 2.1, 2.0, 2.0), -8.508, 5.0),
    )
    assert found.problems == {"mlx5_1": ICMD}


def test_what_the_firmware_finds_wrong_with_the_link() -> None:
    cases = (("15", "Bad", "Bad"), ("0", "No issue was observed", ""), ("N/A", "N/A", ""))
    for opcode, words, trouble in cases:
        advice = {"Group Opcode": "N/A", "Recommendation": words, "Status Opcode": opcode}
        module = read_module(shown(OSFP, {"Troubleshooting Info": advice}))
        assert isinstance(module, Module)
        assert module.trouble == trouble


def test_modules_without_limits_and_adapters_without_a_module() -> None:
    for info in (DAC, NONE):
        module = read_module("-W- a warning of stderr\n" + shown(info))
        assert isinstance(module, Module)
        assert (module.readings, module.kind.endswith("Passive copper cable")) == ((), True)
        assert module.serial == info["Vendor Serial Number"].strip().removeprefix("N/A")
    # a mezzanine at a backplane, or one that is soldered to an NVSwitch
    found = {"Operational Info": {"State": "Active"}, "Troubleshooting Info": {"Status Opcode": "0"}}
    assert read_module(json.dumps({"result": {"output": found}})) == Module("", ())
    failed = json.dumps({"status": {"code": 1, "message": 'Failed to open device: "mlx5_0"'}})
    assert read_module(failed) == 'Failed to open device: "mlx5_0"'
    assert read(printed(mlx5_0="{ cut")).problems == {"mlx5_0": "{ cut"}


@pytest.mark.parametrize(
    ("out", "rc", "err", "words"),
    [
        (b"absent\nuser 0\nend\n", 0, b"", "mlxlink is not installed: install NVIDIA's MFT, or mstflint"),
        (printed(1000, mlx5_0="-E- Failed to open device\n"), 0, b"", "needs root: set sudo: true"),
        (b"", 1, b"sudo: a password is required\n", "a password is required"),
    ],
)
def test_where_mlxlink_cannot_run_it_is_not_checked(out: bytes, rc: int, err: bytes, words: str) -> None:
    with pytest.raises(NotAvailable, match=words):
        read(out, rc, err)


def test_a_node_without_infiniband_has_no_modules_and_a_cut_answer_is_not_understood() -> None:
    assert read(printed(1000)) == Optics()
    with pytest.raises(ProbeError, match="ended early"):
        read(printed(mlx5_0=shown(OSFP))[:-4])
