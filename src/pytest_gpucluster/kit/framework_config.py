"""What a cluster file claims to run: one section a framework. A section that is not there is not claimed."""

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
    """A framework that has to work on the nodes."""

    environment: Text | None = Field(None, description="name under `environments` for the steps")
    nodes: Nodes | None = Field(None, description="nodes to use; default: all that are allocated")
    ntasks_per_node: Tasks | None = Field(
        None, description="tasks a node; default: one a GPU, or two without GPUs"
    )
    deadline: Duration = Field(300, description="of one step")


class ContainerConfig(FrameworkConfig):
    """Pyxis and Enroot: the images that have to start."""

    image: Image | None = Field(
        None,
        description="the image that most checks use: a .sqsh path or REGISTRY#IMAGE:TAG; default: the environment's",
    )
    images: tuple[Image, ...] = Field((), description="further images that every node has to import")
    release: Text | None = Field(
        None, description="ID VERSION_ID of the image's os-release, like 'ubuntu 24.04'"
    )
    mounts: tuple[ContainerMount, ...] = Field(
        (), description="SOURCE:TARGET[:FLAGS] that has to mount on every node, like /data:/data:ro"
    )
    version: Text | None = Field(None, description="of Pyxis, from its beginning, like 0.24")
    mount_home: bool = Field(default=False, description="the site mounts home where nothing is said")
    rank_hook: bool | None = Field(
        None, description="Enroot's 50-slurm-pytorch.sh; true: it has to be there, false: it must not"
    )
    entrypoint_sets: Text | None = Field(None, description="variable that the image's entrypoint sets")
    memlock: Text | None = Field(
        None, description="locked memory inside, like unlimited; default: as outside"
    )
    shm: Size | None = Field(None, description="lowest size of /dev/shm inside; default: as outside")
    min_free: Size = Field(10 * 2**30, description="free space on Enroot's data, cache and temporary paths")
    scratch: FolderPath = Field("/tmp", description="folder on each node for what the checks write")  # noqa: S108 - a node's own
    save: bool = Field(
        default=True, description="save a container too, which packs the whole image once a node"
    )
    keep: bool = Field(default=False, description="leave imported containers on the nodes for the next run")


class MpiConfig(FrameworkConfig):
    """MPI by mpirun and by srun."""

    launchers: tuple[Launcher, ...] = Field(
        ("mpirun", "srun"),
        min_length=1,
        description="what has to start MPI programs: mpirun, 'srun --mpi=TYPE', or srun with the type of the "
        "environment or Slurm's MpiDefault",
    )
    languages: tuple[Literal["c", "python"], ...] = Field(
        ("c",), min_length=1, description="c: compiled on the nodes or in the image; python: mpi4py"
    )
    compiler: Text = Field("mpicc", description="name or path of the compiler")
    mpirun: Text = Field("mpirun", description="name or path of mpirun")
    mpirun_args: tuple[str, ...] = Field((), description="further mpirun options, as they are")
    implementation: Text | None = Field(
        None, description="what the library calls itself, from its beginning, like 'Open MPI v4.1'"
    )
    prefix: FolderPath | None = Field(
        None, description="folder of the site's MPI; mpirun has to be its bin/mpirun"
    )
    threads: ThreadLevel = Field("funneled", description="thread level that the MPI has to provide")
    max_latency: float | None = Field(None, gt=0, description="microseconds, one way, 8 bytes, between nodes")
    min_bandwidth: Bandwidth | None = Field(None, gt=0, description="GB/s, one way, 4 MiB, between nodes")
    scratch: FolderPath = Field(
        "/tmp",  # noqa: S108 - a node's own
        description="folder on each node for the compiled program, not noexec",
    )


RankVariable = Literal["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]


class DdpConfig(FrameworkConfig):
    """torch.distributed: rank environment, process groups, a training step."""

    provided: tuple[RankVariable, ...] = Field(
        (), description="variables that the site's Pyxis, hooks or prologs have to set; we set the others"
    )
    lost_rank: Duration = Field(60, description="a job whose rank died has to end within this time")


class HorovodConfig(FrameworkConfig):
    """Horovod on PyTorch and TensorFlow, with gloo and MPI controllers."""

    frameworks: tuple[Literal["pytorch", "tensorflow"], ...] = Field(
        ("pytorch",), min_length=1, description="what Horovod has to be built for; each is run"
    )
    controllers: tuple[Literal["gloo", "mpi"], ...] = Field(
        ("gloo",), min_length=1, description="what Horovod has to be built with; each is run"
    )
    operations: tuple[Literal["nccl", "mpi", "gloo", "ccl", "ddl"], ...] | None = Field(
        None,
        min_length=1,
        description="tensor operations of the build; default: nccl where the profile has GPUs, else gloo",
    )
    launchers: tuple[Literal["srun", "horovodrun"], ...] | None = Field(
        None,
        min_length=1,
        description="what has to start jobs; default: srun, and horovodrun where ssh works between nodes",
    )
    interface: Text | None = Field(None, description="network interface; default: the one between the nodes")
    mpi: Text = Field("pmix", description="srun --mpi=TYPE of the MPI controller")


class RayConfig(FrameworkConfig):
    """Ray: head and workers as steps of one allocation."""

    cpus: int | None = Field(None, ge=1, description="CPUs that Ray is given a node; default: those of Slurm")
    gpus: int | None = Field(None, ge=0, description="GPUs that Ray is given a node; default: those of Slurm")
    interface: Text | None = Field(None, description="network interface; default: the one between the nodes")
    port: int | None = Field(
        None, ge=1024, le=32000, description="the head's first port, the others follow; default: free ones"
    )
    temp: FolderPath = Field(
        "/tmp",  # noqa: S108 - a node's own
        max_length=20,
        description="folder on each node for Ray's session; a short path",
    )
    token: bool = Field(default=True, description="start Ray with token authentication (Ray 2.52 and later)")
    tune: bool = Field(default=True, description="Ray Tune is claimed too")
    join: Duration = Field(60, description="for head and workers to be there")
    leave: Duration = Field(60, description="for workers to leave when the head is lost")


class TensorflowConfig(FrameworkConfig):
    """TensorFlow's distribution strategies."""


class SubmititConfig(FrameworkConfig):
    """submitit: functions as Slurm jobs, submitted where pytest runs."""

    folder: FolderPath | None = Field(
        None,
        description="folder that this machine and all nodes share; default: the first of os.shared_storage",
    )
    wait: Duration = Field(120, description="the jobs have to be over by then, once the nodes are free")


class MatrixConfig(Model):
    """The experiment matrix: launchers by workloads. The MPI column is that of `mpi`, the NCCL column of `nccl`."""

    container: Text | None = Field(
        None, description="name under `environments`, with a plain container_image"
    )
    framework: Text | None = Field(
        None, description="name under `environments`, with the container_image of a framework, like PyTorch's"
    )
    nodes: Nodes | None = Field(None, description="nodes to use; default: all that are allocated")
    ntasks_per_node: Tasks = Field(2, description="tasks a node of the CPU and MPI workloads")
    expected: dict[str, str] = Field(
        {}, description="ROW-COLUMN: why this cell is expected to fail, like 'srun-mpi: no PMI support'"
    )
    deadline: Duration = Field(120, description="of one cell")
