"""Rates of one file: by fio where it is installed, else by the same accesses in Python 3.6.

Both use JOBS threads with blocks of 1 MiB on parts of one file, or RANDOM_JOBS threads with blocks of 4 KiB, and direct I/O where
the file system has it.
"""

import errno
import json
import mmap
import os
import random
import re
import subprocess
import threading
import time
from typing import Any, Dict, List, Sequence

MIB = 1 << 20
JOBS, RANDOM_JOBS, SMALL = 4, 16, 4096
SHARES = (50.0, 95.0, 99.0)


def sequential_rate(engine: str, what: str, stem: str, part: int, seconds: float) -> Dict[str, Any]:
    """Write `part` bytes of each file of a stem, or read what there is, in at most `seconds`; return the rate in GB/s."""
    paths = ["%s.%d" % (stem, job) for job in range(JOBS)]
    if what == "read":
        part = smallest(stem)
    found = (fio if engine == "fio" else in_threads)(what, paths, part, seconds)
    found.pop("latency")
    return dict(found, rate=found["bytes"] / max(found["seconds"], 1e-6) / 1e9, engine=engine)


def smallest(stem: str) -> int:
    """Return the bytes of the smallest file of a stem, in whole blocks of 1 MiB."""
    return min(os.stat("%s.%d" % (stem, job)).st_size for job in range(JOBS)) // MIB * MIB


def random_rate(engine: str, what: str, stem: str, seconds: float) -> Dict[str, Any]:
    """Access random blocks of the first file of a stem for `seconds`; return accesses per second and latencies in ms."""
    path = stem + ".0"
    run = fio if engine == "fio" else in_threads
    found = run("rand" + what, [path] * RANDOM_JOBS, os.stat(path).st_size, seconds)
    return dict(found, iops=found["bytes"] / SMALL / max(found["seconds"], 1e-6), engine=engine)


def fsyncs(path: str, seconds: float) -> Dict[str, Any]:
    """Write 4 KiB and sync it repeatedly for `seconds`; return latencies in ms and how many there were."""
    handle, times, begin = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), [], time.monotonic()  # type: int, List[float], float
    try:
        while not times or time.monotonic() - begin < seconds:
            start = time.monotonic()
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, bytes(SMALL))
            os.fsync(handle)
            times.append(time.monotonic() - start)
    finally:
        os.close(handle)
    return {"count": len(times), "latency": shares_of(times)}


def shares_of(times: List[float]) -> Dict[str, float]:
    """Return percentiles in ms of times in seconds."""
    ordered = sorted(times)
    return {
        "%g" % share: 1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))]
        for share in SHARES
        if ordered
    }


# -- fio ----------------------------------------------------------------------------------------------------------


def fio_runs() -> bool:
    """Return whether fio 3 or later runs here: one that lacks a library says nothing about a file system, and fio 2 counts in KiB."""
    try:
        found = re.match(rb"fio-(\d+)", subprocess.check_output(["fio", "--version"], stderr=subprocess.DEVNULL))
    except (OSError, subprocess.SubprocessError):
        return False
    return found is not None and int(found.group(1)) >= 3


