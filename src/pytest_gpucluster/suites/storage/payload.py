"""What the nodes do with the file systems, all at the same time; one task per node.

    srun --ntasks-per-node=1 python3 -c LOADER run OPTIONS PAYLOAD SOURCE
    srun --ntasks-per-node=1 python3 -c LOADER remove OPTIONS PAYLOAD SOURCE

OPTIONS is JSON: `filesystems` [{path, kind}], `budget` and `files` of all nodes, `max_use`, `seconds` of a measurement,
`phase`, `address` and `port` of the first task, `jobs` (this user's jobs in the queue), `cluster`, `imports`. FOLDER
of the environment, which other users cannot read, is the name of the folder in each path.

All tasks take the same steps. A step is local; after it, each task gets the results of all through a socket of the first one,
never through the file system under test. A step that fails is reported, and the task takes part in the others.
Each fact is one line of JSON that starts with {"storage": . Python 3.6 and the standard library only.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from pytest_gpucluster.kit.payloads.own_folder import checked_folder, remove_folder
from pytest_gpucluster.kit.payloads.prelude import (
    MAX_ID,
    Door,
    Failure,
    JsonLink,
    Watch,
    dial,
    error_text,
    exit_now,
    number_of,
    own_port,
    reporter,
    run_phases,
)
from pytest_gpucluster.suites.storage.payload_rates import (
    JOBS,
    MIB,
    fio_runs,
    fsyncs,
    random_rate,
    sequential_rate,
    smallest,
)

FOLDER = "GPUCLUSTER_STORAGE_FOLDER"
STEM, MARKER = "gpucluster-storage-", ".job"
LEAST = JOBS * MIB  # bytes of a node, below which no rate is measured
SUSPECTS = 3  # nodes that are measured alone: the fastest and the slowest
SLOW = 0.7  # of the best rate alone; storage.min_relative has the same default
SUMMED = 8  # MiB of the file whose checksum others verify
SECTOR = 512  # bytes, the least that a cache holds
MAKERS = 3  # nodes that try to create the folder, one after another
SEEN = 10.0  # seconds for a change of another node to be seen; the limit is the check's
IMPORT = 120.0  # seconds for an import on all nodes
RECORDS, RECORD = 100, 64  # that each node appends to one file, and their bytes
HELD = "held"

report = reporter("storage")


class Skipped(Exception):
    """This task has no part in a step: no other one took the step before."""


class Communicator:
    """The tasks of the step. The first one collects one value of each and sends all of them to all."""

    def __init__(self, rank: int, size: int, address: str, port: int, seconds: float) -> None:
        self.rank, self.size, self.seconds = rank, size, seconds
        self.links = {}  # type: Dict[int, Any]
        if size > 1:
            self._connect(address, port) if rank else self._listen(port)

    def _listen(self, port: int) -> None:
        end = time.monotonic() + self.seconds
        with contextlib.closing(Door(port)) as door, contextlib.suppress(OSError):
            while len(self.links) < self.size - 1:
                rank, link = door.next(end)
                self.links[rank] = JsonLink(link)

    def _connect(self, address: str, port: int) -> None:
        try:
            self.links[0] = JsonLink(dial(address, port, self.rank, time.monotonic() + self.seconds))
        except OSError as error:
            text = "the first node of the step, %s port %d: %s" % (address, port, error)
            raise Failure("unconnected", text) from None

    def exchange(self, value: Any, seconds: float = 0.0) -> List[Any]:
        """Return the values of all tasks by rank; None of a task that sent none in time."""
        seconds = seconds or self.seconds
        if self.size == 1:
            return [value]
        if self.rank:
            try:
                self.links[0].link.settimeout(2 * seconds)
                self.links[0].send(value)
                return list(self.links[0].receive())
            except (OSError, ValueError, EOFError) as error:
                raise Failure("unconnected", "the first node of the step went away: %s" % error) from None
        values = [None] * self.size  # type: List[Any]
        values[0] = value
        end = time.monotonic() + seconds
        for rank, link in sorted(self.links.items()):
            try:
                link.link.settimeout(max(0.1, end - time.monotonic()))
                values[rank] = link.receive()
            except (OSError, ValueError, EOFError):
                self.links.pop(rank).close()
        for link in self.links.values():
            with contextlib.suppress(OSError):
                link.link.settimeout(30.0)
                link.send(values)
        return values


class FileSystemSteps:
    """The steps of one file system; each method is one, and gets what all tasks returned from a step before.

    Each task has files of its own, named by its rank, and reads those of the next task that took the step before. On a local file
    system every task is alone, and reads its own.
    """

    def __init__(self, about: Mapping[str, Any], options: Mapping[str, Any], group: Communicator, watch: Watch) -> None:
        self.path, self.shared = about["path"], about["kind"] == "shared"
        self.options, self.group, self.watch, self.rank = options, group, watch, group.rank
        self.seconds, self.engine = options["seconds"], options["engine"]  # type: float, str
        self.folder = folder_of(about, group.rank)
        self.held = []  # type: List[Any]
        self.ring = [self.rank]
        self.volume, self.token = 0, ""
        self.leader = self.rank  # it does what is done once per file system

    def name(self, stem: str, rank: Optional[int] = None) -> str:
        """Return the path of a file of this task, or of another one."""
        return os.path.join(self.folder, "%s-%d" % (stem, self.rank if rank is None else rank))

    def after(self, values: Sequence[Any], count: int = 1) -> int:
        """Return the rank of the next task that took a step before, or of the one `count` places after it. Skipped without one."""
        at = self.ring.index(self.rank)
        others = [rank for rank in self.ring[at + 1 :] + self.ring[:at] if values[rank] is not None]
        if len(self.ring) == 1 and values[self.rank] is not None:
            return self.rank
        if len(others) < count:
            raise Skipped
        return others[count - 1]

    def report(self, kind: str, **facts: Any) -> None:
        """Report facts of this file system."""
        report(kind, path=self.path, **facts)

    def step(self, name: str, work: Callable[..., Any], *values: Any) -> List[Any]:
        """Return what all tasks made of one step; None of those where it failed or that have no part in it."""
        self.watch.enter("%s: %s" % (self.path, name))
        mine = None
        try:
            if self.rank not in self.ring:
                raise Skipped
            mine = work(*values)
        except Skipped:
            pass
        except (OSError, Failure, ValueError) as error:
            self.report("problem", step=name, **named(error))
        self.watch.enter("%s: wait for the others after: %s" % (self.path, name), 3 * self.group.seconds)
        return self.group.exchange(mine)

    def run(self) -> None:
        """Take all steps, and remove the folder."""
        usable = self.step("check the path", self.check)
        if self.shared:
            self.ring = having(usable)
        made = [None] * self.group.size  # type: List[Any]
        try:  # from the first folder on: a task that is stopped removes it
            for rank in self.ring[:MAKERS]:
                self.leader = rank
                made = self.step("make the folder", self.make)
                if made[rank] is not None:
                    break
            fit = having(self.step("see the folder", self.see_folder, made))
            self.ring = [rank for rank in self.ring if rank in fit]
            self.volume = min([found for found in self.step("space", self.space) if found is not None] or [0])
            if self.volume >= LEAST:
                self.rates()
            self.metadata()
            self.integrity()
            if len(self.ring) > 1:  # a node that is left alone has no one to lock against
                self.visibility()
                self.locks()
                self.append()
        finally:
            self.ring = [self.rank]
            self.step("remove the folder", self.remove)

    # -- the folder

    def check(self) -> bool:
        """Refuse a path in which other users can replace files."""
        os.close(checked_folder(self.path, whole=True))
        return True

    def make(self) -> bool:
        """Remove the folders of ended jobs, and create that of this run."""
        if self.rank == self.leader:
            self.report("stale", removed=self.remove_stale())
            os.mkdir(self.folder, 0o700)
            with open(os.path.join(self.folder, MARKER), "w") as file:
                job = number_of(os.environ, "SLURM_JOB_ID", default="0", most=MAX_ID)
                json.dump({"cluster": self.options["cluster"], "job": job}, file)
        return True

    def remove_stale(self) -> int:
        """Remove the folders of this user whose marker names a job of this cluster that has ended; return how many."""
        known = (self.options["cluster"], self.options["jobs"])
        folders = [os.path.join(self.path, it) for it in os.listdir(self.path) if it.startswith(STEM)]
        stale = [folder for folder in folders if is_stale(folder, *known)]
        for folder in stale:
            remove_folder(folder)
        return len(stale)

    def see_folder(self, made: Sequence[Any]) -> bool:
        """Wait until the folder is seen here: NFS caches folders. A folder that no node could make is no node's fault."""
        if made[self.leader] is None and self.shared:
            tried = len(self.ring[:MAKERS])
            raise Failure("unmade", "%d nodes in turn could not create a folder there" % tried)
        if made[self.leader] is None:
            raise Skipped
        if wait_until(lambda: os.path.isdir(self.folder), SEEN) is None:
            text = "the folder that another node created is not seen here within %g s: " % SEEN
            raise Failure("unseen", text + "another file system is mounted here, or none")
        return True

    def space(self) -> int:
        """Return the bytes that each node may write, in blocks of all threads."""
        found = os.statvfs(self.folder)
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        room = max(0, free - int((1 - self.options["max_use"]) * size))
        inodes = {"inodes": found.f_files, "inodes_free": found.f_favail}
        self.report("space", free=free, size=size, room=room, **inodes)
        return min(int(self.options["budget"]), room // 2) // len(self.ring) // LEAST * LEAST

    def remove(self) -> bool:
        """Remove the folder, on one node of a shared file system."""
        self.release()
        if self.rank == self.leader:
            remove_folder(self.folder)
            self.report("end", removed=not os.path.lexists(self.folder))
        return True

    # -- rates

    def rates(self) -> None:
        """Measure all nodes together, then the fastest and the slowest of them one after another."""
        writes = self.step("write", self.write, "together")
        reads = self.step("read", self.read, "together", writes)
        if len(self.ring) > 1:
            suspects = fastest_and_slowest(writes, reads)
            found = [self.rates_alone(which, writes) for which in suspects]
            for which, of_node in zip(suspects, found):
                if is_slow(of_node, found):  # other load may have slowed it: the better reading counts
                    self.rates_alone(which, writes)
        self.step("random read", self.random, "read", writes)
        self.step("random write", self.random, "write", writes)
        self.step("fsync", self.fsync)
        self.step("remove the files", self.remove_files)

    def rates_alone(self, which: int, writes: Sequence[Any]) -> List[Optional[float]]:
        """Measure one node alone; return GB/s of its writes and reads."""
        wrote = self.step("write alone", self.alone, which, self.write, "alone")
        read = self.step("read alone", self.alone, which, self.read, "alone", writes)
        return [wrote[which], read[which]]

    def alone(self, which: int, work: Callable[..., float], *values: Any) -> Optional[float]:
        """Measure one node; the others wait."""
        return work(*values) if self.rank == which else None

    def write(self, how: str) -> float:
        """Write this task's files; return GB/s."""
        rate = self.measured("write", how, self.name("rate"), self.volume // JOBS)
        if not smallest(self.name("rate")):
            raise Failure("slow", "less than 1 MiB was written to a file within %g s" % self.seconds)
        return rate

    def read(self, how: str, writes: Sequence[Any]) -> float:
        """Read the files of another node, which are in no cache of this one; return GB/s."""
        return self.measured("read", how, self.name("rate", self.source(writes)), 0)

    def source(self, writes: Sequence[Any]) -> int:
        """Return the rank of the next task that was not slow to write: the files of a slow one are small, and read at another rate."""
        known = sorted(rate for rate in writes if rate is not None)
        least = SLOW * known[len(known) // 2] if known else 0.0
        try:
            return self.after([rate if (rate or 0.0) >= least else None for rate in writes])
        except Skipped:
            return self.after(writes)

    def measured(self, what: str, how: str, stem: str, part: int) -> float:
        """Report a sequential rate; return it."""
        found = sequential_rate(self.engine, what, stem, part, self.seconds)
        self.report(what, how=how, **found)
        return float(found["rate"])

    def random(self, what: str, writes: Sequence[Any]) -> bool:
        """Report a random rate: writes to this task's file, reads of another one's, so that no slow target of a server is in both."""
        whose = self.source(writes) if what == "read" else self.rank
        stem = self.name("rate", whose)
        self.report("random", what=what, **random_rate(self.engine, what, stem, self.seconds))
        return True

    def fsync(self) -> bool:
        """Report what fsync costs."""
        self.report("fsync", **fsyncs(self.name("fsync"), min(1.0, self.seconds)))
        return True

    def remove_files(self) -> bool:
        """Make room, and leave what cannot be removed to the end."""
        for job in range(JOBS):
            with contextlib.suppress(OSError):
                os.unlink("%s.%d" % (self.name("rate"), job))
        return True

    # -- metadata

    def metadata(self) -> None:
        """Create, stat, list and remove small files: each node its own, stat and list those of the next."""
        counts = self.step("create files", self.create)
        self.step("stat files", self.stat, counts)
        self.step("list files", self.listed, counts)
        self.step("remove small files", self.unlink)

    def timed(self, what: str, count: int, begin: float) -> None:
        """Report how long the operations took."""
        self.report("metadata", what=what, count=count, seconds=time.monotonic() - begin)

    def create(self) -> int:
        """Create this node's share of the files, as many as the time allows; return how many."""
        os.mkdir(self.name("many"), 0o700)
        wanted, begin, made = -(-self.options["files"] // len(self.ring)), time.monotonic(), 0
        while made < wanted and time.monotonic() - begin < 2 * self.seconds:
            with open("%s/%d" % (self.name("many"), made), "wb") as file:
                file.write(b"small")
            made += 1
        self.timed("create", made, begin)
        return made

    def stat(self, counts: Sequence[Any]) -> bool:
        """Stat the files of the next node, as many as the time allows."""
        whose, begin, done = self.after(counts), time.monotonic(), 0
        while done < counts[whose] and time.monotonic() - begin < 2 * self.seconds:
            os.stat("%s/%d" % (self.name("many", whose), done))
            done += 1
        self.timed("stat", done, begin)
        return True

    def listed(self, counts: Sequence[Any]) -> bool:
        """List the files of the next node."""
        whose, begin = self.after(counts), time.monotonic()
        seen = len(os.listdir(self.name("many", whose)))
        self.timed("list", seen, begin)
        self.report("listed", writer=whose, seen=seen, made=counts[whose])
        return True

    def unlink(self) -> bool:
        """Remove this node's files."""
        begin, names = time.monotonic(), os.listdir(self.name("many"))
        for name in names:
            os.unlink(os.path.join(self.name("many"), name))
        os.rmdir(self.name("many"))
        self.timed("remove", len(names), begin)
        return True

    # -- correctness

    def integrity(self) -> None:
        """Verify the checksums of files that the next two nodes wrote."""
        sums = self.step("write files with checksums", self.summed)
        self.step("verify checksums", self.verify, 1, sums)
        if len(self.ring) > 2:
            self.step("verify checksums again", self.verify, 2, sums)

    def summed(self) -> List[str]:
        """Write a file of random blocks; return their checksums."""
        sums = []
        with open(self.name("sum"), "wb") as file:
            for _ in range(SUMMED):
                block = os.urandom(MIB)
                sums.append(hashlib.sha256(block).hexdigest())
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return sums

    def verify(self, count: int, sums: Sequence[Any]) -> bool:
        """Compare the blocks of a file with the checksums of its writer; read a file with a wrong one twice, then from the server."""
        writer = self.after(sums, count)
        path = self.name("sum", writer)
        wrong = wrong_blocks(path, sums[writer])
        again = wrong_blocks(path, sums[writer], cached=False) if wrong else {}
        other = [number for number, arrived in again.items() if arrived and wrong.get(number)]
        found = {"wrong": list(wrong), "again": list(again), "other": other}
        self.report("verified", writer=writer, blocks=SUMMED, **found)
        return True

    def visibility(self) -> None:
        """Measure when the next node's new file, new content and new name are seen."""
        for change in ("create", "overwrite", "rename"):
            tokens = self.step("%s a file" % change, self.change, change)
            self.step("see a file: %s" % change, self.see, change, tokens)

    def change(self, change: str) -> str:
        """Change this node's file; return its content."""
        if change == "rename":
            os.rename(self.name("seen"), self.name("renamed"))
            return self.token
        # longer than before: NFS sees by size and times, and a server may give two changes the same time
        self.token = secrets.token_hex(8 + len(self.token) // 2)
        with open(self.name("seen"), "w") as file:
            file.write(self.token)
            file.flush()
            os.fsync(file.fileno())
        return self.token

    def see(self, change: str, tokens: Sequence[Any]) -> bool:
        """Wait for the change of the next node."""
        writer = self.after(tokens)
        path = self.name("renamed" if change == "rename" else "seen", writer)
        seconds = wait_until(lambda: text_in(path) == tokens[writer], SEEN)
        self.report("seen", change=change, writer=writer, seconds=seconds)
        return True

    def locks(self) -> None:
        """Try to take a lock that the next node holds, and again after it released it."""
        held = self.step("hold locks", self.hold)
        self.step("try held locks", self.try_locks, "held", held)
        self.step("release locks", self.release)
        self.step("try released locks", self.try_locks, "released", held)

    def hold(self) -> Dict[str, str]:
        """Lock this node's files; return {kind of lock: why it could not be taken}."""
        problems = {}
        for kind, lock in LOCKS.items():
            self.held.append(open(self.name(kind), "w"))  # noqa: SIM115 - until it is released
            problems[kind] = problem_of(lock, self.held[-1])
        self.report("locked", problems=problems)
        return problems

    def try_locks(self, state: str, held: Sequence[Any]) -> bool:
        """Try the locks of the next node."""
        holder = self.after(held)
        for kind, lock in LOCKS.items():
            if held[holder][kind]:
                continue  # its holder reports why
            with open(self.name(kind, holder), "r+") as file:
                problem = problem_of(lock, file)
                end = time.monotonic() + SEEN  # FUSE clients tell their server of a close later
                while state == "released" and problem == HELD and time.monotonic() < end:
                    time.sleep(0.05)
                    problem = problem_of(lock, file)
                self.report("lock", lock=kind, state=state, problem=problem, holder=holder)
        return True

    def release(self) -> bool:
        """Release the locks."""
        while self.held:
            self.held.pop().close()
        return True

    def append(self) -> None:
        """Append records of all nodes to one file, and count them."""
        written = self.step("append records", self.append_records)
        self.step("count records", self.count_records, written)

    def append_records(self) -> bool:
        """Append the records of this node."""
        handle = os.open(os.path.join(self.folder, "appended"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for number in range(RECORDS):
                os.write(handle, record(self.rank, number))
        finally:
            os.close(handle)
        return True

    def count_records(self, written: Sequence[Any]) -> bool:
        """Count the records of all nodes, on one of them."""
        if self.rank == self.leader:
            with open(os.path.join(self.folder, "appended"), "rb") as file:
                found = set(file.read().splitlines(True))
            wanted = {record(rank, number) for rank in having(written) for number in range(RECORDS)}
            self.report("appended", records=len(wanted), lost=len(wanted - found))
        return True


LOCKS = {"flock": fcntl.flock, "fcntl": fcntl.lockf}  # type: Dict[str, Callable[[Any, int], Any]]


def problem_of(lock: Callable[[Any, int], Any], file: Any) -> str:
    """Try an exclusive lock; return '' if it was taken, HELD if another has it, else the error."""
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return HELD if error.errno in (errno.EAGAIN, errno.EACCES) else error_text(error)
    return ""


def named(error: Exception) -> Dict[str, str]:
    """Return the message of an error and its code: the name of its number, '' of a path that is refused, its kind or type."""
    if isinstance(error, Failure):
        return {"reason": str(error), "code": error.kind}
    if not isinstance(error, OSError):
        return {"reason": error_text(error), "code": type(error).__name__}
    code = errno.errorcode.get(error.errno or 0, "")
    return {"reason": (code and error.strerror) or str(error), "code": code}


def having(values: Sequence[Any]) -> List[int]:
    """Return the ranks that took a step."""
    return [rank for rank, value in enumerate(values) if value is not None]


def record(rank: int, number: int) -> bytes:
    """Return one line of RECORD bytes."""
    return ("%d %d " % (rank, number)).encode().ljust(RECORD - 1, b".") + b"\n"


def is_stale(folder: str, cluster: str, jobs: Sequence[int]) -> bool:
    """Return whether a folder of this user has the marker of a job of this cluster that has ended."""
    try:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        with open(os.path.join(folder, MARKER)) as file:
            marker = json.load(file)
        return bool(marker["cluster"] == cluster and marker["job"] and marker["job"] not in jobs)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def fastest_and_slowest(writes: Sequence[Any], reads: Sequence[Any]) -> List[int]:
    """Return the rank with the highest rates and those with the lowest, at most SUSPECTS; the same on all tasks."""
    known = [rank for rank in having(writes) if reads[rank] is not None]
    ordered = sorted(known, key=lambda rank: (min(writes[rank], reads[rank]), rank))
    return (ordered[-1:] + ordered[: max(0, min(SUSPECTS, len(ordered)) - 1)])[:SUSPECTS]


def is_slow(rates: Sequence[Optional[float]], of_all: Sequence[Sequence[Optional[float]]]) -> bool:
    """Return whether a rate is far below the best one of the same kind; all tasks come to the same result."""
    best = [max((rate for rate in kind if rate is not None), default=0.0) for kind in zip(*of_all)]
    return any(rate is not None and rate < SLOW * most for rate, most in zip(rates, best))


def wrong_blocks(path: str, sums: Sequence[str], *, cached: bool = True) -> Dict[int, bool]:
    """Return {number of a block of 1 MiB without its checksum: whether all its bytes have arrived}.

    A cache of the client that has not got all bytes yet gives a shorter block, or zeros in it; random blocks have no such zeros.
    """
    found = {}
    with open(path, "rb") as file:
        if not cached:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for number, right in enumerate(sums):
            block = file.read(MIB)
            if hashlib.sha256(block).hexdigest() != right:
                found[number] = len(block) == MIB and bytes(SECTOR) not in block
    return found


def text_in(path: str) -> str:
    """Return the text of a file; '' while it does not exist here."""
    try:
        with open(path) as file:
            return file.read(64)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno == errno.ESTALE:
            return ""
        raise


def wait_until(holds: Callable[[], bool], seconds: float) -> Optional[float]:
    """Return after how many seconds something holds; None if it does not within `seconds`."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.005)
    return time.monotonic() - begin


def import_modules(modules: Sequence[str]) -> None:
    """Report how long a new python takes to import modules, on all nodes at once."""
    begin = time.monotonic()
    command = [sys.executable, "-c", "import " + ", ".join(modules)]
    try:
        into = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}  # type: Dict[str, Any]
        done = subprocess.run(command, check=False, timeout=IMPORT, **into)
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["exit %d" % done.returncode]
        problem, code = (lines[-1], "failed") if done.returncode else ("", "")
    except subprocess.TimeoutExpired:
        problem, code = "no end after %g s" % IMPORT, "timed_out"
    report("imported", seconds=time.monotonic() - begin, problem=problem[:200], code=code)


def folder_of(about: Mapping[str, Any], rank: int) -> str:
    """Return the folder of the run on a file system; tasks on virtual nodes of one host share a local one."""
    path = os.path.join(about["path"], os.environ[FOLDER])
    return path if about["kind"] == "shared" else "%s-%d" % (path, rank)


def work(options: Dict[str, Any], watch: Watch) -> int:
    """Test all file systems; return 0."""
    rank, size = number_of(os.environ, "SLURM_PROCID"), number_of(os.environ, "SLURM_STEP_NUM_TASKS")
    watch.enter("connect to the first node", 2 * options["phase"])
    group = Communicator(rank, size, options["address"], own_port(os.environ), options["phase"])
    watch.enter("exchange", 3 * options["phase"])
    options["engine"] = "fio" if all(group.exchange(fio_runs())) else "python"
    if options["imports"]:
        watch.enter("import %s" % " ".join(options["imports"]), 3 * IMPORT)
        import_modules(options["imports"])
        group.exchange(True, IMPORT)
    for about in options["filesystems"]:
        FileSystemSteps(about, options, group, watch).run()
    report("done")
    return 0


def main() -> int:
    """Run the payload; return the exit code."""
    options = json.loads(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if sys.argv[1] == "remove":
        for about in options["filesystems"]:
            remove_folder(folder_of(about, number_of(os.environ, "SLURM_PROCID")))
        return 0
    watch = Watch(options["phase"], report)
    return run_phases(report, watch, lambda: work(options, watch))


if __name__ == "__main__":
    exit_now(main())
