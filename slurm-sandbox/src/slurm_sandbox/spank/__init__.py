"""Containers in the sandbox: a SPANK plugin of Slurm, an image store per node, and a small image for tests.

Uses the site's Pyxis and Enroot if a path is given; else the sandbox's own small plugin (C, compiled at the start),
which has Pyxis's options, messages and exit codes.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_sandbox import commands, scripts
from slurm_sandbox.daemons import search_path
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.spank import image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurm_sandbox.layout import Layout

HERE = Path(__file__).parent
LIBRARY = "spank_pyxis.so"  # the name of the real one, since Slurm's messages contain it
_SOURCES = ("options.c", "container.c", "plugin.c")
PLUGINS, TASKS = "plugstack.conf", "spank_tasks.so"
_FLAGS = ("-std=gnu11", "-O1", "-Wall", "-fpic", "-shared")
_HEADER = "slurm/spank.h"
OFF, AUTO = "off", "auto"
RELEASE = f"{image.ID} {image.VERSION}"  # of the image for tests
_compiled: dict[tuple[str, ...], bytes] = {}  # by command: a process that starts many sandboxes compiles once


@dataclass(frozen=True)
class ContainerSupport:
    """The container support of a sandbox. `absent`: why it has none; `image`: a .sqsh for tests, if it has some.

    `prepares_tasks`: a plugin prepares every task; else the TaskProlog does, with a further process.
    """

    absent: str = ""
    image: Path | None = None
    prepares_tasks: bool = False


def missing_packages() -> str:
    """Return the packages that are missing for the sandbox's own plugin and image; '' for none."""
    tools = {"cc": "gcc", "unsquashfs": "squashfs-tools", "mksquashfs": "squashfs-tools", "ldd": "libc-bin"}
    packages = [package for tool, package in tools.items() if shutil.which(tool, path=search_path()) is None]
    if not (_headers() / _HEADER).exists():
        packages.append("libslurm-dev")
    return " ".join(dict.fromkeys(packages))


def _headers() -> Path:
    """Return the folder of the headers of the slurmd on PATH: Slurm rejects plugins of another version."""
    slurmd = shutil.which("slurmd", path=search_path()) or shutil.which("slurmd-wlm", path=search_path())
    return Path(slurmd or "/usr/sbin/slurmd").resolve().parent.parent / "include"


def install(layout: Layout, nodes: Sequence[str], *, pyxis: str, simulated_gpus: bool, gpus: int) -> ContainerSupport:
    """Install plugin, store and image in a sandbox before its start; SandboxError if that fails.

    `pyxis`: 'off', 'auto' (the sandbox's plugin if it can be compiled) or the path of the site's spank_pyxis.so.
    """
    if pyxis == OFF:
        return ContainerSupport("the sandbox was started without containers")
    packages = missing_packages()
    if packages and pyxis == AUTO:
        return ContainerSupport(f"the sandbox has no containers: apt-get install {packages}")
    if packages:
        raise SandboxError(f"containers in the sandbox need: apt-get install {packages}")
    folder = layout.enroot
    for name in ("bin", "hooks.d", "config/mounts.d"):
        (folder / name).mkdir(parents=True)
    if pyxis == AUTO:
        _compile(folder / LIBRARY, _SOURCES)
        _own_tool(layout)
        line = f"required {folder / LIBRARY}"
    else:
        library = _site_library(pyxis)
        _site_tool(layout)
        runtime = layout.run / "pyxis"
        runtime.mkdir()
        line = f"required {library} runtime_path={runtime}"
    _node_tools(layout, nodes)
    if gpus:
        _driver(layout, simulated=simulated_gpus)
    lines = [line]
    if simulated_gpus:
        _compile(folder / TASKS, ("tasks.c",))
        # before Pyxis: a container has the PATH of its image
        lines = [f"required {folder / TASKS} {layout.root}", line]
    (layout.etc / PLUGINS).write_text("".join(f"{line}\n" for line in lines))
    sqsh = layout.root / "images" / "sandbox.sqsh"
    sqsh.parent.mkdir()
    image.build(sqsh)
    return ContainerSupport(image=sqsh, prepares_tasks=simulated_gpus)


def link_tool(layout: Layout) -> None:
    """Put `enroot` on the PATH of the tasks; call it after the other tools are written."""
    tool = layout.enroot / "enroot"
    if tool.exists():
        (layout.simbin / "enroot").symlink_to(tool)


def _compile(library: Path, names: Sequence[str]) -> None:
    argv = ("cc", *_FLAGS, f"-I{_headers()}", *(str(HERE / name) for name in names))
    if argv not in _compiled:
        done = commands.run([*argv, "-o", str(library)], timeout=120)
        if done.rc != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise SandboxError(f"the container plugin does not compile: {first} (sandbox up --pyxis off)")
        _compiled[argv] = library.read_bytes()
    library.write_bytes(_compiled[argv])


def _site_library(path: str) -> Path:
    library = Path(path).absolute()
    if not library.is_file():
        raise SandboxError(f"no Pyxis at {path}: give the path of spank_pyxis.so")
    return library


def _own_tool(layout: Layout) -> None:
    folder = layout.enroot
    reader = {"PYTHON": shlex.quote(sys.executable), "REGISTRY": shlex.quote(str(HERE / "registry.py"))}
    _script("enroot", folder / "enroot", layout, **reader)
    _script("pytorch-hook.sh", folder / "hooks.d" / "50-slurm-pytorch.sh", layout)


def _site_tool(layout: Layout) -> None:
    real = shutil.which("enroot", path=search_path())
    if real is None:
        raise SandboxError("the site's Pyxis needs its Enroot: put enroot on PATH")
    _script("enroot-wrapper", layout.enroot / "enroot", layout, ENROOT=shlex.quote(real))
    prolog = layout.etc / "task_prolog"  # Slurm runs it after the root has changed
    mounts = layout.enroot / "config" / "mounts.d" / "50-sandbox.fstab"
    mounts.write_text(f"{prolog} {prolog} none x-create=file,bind,ro,nosuid,nodev 0 -1\n")


def _node_tools(layout: Layout, nodes: Sequence[str]) -> None:
    """Write one `enroot` per node: Pyxis calls it with the daemon's PATH, which alone identifies the node."""
    for node in nodes:
        folder = layout.enroot / "bin" / node
        folder.mkdir()
        tool = folder / "enroot"
        tool.write_text(f'#!/bin/sh\nSLURMD_NODENAME={node} exec {shlex.quote(str(layout.enroot / "enroot"))} "$@"\n')
        tool.chmod(0o755)


def _driver(layout: Layout, *, simulated: bool) -> None:
    """Write the programs that mount the driver's files into a container, simulated or real."""
    real = None if simulated else shutil.which("nvidia-smi", path=search_path())
    folder = layout.enroot
    if not simulated and shutil.which("nvidia-container-cli", path=search_path()):
        return
    _script("nvidia-container-cli", folder / "bin" / "nvidia-container-cli", layout, NVIDIA_SMI=shlex.quote(real or ""))
    wrapper = folder / "nvidia-smi"
    # under another path: Slurm's TaskProlog must detect that it runs in a container
    wrapper.write_text('#!/bin/sh\nexec /run/slurm-sandbox/simbin/nvidia-smi "$@"\n')
    wrapper.chmod(0o755)


def _script(name: str, target: Path, layout: Layout, **values: str) -> None:
    scripts.write(HERE / name, target, {"STATE": shlex.quote(str(layout.root)), **values})
