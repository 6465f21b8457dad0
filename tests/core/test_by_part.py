"""Commands name the parts of a finding; what cannot be named is left out."""

from __future__ import annotations

import re

import pytest

from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.core.part import Part, gpu, named, nvlink
from pytest_gpucluster.core.part_commands import for_parts
from pytest_gpucluster.core.registry import import_checks

GPU = gpu(3, uuid="GPU-9a80e8a7-3666-8cbc-48a4-f67d9da8c8d8", address="0000:61:00.0")


@pytest.mark.parametrize(
    ("command", "parts", "written"),
    [
        ("nvidia-smi -q -d ECC -i INDEX; reboot", [GPU], "nvidia-smi -q -d ECC -i 3; reboot"),
        ("nvidia-smi -i INDEX", [GPU, GPU, nvlink(2, gpu(5))], "nvidia-smi -i 3,5"),
        ("nvidia-smi -i INDEX -c DEFAULT", [gpu(None, uuid="GPU-9a")], "nvidia-smi -c DEFAULT"),
        ("nvidia-smi -i INDEX", [GPU, named("software", "driver")], "nvidia-smi"),
        ("nvidia-smi -i INDEX", [], "nvidia-smi"),
        ("systemctl status PART", [named("service", "a b"), named("service", "c")], "systemctl status 'a b'"),
        ("cat PART/state", [named("file", "/odd;name")], "cat '/odd;name'/state"),
        ("systemctl status PART", [], "systemctl status PART"),
        ("systemctl status PART", [Part()], "systemctl status PART"),
        ("the PARTITION and its INDEXES", [GPU], "the PARTITION and its INDEXES"),
    ],
)
def test_a_command_names_the_parts(command: str, parts: list[Part], written: str) -> None:
    assert for_parts(command, parts) == written


def test_no_command_of_a_check_asks_for_a_number_but_as_an_option() -> None:
    """Only that is left out where the finding names no part with a number."""
    import_checks()
    texts = [text for one in CHECKS.values() for text in (one.hint, one.show)]
    number = re.compile(r"\bINDEX\b")
    assert any(map(number.search, texts))
    assert [text for text in texts if number.search(for_parts(text, []))] == []
