"""Ranks of a step on torch.distributed: rendezvous, heartbeats, deadlines. A shared part of payloads; Python 3.6."""

import contextlib
import datetime as dt
import inspect
import json
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from pytest_gpucluster.kit.payloads.prelude import (
    Failure,
    exit_now,
    low_limits_hint,
    node_name,
    nodes_of_step,
    number_of,
    own_port,
    port_in_use,
    write_line,
)

EXIT_FAILED, EXIT_USAGE, EXIT_NCCL, EXIT_DEADLINE = 1, 2, 3, 4
EXIT_NO_GPU, EXIT_RENDEZVOUS, EXIT_WRONG = 5, 6, 7
BEAT = 5.0  # seconds between heartbeats of the ranks of a sweep
SILENT = 30.0  # seconds without a heartbeat: the rank was killed or stopped, it does not just hang
MISSED = 3  # heartbeats, after which a rank is the likely cause of an expired deadline
GIVEN_UP = "# Collective test given up"


def resolvable(name: str) -> str:
    """Return the name, or loopback if it does not resolve: virtual nodes of one host."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


class RankContext:
    """This process: rank, size, local rank, node name, and the address of the rendezvous."""

    def __init__(self, env: Mapping[str, str], address: str = "", port: int = 0) -> None:
        if "SLURM_PROCID" not in env:
            raise Failure(EXIT_USAGE, "SLURM_PROCID is not set: start this payload with srun, one task per GPU")
        self.rank = number_of(env, "SLURM_PROCID")
        self.size = number_of(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
        self.local = number_of(env, "SLURM_LOCALID", default="0")
        nodes = nodes_of_step(env)
        self.host = socket.gethostname().split(".")[0]
        self.node = node_name()
        self.address = address or env.get("MASTER_ADDR") or resolvable(nodes[0] if nodes else self.host)
        self.port = port or number_of(env, "MASTER_PORT", default=str(own_port(env)), most=65535)
        self.bus = "-"  # of the GPU, once it is known


def failure_row(rank: Optional[int], node: str, bus: str, code: str, text: str, limits: str = "") -> str:
    """Return a failed rank as one line of JSON. `code`: what failed; '': the text is torch's own."""
    about = {"collective": "failed", "rank": rank, "node": node, "gpu": "" if bus == "-" else bus}  # type: Dict[str, Any]
    about.update(code=code, text=" ".join(text.split()) + limits, low_limits=bool(limits))
    return json.dumps(about)


def report_failure(rank: Optional[int], node: str, bus: str, code: str, text: str) -> None:
    """Print a failed rank to stderr."""
    write_line(failure_row(rank, node, bus, code, text, low_limits_hint()), sys.stderr)


class Deadline:
    """Calls `late` from its own thread unless the block ends in time."""

    def __init__(self, seconds: float, late: Callable[[], None]) -> None:
        self.timer = threading.Timer(seconds, late)
        self.timer.daemon = True

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *unused: object) -> None:
        self.timer.cancel()


class Rendezvous:
    """The ranks of the step, connected by a TCP store on rank 0; it needs no collective, which could hang.

    `groups` is the connection of the process groups, `control` that of this class: a thread that aborts a round must
    not wait for a connection that a hung group uses.
    """

    def __init__(self, torch: Any, context: RankContext, timeout: float) -> None:
        self.context = context
        wait = dt.timedelta(seconds=timeout)
        try:
            stores = [torch.distributed.TCPStore(
                context.address, context.port, None, context.rank == 0 and first, wait, wait_for_workers=False,
            ) for first in (True, False)]  # fmt: skip
        except Exception as error:
            at = "%s port %d" % (context.address, context.port)
            why, code = "rendezvous unreachable:", "rendezvous"
            if context.rank == 0:
                why, code = "cannot listen at", "port_taken" if port_in_use(error) else ""
            raise Failure(EXIT_RENDEZVOUS, "%s %s: %s" % (why, at, str(error).splitlines()[0]), code) from None
        self.control, self.groups = stores

    def introduce(self, about: Mapping[str, Any], timeout: float) -> List[Dict[str, Any]]:
        """Return the data of all ranks; those that did not register within `timeout` seconds are missing."""
        self.control.set("about/%d" % self.context.rank, json.dumps(about))
        self.gather(timeout)
        self.control.wait(["everyone"], dt.timedelta(seconds=timeout + 30))
        everyone: List[Dict[str, Any]] = json.loads(self.control.get("everyone").decode())
        self.arrived = [it["rank"] for it in everyone]
        return everyone

    def gather(self, timeout: float) -> None:
        """On rank 0: wait for the data of the others, and publish it."""
        if self.context.rank:
            return
        found, end = [], time.monotonic() + timeout
        for rank in range(self.context.size):
            about = "about/%d" % rank
            while not (self.control.check([about]) or self.has_left(rank)) and time.monotonic() < end:
                time.sleep(0.01)
            if self.control.check([about]):
                found.append(json.loads(self.control.get(about).decode()))
        self.control.set("everyone", json.dumps(found))

    def withdraw(self, timeout: float) -> None:
        """Publish that this rank will not register, so that the others do not wait for it."""
        self.control.set("gone/%d" % self.context.rank, "did not come")
        self.gather(timeout)
        if self.context.rank == 0:
            time.sleep(BEAT)  # until the others have read it

    def over(self, point: str) -> bool:
        """Return whether all ranks have reached a point or left."""
        return bool(self.control.add("at/" + point, 0) + self.control.add("left", 0) >= len(self.arrived))

    def reach(self, point: str, patience: float, vanished: Callable[[int], None]) -> None:
        """Wait until every remaining rank has reached a point; mark those that vanished as gone."""
        self.control.set("at/%s/%d" % (point, self.context.rank), "1")
        self.control.add("at/" + point, 1)
        if self.over(point):
            self.control.set("go/" + point, "1")
        try:
            self.control.wait(["go/" + point], dt.timedelta(seconds=patience))
        except Exception:  # torch raises different types when a wait times out
            if self.control.add("late/" + point, 1) == 1:
                self.mark_gone(point, vanished)
            self.control.wait(["go/" + point], dt.timedelta(seconds=patience))

    def mark_gone(self, point: str, vanished: Callable[[int], None]) -> None:
        """Mark the ranks that neither reached the point nor left as gone, and let the others continue."""
        for rank in self.arrived:
            if not self.control.check(["at/%s/%d" % (point, rank)]) and not self.has_left(rank):
                vanished(rank)
                self.control.set("gone/%d" % rank, "vanished")
                self.control.add("left", 1)
        self.control.set("go/" + point, "1")

    def has_left(self, rank: int) -> bool:
        """Return whether a rank has left the step."""
        return bool(self.control.check(["gone/%d" % rank]))

    def leave(self, point: str, problem: str) -> None:
        """Publish that this rank has left; the others continue without it."""
        self.control.set("gone/%d" % self.context.rank, problem)
        self.control.add("left", 1)
        if self.over(point):
            self.control.set("go/" + point, "1")

    def close(self, patience: float) -> None:
        """Leave; rank 0 serves the store until all others have left."""
        self.control.add("at/bye", 1)
        self.linger(patience)

    def linger(self, patience: float) -> None:
        """On rank 0: serve the store until all others have closed it or left."""
        end = time.monotonic() + patience
        while self.context.rank == 0 and not self.over("bye") and time.monotonic() < end:
            time.sleep(0.05)


