"""Compile NCCL's example on this node with nvcc and with CMake, and run it: one task per node.

Words: TOOLS LIMIT RUN. TOOLS are nvcc and cmake, separated by commas; LIMIT: seconds of each command; RUN: 1 to run what
was compiled. Everything is written to a temporary folder, which is removed. nvcc is searched on PATH, in CUDA_HOME and in /usr/local/cuda; nccl.h in NCCL_HOME, CPATH, the folders of the
toolkit and of the system, and in the python's nvidia-nccl package.
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Dict, List

from pytest_gpucluster.kit.payloads.own_folder import make_folder, remove_folder
from pytest_gpucluster.kit.payloads.prelude import Failure, error_text, reporter, text_of

CMAKE = """cmake_minimum_required(VERSION 3.18)
project(gpucluster_nccl_example LANGUAGES CXX CUDA)
add_executable(example example.cu)
target_include_directories(example PRIVATE "${NCCL_INCLUDE}")
target_link_libraries(example PRIVATE "${NCCL_LIBRARY}")
"""

report = reporter("nccl_examples")


def run(words: List[str], limit: float) -> str:
    """Return the output of a command; Failure with its last lines if it fails, is absent or does not end."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # nvcc starts compilers, which must end with it
        )
    except OSError as error:
        raise Failure("absent", "%s cannot be run: %s" % (words[0], error)) from None
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Failure("late", "%s did not end within %g s" % (words[0], limit)) from None
    text = output.decode(errors="replace")
    if process.returncode != 0:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower()] or lines[-1:] or ["no message"]
        raise Failure("failed", "exit %d: %s" % (process.returncode, wrong[0][:300]))
    return text


def find_nvcc() -> str:
    """Return the path of nvcc; Failure if there is none."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    for path in [shutil.which("nvcc"), *(os.path.join(home, "bin", "nvcc") for home in homes if home)]:
        if path and os.access(path, os.X_OK):
            return path
    raise Failure("absent", "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")


def find_nccl(nvcc: str) -> Dict[str, str]:
    """Return {include, library}: the folder of nccl.h, and libnccl or 'nccl' for the linker's own search."""
    packages = [path for folder in sys.path for path in glob.glob(os.path.join(folder, "nvidia/nccl/include"))]
    toolkit = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include")
    home = os.environ.get("NCCL_HOME", "")
    known = [os.path.join(home, "include")] if home else []
    known += [folder for folder in os.environ.get("CPATH", "").split(":") if folder]
    known += ["/usr/include", "/usr/local/include", toolkit, *packages]
    for include in known:
        if os.path.exists(os.path.join(include, "nccl.h")):
            base = os.path.dirname(include)
            names = ("lib/libnccl.so", "lib/libnccl.so.2", "lib64/libnccl.so", "lib64/libnccl.so.2")
            paths = [os.path.join(base, name) for name in names]
            found = [path for path in paths if base != "/usr" and os.path.exists(path)]
            return {"include": include, "library": found[0] if found else "nccl"}
    raise Failure("no_header", "no nccl.h in %s: NCCL_HOME names the folder of NCCL" % ", ".join(known))


def architecture() -> str:
    """Return the compute capability of the first GPU without its dot, like 90; '' if nvidia-smi does not report it."""
    words = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    with contextlib.suppress(Failure):
        first = run(words, 60).strip().splitlines()[:1]
        number = first[0].strip().replace(".", "") if first else ""
        return number if number.isdigit() else ""
    return ""


def by_nvcc(nvcc: str, nccl: Dict[str, str], folder: str, arch: str, limit: float) -> str:
    """Compile with nvcc itself; return the program."""
    program, library = os.path.join(folder, "by_nvcc"), nccl["library"]
    words = [nvcc, "-O2", "-o", program, os.path.join(folder, "example.cu"), "-I", nccl["include"]]
    words += ["-gencode", "arch=compute_%s,code=sm_%s" % (arch, arch)] if arch else []
    if library == "nccl":
        words.append("-lnccl")
    else:
        words += ["-Xlinker", library, "-Xlinker", "-rpath", "-Xlinker", os.path.dirname(library)]
    run(words, limit)
    return program


def by_cmake(nvcc: str, nccl: Dict[str, str], folder: str, arch: str, limit: float) -> str:
    """Configure and build with CMake; return the program."""
    build = os.path.join(folder, "build")
    with open(os.path.join(folder, "CMakeLists.txt"), "w") as lists:
        lists.write(CMAKE)
    options = {"CMAKE_CUDA_COMPILER": nvcc, "NCCL_INCLUDE": nccl["include"], "NCCL_LIBRARY": nccl["library"]}
    if arch:
        options["CMAKE_CUDA_ARCHITECTURES"] = arch + "-real"
    os.mkdir(build)
    # no -S and -B: CMake has them since 3.13 only, and a folder to start in is enough
    words = ["-D%s=%s" % it for it in sorted(options.items())]
    run(["cmake", "-E", "chdir", build, "cmake", *words, folder], limit)
    run(["cmake", "--build", build], limit)
    return os.path.join(build, "example")


def make(tool: str, folder: str, limit: float, *, execute: bool) -> None:
    """Compile with one tool and report it; run the program and report that."""
    begin = time.monotonic()
    try:
        nvcc = find_nvcc()
        version = run([nvcc, "--version"], limit).strip().splitlines()[-1]
        with open(os.path.join(folder, "example.cu"), "w") as source:
            source.write(text_of("suites/nccl_examples/example.cu"))
        compile_by = by_nvcc if tool == "nvcc" else by_cmake
        program = compile_by(nvcc, find_nccl(nvcc), folder, architecture(), limit)
    except Failure as error:
        report("built", tool=tool, error=str(error), what=error.kind)
        return
    seconds = round(time.monotonic() - begin, 2)
    report("built", tool=tool, error="", version=version, nvcc=nvcc, seconds=seconds)
    if execute:
        try:
            found = json.loads(run([program], limit).strip().splitlines()[-1])
            report("ran", tool=tool, error="", **found)
        except (Failure, ValueError, IndexError) as error:
            what = error.kind if isinstance(error, Failure) else "no_result"
            report("ran", tool=tool, error=str(error) or "no result", what=what)


def main(tools: str, limit: str, execute: str) -> int:
    """Compile with every tool in a folder of its own, which is removed also when Slurm ends the step."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for tool in tools.split(","):
        try:
            folder = make_folder(tempfile.gettempdir(), "gpucluster-nccl-")
        except OSError as error:
            report("built", tool=tool, error=error_text(error), what="folder")
            continue
        try:
            make(tool, folder, float(limit), execute=execute == "1")
        finally:
            remove_folder(folder)
    report("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
