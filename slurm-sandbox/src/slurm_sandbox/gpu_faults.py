"""Faults of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_sandbox.errors import SandboxError
from slurm_sandbox.fault_registry import NEEDS_RESET, gpu_of, node_fault, require, set_fields
from slurm_sandbox.hardware import SimulatedGpuProcess

if TYPE_CHECKING:
    from slurm_sandbox.fault_registry import Options
    from slurm_sandbox.hardware import SimulatedGpu, SimulatedNode


@node_fault("a GPU fell off the bus", gpu=5)
def _gpu_missing(node: SimulatedNode, options: Options) -> None:
    node.gpus.remove(gpu_of(node, options))


@node_fault("a GPU of another model", gpu=1, name="NVIDIA H100 80GB HBM3")
def _gpu_name(node: SimulatedNode, options: Options) -> None:
    gpu = gpu_of(node, options)
    if gpu.fields["name"] == options["name"]:
        raise SandboxError(f"{node.name} has {options['name']} already: choose another name")
    set_fields(gpu, name=options["name"])


@node_fault("a GPU has less memory", gpu=1, mib=141_312)
def _gpu_memory(node: SimulatedNode, options: Options) -> None:
    gpu = gpu_of(node, options)
    free = options["mib"] - int(gpu.fields["memory.reserved"])
    set_fields(gpu, memory__total=str(options["mib"]), memory__free=str(free))


@node_fault("uncorrectable ECC errors since the driver was loaded", gpu=2, count=3)
def _ecc_volatile(node: SimulatedNode, options: Options) -> None:
    count = str(options["count"])
    fields = gpu_of(node, options).fields
    for name in ("total", "dram", "device_memory"):
        fields[f"ecc.errors.uncorrected.volatile.{name}"] = count


@node_fault("uncorrectable SRAM errors beyond the GPU's own threshold", gpu=2, count=12)
def _ecc_aggregate_sram(node: SimulatedNode, options: Options) -> None:
    count = str(options["count"])
    gpu = gpu_of(node, options)
    set_fields(gpu, ecc__errors__uncorrected__aggregate__sram=count, ecc__errors__uncorrected__aggregate__total=count)
    counters = {"sram.secded": count, "sram.sm": count, "sram.thresholdExceeded": "Yes"}  # since driver 550
    for name, value in counters.items():
        if (field := f"ecc.errors.uncorrected.aggregate.{name}") in gpu.fields:
            gpu.fields[field] = value


@node_fault("ECC is switched off", gpu=2)
def _ecc_off(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), ecc__mode__current="Disabled", ecc__mode__pending="Disabled")


@node_fault("a memory row could not be remapped", gpu=3)
def _remap_failure(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), remapped_rows__failure="Yes")


@node_fault("a remapped row waits for a reset", gpu=3)
def _remap_pending(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), remapped_rows__pending="Yes")


@node_fault("an NVLink is down", gpu=4, link=7)
def _nvlink_down(node: SimulatedNode, options: Options) -> None:
    gpu = _linked(node, options)
    gpu.links[int(options["link"])] = None
    count = len(gpu.links)
    index = node.gpus.index(gpu)
    counted = not node.spec.wiring.gpus
    for other in range(len(node.gpus)):  # the matrix still counts the trained links
        if other != index and counted:
            node.topology[(min(index, other), max(index, other))] = f"NV{count}"


@node_fault("an NVLink replays and shows more CRC errors each second", gpu=4, link=3, rate=200)
def _nvlink_errors(node: SimulatedNode, options: Options) -> None:
    _linked(node, options).link_errors[int(options["link"])] = (0, 2, 0, int(options["rate"]))


@node_fault("old CRC errors of an NVLink", harmless=True, gpu=4, link=3, count=143)
def _nvlink_errors_old(node: SimulatedNode, options: Options) -> None:
    _linked(node, options).link_errors[int(options["link"])] = (0, 0, int(options["count"]), 0)


def _linked(node: SimulatedNode, options: Options) -> SimulatedGpu:
    gpu = gpu_of(node, options)
    if not 0 <= int(options["link"]) < len(gpu.links):
        raise SandboxError(f"GPUs of the model {node.spec.name} have {len(gpu.links)} NVLinks")
    return gpu


@node_fault("a GPU runs on fewer PCIe lanes", gpu=6, width=8)
def _pcie_width(node: SimulatedNode, options: Options) -> None:
    require(options["width"], "lanes to lose", node)
    set_fields(gpu_of(node, options), pcie__link__width__current=str(options["width"]))


@node_fault("a GPU trained to a slower PCIe generation", gpu=6, generation=3)
def _pcie_generation(node: SimulatedNode, options: Options) -> None:
    generation = str(options["generation"])
    fields = gpu_of(node, options).fields
    for name in ("current", "gpucurrent", "max"):
        fields[f"pcie.link.gen.{name}"] = generation


@node_fault("hardware slowdown: power brake or overheating", gpu=0)
def _throttled(node: SimulatedNode, options: Options) -> None:
    set_fields(
        gpu_of(node, options),
        clocks_event_reasons__active="0x0000000000000088",
        clocks_event_reasons__gpu_idle="Not Active",
        clocks_event_reasons__hw_slowdown="Active",
        clocks_event_reasons__hw_power_brake_slowdown="Active",
    )


@node_fault("a hardware slowdown that ended after one reading", harmless=True, gpu=0)
def _throttled_once(node: SimulatedNode, options: Options) -> None:
    gpu = gpu_of(node, options)
    before = dict(gpu.fields)
    _throttled(node, options)
    gpu.first, gpu.fields = dict(gpu.fields.items() - before.items()), before


@node_fault("a GPU is hot", gpu=0, celsius=96)
def _hot(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), temperature__gpu=str(options["celsius"]))


@node_fault("the power limit was lowered", gpu=7, watts=500)
def _power_limit(node: SimulatedNode, options: Options) -> None:
    watts = f"{float(options['watts']):.2f}"
    set_fields(gpu_of(node, options), power__limit=watts, enforced__power__limit=watts)


@node_fault("persistence mode is off", gpu=0)
def _persistence_off(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), persistence_mode="Disabled")


@node_fault("MIG is on", gpu=1)
def _mig_on(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), mig__mode__current="Enabled", mig__mode__pending="Enabled")


@node_fault("compute mode is exclusive", gpu=1)
def _compute_mode(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), compute_mode="Exclusive_Process")


@node_fault("memory is in use on an idle GPU", gpu=2, mib=40_960)
def _idle_memory(node: SimulatedNode, options: Options) -> None:
    gpu = gpu_of(node, options)
    free = int(gpu.fields["memory.total"]) - int(options["mib"])
    set_fields(gpu, memory__used=str(options["mib"]), memory__free=str(free))


@node_fault("a process of an ended job still uses a GPU", gpu=2, pid=54_321)
def _stray_process(node: SimulatedNode, options: Options) -> None:
    gpu_of(node, options).apps.append(SimulatedGpuProcess(int(options["pid"]), "python3", 528))


@node_fault("the driver reports an Xid", xid=46, gpu=5, recovered=0)
def _xid(node: SimulatedNode, options: Options) -> None:
    gpu, number = gpu_of(node, options), int(options["xid"])
    line = f"NVRM: Xid (PCI:{gpu.fields['pci.bus_id'][4:14].lower()}): {number}, pid='<unknown>', name=<unknown>"
    node.kernel_log.append(f"[1802114.551208] {line}, simulated error {number}")
    if number in NEEDS_RESET and not int(options["recovered"]):
        set_fields(gpu, gpu_recovery_action="Reset")


@node_fault("a GPU has the UUID of another one", gpu=1, of=0)
def _duplicate_uuid(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), uuid=gpu_of(node, {"gpu": options["of"]}).fields["uuid"])


@node_fault("a GPU has another VBIOS", gpu=3, version="96.00.74.00.0B")
def _vbios_drift(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), vbios_version=options["version"])


@node_fault("the node has another driver", version="570.172.08")
def _driver_drift(node: SimulatedNode, options: Options) -> None:
    for gpu in node.gpus:
        set_fields(gpu, driver_version=options["version"])


@node_fault("a library of the driver is empty", library="libnvidia-ptxjitcompiler.so.1")
def _library_empty(node: SimulatedNode, options: Options) -> None:
    node.empty_libraries.append(str(options["library"]))


@node_fault("nvidia-fabricmanager restarts again and again")
def _fabric_manager_dead(node: SimulatedNode, options: Options) -> None:
    require(node.spec.nvswitch, "NVSwitch", node)
    node.services["nvidia-fabricmanager"] = "activating"


@node_fault("fabric manager runs in a container, not on the host", harmless=True)
def _fabric_manager_elsewhere(node: SimulatedNode, options: Options) -> None:
    require(node.spec.nvswitch, "NVSwitch", node)
    set_fields(node.gpus[0], fabric__state="Completed")  # refused where GPUs do not report it
    node.services["nvidia-fabricmanager"] = "inactive"
    node.processes = [process for process in node.processes if process.comm != "nv-fabricmanage"]


@node_fault("a GPU did not register with the NVLink fabric", gpu=0)
def _fabric_state(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), fabric__state="Completed", fabric__status="Insufficient Resources")


@node_fault("a GPU still registers with the NVLink fabric", gpu=0)
def _fabric_registering(node: SimulatedNode, options: Options) -> None:
    set_fields(gpu_of(node, options), fabric__state="In Progress", fabric__status="N/A")


@node_fault("two GPUs are connected over PCIe instead of NVLink", gpu=0, peer=1, hop="SYS")
def _topology(node: SimulatedNode, options: Options) -> None:
    require(not node.spec.wiring.gpus and node.spec.nvlinks, "NVLinks between any two GPUs", node)
    pair = sorted((int(options["gpu"]), int(options["peer"])))
    node.topology[(pair[0], pair[1])] = str(options["hop"])
