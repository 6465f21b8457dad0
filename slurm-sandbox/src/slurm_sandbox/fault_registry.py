"""What a fault is, the table of faults, and how one is applied to a node.

Most change the files of the simulated node; those of Slurm are real: a node is drained, its slurmd killed, its
prolog fails.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slurm_sandbox import hostlist
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.models import healthy_fields

if TYPE_CHECKING:
    from collections.abc import Collection

    from slurm_sandbox.hardware import SimulatedGpu, SimulatedHca, SimulatedNode
    from slurm_sandbox.models import NodeModel

Options = dict[str, Any]
Change = Callable[["SimulatedNode", Options], None]


@dataclass(frozen=True)
class InjectedFault:
    """A fault that is active."""

    kind: str
    node: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """One kind of fault; `options`: {name: default}.

    `change` modifies the simulated node; None for a fault of Slurm, which `action` names among the ACTIONS. `harmless`:
    nothing is wrong, or not any more, and a test of the node must not fail.
    """

    name: str
    description: str
    options: Options
    change: Change | None = None
    action: str = ""
    harmless: bool = False


FAULTS: dict[str, Fault] = {}
SLOW_LINK, LINK_ENDS = "slow_link", 2
NO_PID = 4_194_304  # PID_MAX_LIMIT of the kernel: above it, no process of this machine has the number
NONE = "[N/A]"  # nvidia-smi's text for unsupported fields
# Xids with which the driver sets a recovery action (https://docs.nvidia.com/deploy/xid-errors/)
NEEDS_RESET = (48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 143, 155, 156, 158, 171, 172)


def node_fault(description: str, *, harmless: bool = False, **options: Any) -> Callable[[Change], Change]:
    """Register a change of a node as a fault, by the name of its function.

    `options`: {name: default}.
    """

    def register(change: Change) -> Change:
        name = change.__name__.strip("_")
        FAULTS[name] = Fault(name, description, options, change, harmless=harmless)
        return change

    return register


def slurm_fault(name: str, description: str, **options: Any) -> None:
    """Register a fault of Slurm, whose action has the same name."""
    FAULTS[name] = Fault(name, description, options, action=name)


def find(kind: str) -> Fault:
    """Return a kind of fault; SandboxError names the nearest kind."""
    if kind not in FAULTS:
        close = difflib.get_close_matches(kind, FAULTS, n=1)
        known = f"; did you mean '{close[0]}'?" if close else "; `fault --list` lists all kinds"
        raise SandboxError(f"unknown fault {kind!r}{known}")
    return FAULTS[kind]


def resolve_options(fault: Fault, options: Options, spec: NodeModel | None = None, gpus: int = 0) -> Options:
    """Return the options with their defaults, on nodes of this model with `gpus` GPUs.

    SandboxError names the options of the fault.
    """
    unknown = sorted(options.keys() - fault.options.keys())
    if unknown:
        known = ", ".join(sorted(fault.options)) or "none"
        raise SandboxError(f"fault {fault.name} has no option {', '.join(unknown)} (options: {known})")
    defaults = dict(fault.options)
    if spec is not None:
        defaults = {name: _fit_default(name, value, spec, gpus) for name, value in defaults.items()}
    return {**defaults, **options}


def placed(
    fault: Fault, names: tuple[str, ...], options: Options, known: Collection[str]
) -> tuple[tuple[str, ...], Options]:
    """Return the nodes to change and the options: two nodes of slow_link without `peer` are the ends of one link.

    SandboxError for a link without another end among the nodes of the sandbox, `known`.
    """
    if fault.name != SLOW_LINK:
        return names, options
    if "peer" not in options and len(names) == LINK_ENDS:
        return names[:1], {**options, "peer": names[1]}
    peer = options.get("peer", fault.options["peer"])
    if ("peer" not in options and len(names) > LINK_ENDS) or peer in names or peer not in known:
        raise SandboxError(
            f"fault {SLOW_LINK} on {hostlist.fold(names)} with peer={peer} names no link: use `{SLOW_LINK} A B`, "
            "or peer=NODE for another node of the sandbox"
        )
    return names, options


def _fit_default(name: str, value: Any, spec: NodeModel, gpus: int) -> Any:
    """Return a default within the limits of the model: an existing GPU, link or adapter, and a lower value."""
    fields = healthy_fields(spec)
    ports = -(-gpus // spec.adapters.gpus_each) if spec.adapters else 0
    if name == "hca":
        return f"mlx5_{max(0, min(int(value[5:]), ports - 1))}"
    most = {
        "gpu": gpus - 1 if gpus else value,
        "link": spec.nvlinks - 1,
        "mib": int(int(fields["memory.total"]) * 0.983),
        "watts": float(fields["power.limit"]) * 0.8,
        "generation": int(fields["pcie.link.gen.max"]) - 1,
        "width": int(fields["pcie.link.width.max"]) // 2,
        "missing_gib": spec.memory_mib // 8000,
    }
    return min(value, int(most[name])) if name in most else value


def apply(node: SimulatedNode, injected: InjectedFault) -> None:
    """Apply a fault to a simulated node; faults of Slurm change nothing here."""
    fault = find(injected.kind)
    if fault.change is not None:
        fault.change(node, resolve_options(fault, injected.options, node.spec, node.device_files))


def gpu_of(node: SimulatedNode, options: Options) -> SimulatedGpu:
    """Return the GPU that the option `gpu` names; SandboxError if the node has none of this number."""
    index = int(options["gpu"])
    if not 0 <= index < len(node.gpus):
        raise SandboxError(f"{node.name} has no GPU {index}: it has 0 to {len(node.gpus) - 1}")
    return node.gpus[index]


def hca_of(node: SimulatedNode, options: Options) -> SimulatedHca:
    """Return the adapter that the option `hca` names; SandboxError if the node has none of this name."""
    for hca in node.hcas:
        if hca.name == options["hca"]:
            return hca
    raise SandboxError(f"{node.name} has no adapter {options['hca']}: it has {[h.name for h in node.hcas]}")


def set_fields(gpu: SimulatedGpu, **fields: str) -> None:
    """Set fields of nvidia-smi, '__' for '.'; SandboxError for one that the GPU does not have."""
    for name, value in fields.items():
        field = name.replace("__", ".")
        if gpu.fields.get(field, NONE) == NONE:
            raise SandboxError(f"nvidia-smi shows no {field} of a {gpu.fields['name']}")
        gpu.fields[field] = value


def require(value: object, name: str, node: SimulatedNode) -> None:
    """Raise SandboxError if the model of a node lacks what a fault changes."""
    if not value:
        raise SandboxError(f"a node of the model {node.spec.name} has no {name}")
