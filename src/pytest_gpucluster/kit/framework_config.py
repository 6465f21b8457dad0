"""The frameworks that a cluster file claims, one section each. A suite without a section is not applicable."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pytest_gpucluster.config.values import (
    Bandwidth,
    ContainerMount,
    Duration,
    FolderPath,
    Image,
    Model,
    Nodes,
    Size,
    Tasks,
    Text,
)

Launcher = Annotated[str, Field(pattern=r"^(mpirun|srun( --mpi=[\w.]+)?)$")]
ThreadLevel = Literal["single", "funneled", "serialized", "multiple"]


class FrameworkConfig(Model):
    """A framework that must work on the nodes."""

    environment: Text | None = Field(None, description="name under `environments`, used for the steps")
    nodes: Nodes | None = Field(None, description="number of nodes to use; default: all allocated nodes")
    ntasks_per_node: Tasks | None = Field(
        None, description="tasks per node; default: one per GPU, or two without GPUs"
    )
    deadline: Duration = Field(300, description="time limit of one step")


class ContainerConfig(FrameworkConfig):
    """Pyxis and Enroot: the images that must start."""

    image: Image | None = Field(
        None,
        description="image of most checks: a .sqsh path or REGISTRY#IMAGE:TAG; default: that of the environment",
    )
    images: tuple[Image, ...] = Field((), description="further images that every node must import")
    release: Text | None = Field(
        None, description="ID VERSION_ID of the image's os-release, like 'ubuntu 24.04'"
    )
    mounts: tuple[ContainerMount, ...] = Field(
        (), description="mounts that must work on every node: SOURCE:TARGET[:FLAGS], like /data:/data:ro"
    )
    version: Text | None = Field(None, description="version of Pyxis or its beginning, like 0.24")
    mount_home: bool = Field(default=False, description="the site mounts the home folder by default")
    rank_hook: bool | None = Field(
        None, description="Enroot's hook 50-slurm-pytorch.sh; true: it must be installed, false: it must not"
    )
    entrypoint_sets: Text | None = Field(None, description="variable that the image's entrypoint sets")
    memlock: Text | None = Field(
        None, description="limit of locked memory in the container, like unlimited; default: that of the node"
    )
    shm: Size | None = Field(
        None, description="lowest size of /dev/shm in the container; default: that of the node"
    )
    min_free: Size = Field(10 * 2**30, description="free space on Enroot's data, cache and temporary paths")
    scratch: FolderPath = Field(
        "/tmp", description="folder on each node for files of the checks"
    )  # a node's own
    save: bool = Field(
        default=True, description="also save a container, which packs the whole image once per node"
    )
    keep: bool = Field(default=False, description="keep imported containers on the nodes for the next run")


class MpiConfig(FrameworkConfig):
    """MPI by mpirun and by srun."""

    launchers: tuple[Launcher, ...] = Field(
        ("mpirun", "srun"),
        min_length=1,
        description="launchers that must start MPI programs: mpirun, 'srun --mpi=TYPE', or srun with the type of the "
        "environment or Slurm's MpiDefault",
    )
    languages: tuple[Literal["c", "python"], ...] = Field(
        ("c",), min_length=1, description="c: compiled on the nodes or in the image; python: mpi4py"
    )
    compiler: Text = Field("mpicc", description="name or path of the compiler")
    mpirun: Text = Field("mpirun", description="name or path of mpirun")
    mpirun_args: tuple[str, ...] = Field((), description="further mpirun options, passed unchanged")
    implementation: Text | None = Field(
        None, description="version string of the library or its beginning, like 'Open MPI v4.1'"
    )
    prefix: FolderPath | None = Field(
        None, description="folder of the site's MPI; mpirun must be bin/mpirun in it"
    )
    threads: ThreadLevel = Field("funneled", description="thread level that the MPI library must provide")
    max_latency: float | None = Field(
        None, gt=0, description="highest latency between nodes in microseconds, one way, 8 bytes"
    )
    min_bandwidth: Bandwidth | None = Field(
        None, gt=0, description="lowest bandwidth between nodes in GB/s, one way, 4 MiB"
    )
    scratch: FolderPath = Field(
        "/tmp",  # a node's own
        description="folder on each node for the compiled program; must not be mounted noexec",
    )


RankVariable = Literal["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]


class DdpConfig(FrameworkConfig):
    """torch.distributed: rank environment, process groups, a training step."""

    provided: tuple[RankVariable, ...] = Field(
        (),
        description="variables that the site's Pyxis, hooks or prologs must set; the suite sets the others",
    )
    lost_rank: Duration = Field(60, description="a job must end within this time after one of its ranks died")


class HorovodConfig(FrameworkConfig):
    """Horovod on PyTorch and TensorFlow, with gloo and MPI controllers."""

    frameworks: tuple[Literal["pytorch", "tensorflow"], ...] = Field(
        ("pytorch",), min_length=1, description="frameworks that Horovod must be built for; each is tested"
    )
    controllers: tuple[Literal["gloo", "mpi"], ...] = Field(
        ("gloo",), min_length=1, description="controllers that Horovod must be built with; each is tested"
    )
    operations: tuple[Literal["nccl", "mpi", "gloo", "ccl", "ddl"], ...] | None = Field(
        None,
        min_length=1,
        description="tensor operations that the build must have; default: nccl if the profile has GPUs, else gloo",
    )
    launchers: tuple[Literal["srun", "horovodrun"], ...] | None = Field(
        None,
        min_length=1,
        description="launchers that must start jobs; default: srun, and horovodrun where ssh works between nodes",
    )
    interface: Text | None = Field(
        None, description="network interface; default: the interface between the nodes"
    )
    mpi: Text = Field("pmix", description="srun --mpi=TYPE of the MPI controller")


class RayConfig(FrameworkConfig):
    """Ray: head and workers as steps of one allocation."""

    cpus: int | None = Field(None, ge=1, description="CPUs for Ray per node; default: those of Slurm")
    gpus: int | None = Field(None, ge=0, description="GPUs for Ray per node; default: those of Slurm")
    interface: Text | None = Field(
        None, description="network interface; default: the interface between the nodes"
    )
    port: int | None = Field(
        None, ge=1024, le=32000, description="first port of the head, the others follow; default: free ports"
    )
    temp: FolderPath = Field(
        "/tmp",  # a node's own
        max_length=20,
        description="folder on each node for Ray's session; the path must be short",
    )
    token: bool = Field(default=True, description="start Ray with token authentication (Ray 2.52 and later)")
    tune: bool = Field(default=True, description="also test Ray Tune")
    join: Duration = Field(60, description="time limit for head and workers to start")
    leave: Duration = Field(60, description="time limit for workers to end after the head is lost")


class TensorflowConfig(FrameworkConfig):
    """TensorFlow's distribution strategies."""


class SubmititConfig(FrameworkConfig):
    """submitit: functions as Slurm jobs, submitted where pytest runs."""

    folder: FolderPath | None = Field(
        None,
        description="folder shared by this machine and all nodes; default: the first of os.shared_storage",
    )
    wait: Duration = Field(120, description="the jobs must end within this time once the nodes are free")


class MatrixConfig(Model):
    """The experiment matrix: launchers by workloads. The column MPI uses the section `mpi`, NCCL uses `nccl`."""

    container: Text | None = Field(
        None, description="name under `environments`, with a plain container_image"
    )
    framework: Text | None = Field(
        None, description="name under `environments`, with the container_image of a framework, like PyTorch"
    )
    nodes: Nodes | None = Field(None, description="number of nodes to use; default: all allocated nodes")
    ntasks_per_node: Tasks = Field(2, description="tasks per node of the CPU and MPI workloads")
    expected: dict[str, str] = Field(
        {}, description="ROW-COLUMN: why this cell is expected to fail, like 'srun-mpi: no PMI support'"
    )
    deadline: Duration = Field(120, description="time limit of one cell")
