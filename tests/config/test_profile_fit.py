"""Which profiles fit a node: each fact that differs from the profile, or was not read, excludes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucluster.config.init_template import fitting, misfits
from pytest_gpucluster.config.profile_files import load_profile, profile_names
from pytest_gpucluster.core.survey import Hardware

MIB = 2**20
H100 = Hardware(
    (("NVIDIA H100 80GB HBM3", 81559 * MIB),) * 8,
    (18,) * 8,
    frozenset({"NV18"}),
    ports=(("InfiniBand", 50.0),) * 8,
    virtual=False,
)


def test_all_facts_fit() -> None:
    assert fitting(H100, 8) == ["dgx-h100"]
    assert fitting(H100, 4) == []
    more = (*H100.ports, ("Ethernet", 12.5), ("InfiniBand", 12.5))  # of storage
    assert fitting(replace(H100, ports=more), 8) == ["dgx-h100"]


@pytest.mark.parametrize(
    "other",
    [
        replace(H100, gpus=((*H100.gpus[:7], ("NVIDIA H200", 143771 * MIB)))),
        replace(H100, gpus=(("NVIDIA H100 80GB HBM3", 97871 * MIB),) * 8),
        replace(H100, gpus=(("NVIDIA H100 80GB HBM3", None),) * 8),
        replace(H100, nvlinks=(18,) * 7 + (17,)),
        replace(H100, links=frozenset({"NV18", "SYS"})),
        replace(H100, ports=(("InfiniBand", 50.0),) * 7),
        replace(H100, ports=(("InfiniBand", 25.0),) * 8),
        replace(H100, ports=()),
        replace(H100, virtual=True),
        Hardware(),
    ],
)
def test_one_fact_that_differs_excludes_all_profiles(other: Hardware) -> None:
    assert fitting(other, 8) == []


@pytest.mark.parametrize(
    ("vendor", "found"), [("Google", ["gcp-a3-high", "gcp-a3-mega"]), ("Microsoft Corporation", []), ("", [])]
)
def test_instance_types_fit_machines_of_their_cloud(vendor: str, found: list[str]) -> None:
    assert fitting(replace(H100, ports=(), virtual=True, vendor=vendor), 8) == found


def test_each_shipped_profile_fits_the_hardware_that_it_states() -> None:
    """No profile is out of reach: a node with what it states gets it, or another with the same facts."""
    for name in profile_names():
        profile = load_profile(name)
        if profile.gpu is None or profile.simulated:
            continue
        gpu, fabric = profile.gpu, profile.fabric
        vendors = {"aws": "Amazon EC2", "azure": "Microsoft", "gcp": "Google"}
        vendor = vendors.get(name.partition("-")[0], "")
        node = Hardware(
            ((gpu.name, gpu.memory),) * gpu.count,
            (gpu.nvlinks or 0,) * gpu.count,
            frozenset({gpu.topology or "SYS"}),
            ports=((fabric.link_layer, fabric.rate or 1.0),) * fabric.hcas,
            virtual=bool(vendor) or name.endswith("-vm"),
            vendor=vendor,
        )
        assert name in fitting(node, gpu.count), misfits(profile, node, gpu.count)
