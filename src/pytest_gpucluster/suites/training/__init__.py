"""A short pre-training: the last word before a cluster is handed over."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    by_profile=("training.*",),
    order=15,
    markers=("training: a transformer pre-trains on each node alone and on all nodes, by torch",),
    section="config:TrainingConfig",
    profile_rows="config:TrainingLimit",
    frameworks=("torch",),
    partners=1,
    proof=("training.framework", "training.alone", "training.transport", "training.between"),
    leftover_folders="steps:folders",
    needs=("torch", "2 nodes"),
)
