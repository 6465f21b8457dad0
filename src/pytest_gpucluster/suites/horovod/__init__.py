"""Horovod."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    by_profile=("horovod.*",),
    order=9,
    markers=("horovod: Horovod starts, finds its ranks and trains", "gloo: runs over the gloo controller"),
    section="config:HorovodConfig",
    partners=1,
    proof=("horovod.build", "horovod.transport", "horovod.between"),
    frameworks=("horovod",),
    needs=("horovod", "2 nodes"),
)
