"""Which shipped profiles fit a node: all that a profile states of the hardware must be what was read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.config.profile_files import load_profile, profile_names

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.survey import Hardware

# a profile with this prefix is an instance type of a cloud, whose machines have this vendor in DMI
CLOUDS = {"aws-": "Amazon", "azure-": "Microsoft", "gcp-": "Google"}
GUEST = "-vm"  # end of the name of a profile of virtual machines


def fitting(hardware: Hardware, count: int) -> list[str]:
    """Return the shipped profiles that fit, best first. `count`: the GPUs that the node must have."""
    profiles = [load_profile(name) for name in profile_names()]
    found = [one for one in profiles if one.gpu and not one.simulated and not misfits(one, hardware, count)]
    return [
        one.name
        for one in sorted(found, key=lambda one: (one.gpu is None or one.gpu.count != count, one.name))
    ]


def misfits(profile: Profile, hardware: Hardware, count: int) -> list[str]:
    """Return what the profile states and the node does not have, or what could not be read; [] if the profile fits."""
    gpu, fabric = profile.gpu, profile.fabric
    assert gpu is not None
    names = {name for name, _ in hardware.gpus}
    found = (
        [f"GPUs are {', '.join(sorted(names)) or 'unknown'}, not {gpu.name}"] if names != {gpu.name} else []
    )
    if count not in (gpu.count, *gpu.counts):
        found.append(f"{count} GPUs, not {gpu.count}")
    if gpu.memory is not None and {memory for _, memory in hardware.gpus} != {gpu.memory}:
        found.append("another memory of the GPUs")
    if gpu.nvlinks is not None and count > 1 and {*hardware.nvlinks} != {gpu.nvlinks}:
        found.append(f"not {gpu.nvlinks} active NVLinks on each GPU")
    if gpu.topology is not None and count > 1 and hardware.links != {gpu.topology}:
        found.append(f"not {gpu.topology} between all GPUs")
    if fabric.link_layer == "none":
        if any(layer == "InfiniBand" for layer, _ in hardware.ports):
            found.append("the node has InfiniBand")
    else:
        ports = [rate for layer, rate in hardware.ports if layer == fabric.link_layer]
        fast = [rate for rate in ports if fabric.rate is None or abs(rate - fabric.rate) < 0.01 * fabric.rate]
        if len(fast) != fabric.hcas:
            found.append(f"{len(fast)} ports as the profile states, not {fabric.hcas}")
    return found + _machine(profile, hardware)


def _machine(profile: Profile, hardware: Hardware) -> list[str]:
    vendor = next((vendor for prefix, vendor in CLOUDS.items() if profile.name.startswith(prefix)), "")
    if vendor:
        return [] if vendor in hardware.vendor else [f"the machine is not of {vendor}"]
    if profile.name.endswith(GUEST):
        return [] if hardware.virtual else ["the node is no virtual machine"]
    if hardware.virtual and profile.gpu and profile.gpu.nvswitch:
        return ["the node is a virtual machine, whose NVSwitch belongs to the hypervisor"]
    return []
