"""The versions in the facts of a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, text_of
from pytest_gpucluster.kit.gpu.fabric_manager import FABRIC_MANAGER, FabricManager
from pytest_gpucluster.kit.gpu.nvidia_smi import GPUS, Gpus
from pytest_gpucluster.suites.os import facts as basics


def _gpus(cuda: str, *devices: tuple[str, str, str]) -> Gpus:
    found = [SimpleNamespace(name=name, driver=driver, vbios=vbios) for name, driver, vbios in devices]
    return Gpus(cast("Any", tuple(found)), cuda=cuda)  # of a GPU, only these three count here


SEVERAL = _gpus("12.4", ("H200", "550", "B"), ("H200", "550", "A"), ("H100", "550", ""))
OF_ALL = {"GPUs": "H100, H200", "NVIDIA driver": "550", "VBIOS": "A, B", "CUDA of the driver": "12.4"}


@pytest.mark.parametrize(
    ("probe", "facts", "versions"),
    [
        (basics.KERNEL, "6.8.0", {"kernel": "6.8.0"}),
        (basics.RELEASE, "ubuntu 24.04", {"operating system": "ubuntu 24.04"}),
        (basics.KERNEL, ("6.8.0",), {}),
        (GPUS, SEVERAL, OF_ALL),
        (GPUS, _gpus("", ("H200", "550", "")), {"GPUs": "H200", "NVIDIA driver": "550"}),
        (GPUS, _gpus(""), {}),
        (FABRIC_MANAGER, FabricManager("active", "550.54.15"), {"fabric manager": "550.54.15"}),
        (FABRIC_MANAGER, FabricManager("active", None), {}),
        (FABRIC_MANAGER, FabricManager("active", ""), {}),
    ],
)
def test_versions_in_the_facts_of_a_probe(probe: Probe[Any], facts: object, versions: dict[str, str]) -> None:
    assert probe.versions(facts) == versions


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer("n", 127), "command not found"),
        (Answer("n", 126, b"out", b"x\nPermission denied\n"), "Permission denied"),
        (Answer("n", 2, b"out\n", b"err\n"), "err (exit 2)"),
        (Answer("n", 2, b"out\n"), "out (exit 2)"),
        (Answer("n", 0, b"x", truncated=True), "cut at the cap"),
    ],
)
def test_a_command_without_a_whole_answer_is_not_checked(answer: Answer, why: str) -> None:
    with pytest.raises(NotAvailable) as caught:
        text_of(answer)
    assert why in str(caught.value)
    assert text_of(Answer("n", 0, b"x")) == "x"


@pytest.mark.parametrize("raised", [KeyError("x"), ValueError("x"), RecursionError("x"), AttributeError("x")])
def test_whatever_a_reader_raises_is_an_error_of_the_probe_that_names_it(raised: Exception) -> None:
    def read_half(answer: Answer) -> None:
        raise raised

    with pytest.raises(ProbeError, match=r"half: the output is not understood: .* in read_half \(test_probe.py:\d+\)"):
        Probe("half", "true", read_half).parse(Answer("n", 0, b"1"))
