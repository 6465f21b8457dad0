"""torch.distributed."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    by_profile=("ddp.*",),
    order=11,
    markers=("ddp: torch.distributed starts, finds its ranks and trains",),
    section="config:DdpConfig",
    frameworks=("torch",),
    partners=1,
    proof=("ddp.framework", "ddp.devices", "ddp.transport", "ddp.between"),
    needs=("torch", "2 nodes"),
)