def fio(what: str, paths: Sequence[str], size: int, seconds: float) -> Dict[str, Any]:
    """Run fio with a thread per path on `size` bytes of it. OSError if it fails."""
    direct, scattered = has_direct(paths[0]), what.startswith("rand")
    block = SMALL if scattered else MIB
    folder, _, name = paths[0].rpartition("/")
    names = name if scattered else name[:-1] + "$jobnum"
    command = [
        "fio", "--name=gpucluster", "--directory=" + folder, "--filename_format=" + names, "--rw=" + what, "--bs=%d" % block,
        "--size=%d" % (size // block * block), "--direct=%d" % direct, "--ioengine=psync", "--numjobs=%d" % len(paths),
        "--thread", "--group_reporting", "--fallocate=none", "--runtime=%dms" % (1000 * seconds), "--output-format=json",
    ]  # fmt: skip
    command += ["--time_based", "--norandommap", "--randrepeat=0"] if scattered else []
    command += ["--end_fsync=1", "--refill_buffers"] if what == "write" else []
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return dict(read_fio(out, errors), direct=direct)


def read_fio(text: str, errors: str = "") -> Dict[str, Any]:
    """Read the output of `fio --output-format=json` or `json+` of fio 3: bytes, seconds, and latencies in ms.

    Notes stand before the JSON or after it. The jobs are under `jobs`, of a fio server under `client_stats`; percentiles under `clat_ns`,
    with --lat_percentiles under `lat_ns`. OSError for a job with an error, ValueError for other text.
    """
    lines = (errors or text).strip().splitlines()
    try:
        tree, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
        job = (tree.get("jobs") or tree["client_stats"])[0]
    except (ValueError, KeyError, IndexError, AttributeError):
        raise ValueError("fio: %s" % (lines[-1] if lines else "no output")[:200]) from None
    if job.get("error"):
        # of 'fio: io_u error on file F: REASON: write offset=0, buflen=4096'
        where = re.search(r"\w+ offset=\d+", errors)
        raise OSError(job["error"], os.strerror(job["error"]) + (" (%s)" % where.group() if where else ""))
    side = max((job["read"], job["write"]), key=lambda one: one["io_bytes"])
    shares = {}  # type: Dict[str, float]
    for key in ("lat_ns", "clat_ns"):
        shares = side.get(key, {}).get("percentile", shares)
    return {
        "bytes": side["io_bytes"],
        "seconds": side["runtime"] / 1e3,
        "latency": {"%g" % float(share): ns / 1e6 for share, ns in shares.items() if float(share) in SHARES},
    }


def has_direct(path: str) -> bool:
    """Return whether the file system of a file, which need not exist, has direct I/O."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


# -- the same in Python -------------------------------------------------------------------------------------------


def in_threads(what: str, paths: Sequence[str], size: int, seconds: float) -> Dict[str, Any]:
    """Access `size` bytes of each path by a thread; return bytes, seconds, and latencies in ms. OSError of the first that failed."""
    direct, begin = has_direct(paths[0]), time.monotonic()
    results = [{"bytes": 0, "times": [], "error": None} for _ in paths]  # type: List[Dict[str, Any]]

    def work(path: str, result: Dict[str, Any]) -> None:
        try:
            access(what, path, direct, size, begin + seconds, result)
        except OSError as error:
            result["error"] = error

    threads = [threading.Thread(target=work, args=pair) for pair in zip(paths, results)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if result["error"]:
            raise result["error"]
    return {
        "bytes": sum(result["bytes"] for result in results),
        "seconds": time.monotonic() - begin,
        "latency": shares_of([one for result in results for one in result["times"]]),
        "direct": direct,
    }


def access(what: str, path: str, direct: bool, size: int, end: float, result: Dict[str, Any]) -> None:
    """Access the file of one thread until it ends or the time is over."""
    writes, scattered = what.endswith("write"), what.startswith("rand")
    block, at = SMALL if scattered else MIB, 0
    flags = os.O_RDWR | os.O_CREAT if writes else os.O_RDONLY
    handle = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600)
    try:
        buffer = mmap.mmap(-1, block)  # direct I/O needs aligned memory
        buffer.write(os.urandom(block))
        while (scattered or at < size) and (not at or time.monotonic() < end):
            start = time.monotonic()
            where = block * random.randrange(max(1, size // block)) if scattered else at
            os.lseek(handle, where, os.SEEK_SET)
            moved = os.writev(handle, [buffer]) if writes else os.readv(handle, [buffer])
            if not moved:
                break  # the end of the file
            at += moved
            if scattered:
                result["times"].append(time.monotonic() - start)
        result["bytes"] = at
        if writes and not scattered:
            os.fsync(handle)
        if not direct:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