class HeartbeatMonitor:
    """Aborts a sweep soon after one of its ranks failed, was killed or stopped.

    Every rank sends heartbeats over the control connection, from its own thread; rank 0 monitors them.
    """

    def __init__(self, rendezvous: Rendezvous, ranks: Sequence[Mapping[str, Any]]) -> None:
        self.control, self.rendezvous, self.context = rendezvous.control, rendezvous, rendezvous.context
        self.about = {it["rank"]: it for it in ranks}
        self.heard: Dict[int, Tuple[int, int]] = {}  # heartbeats, and periods since the last one
        self.answered = time.monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self) -> "HeartbeatMonitor":  # Python 3.6 has no Self
        self.thread.start()
        return self

    def __exit__(self, error_type: object, *unused: object) -> None:
        self.over.set()
        self.thread.join(BEAT)
        if error_type is not None:
            self.abort()

    def watch(self) -> None:
        """Send heartbeats, and monitor the others, until the sweep is over."""
        while not self.over.wait(BEAT):
            try:
                self.control.add("beat/%d" % self.context.rank, 1)
                aborted = self.control.check(["aborted"])
                self.answered = time.monotonic()
                silent = self.silent() if self.context.rank == 0 else None
            except Exception:  # the store ended with rank 0, which printed the reason or was killed
                aborted, silent = True, None
            if self.over.is_set():
                return
            if silent is not None:
                self.report(silent, "no sign of life for %g s" % SILENT)
            if aborted:  # another rank has failed, which printed the reason
                try:
                    self.leave()
                finally:
                    exit_now(EXIT_FAILED)

    def silent(self) -> Optional[int]:
        """Return a rank without heartbeats for SILENT seconds, None if there is none."""
        for rank in self.about:
            beats, periods = self.control.add("beat/%d" % rank, 0), 0
            known, before = self.heard.get(rank, (-1, 0))
            if beats == known:
                periods = before + 1  # not by the clock: all processes may have been suspended
            self.heard[rank] = (beats, periods)
            if periods * BEAT >= SILENT:
                return int(rank)
        return None

    def report_silent(self) -> None:
        """After a deadline has expired: report the rank without recent heartbeats, for which all others wait."""
        if self.context.rank == 0:
            found = next((rank for rank, (_, periods) in self.heard.items() if periods >= MISSED), None)
        elif self.context.rank == 1 and time.monotonic() - self.answered > MISSED * BEAT:
            found = 0  # the store does not answer, and rank 0 serves it
        else:
            return
        if found is not None:
            self.report(found, "no sign of life when the deadline expired")

    def report(self, rank: int, what: str) -> None:
        """Print the failure of a silent rank, and exit."""
        self.over.set()
        why = what + ": its process was killed or stopped, or its node hangs"
        about = self.about[rank]
        report_failure(rank, about["node"], about["bus"], "silent", why)
        if rank == 0:
            write_line(GIVEN_UP)
            exit_now(EXIT_DEADLINE)
        self.abort()
        exit_now(EXIT_DEADLINE)

    def abort(self) -> None:
        """Request that all others exit; rank 0 serves the store until they have."""
        try:
            first = self.control.add("aborted", 1) == 1
        except Exception:
            first = True  # rank 0 is gone, and nobody knows who was it
        if first:
            write_line(GIVEN_UP)
        with contextlib.suppress(Exception):
            self.leave()

    def leave(self) -> None:
        """Leave the sweep; rank 0 serves the store until all others have."""
        self.rendezvous.leave("sweep", "left")
        self.rendezvous.linger(2 * BEAT)


def join(torch: Any, device: Any, store: Any, rank: int, size: int, timeout: float) -> None:
    """Initialise the process group of these ranks."""
    start = torch.distributed.init_process_group
    bound = device.backend == "nccl" and "device_id" in inspect.signature(start).parameters
    options = {"device_id": device.device} if bound else {}
    limit = dt.timedelta(seconds=timeout)
    start(device.backend, store=store, rank=rank, world_size=size, timeout=limit, **options)
