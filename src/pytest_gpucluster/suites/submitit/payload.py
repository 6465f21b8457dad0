# A broken framework may raise anything (BLE001). Functions for jobs import what they need: submitit sends them alone.
"""submitit as users run it: functions submitted as Slurm jobs, their results, an exception, a cancellation.

Runs where pytest runs, under the python that the cluster file names, by -c (LOADER, SOURCE: `payload_step.command`):

    python3 -c LOADER '{"place": "/shared", "prefix": ".x-", "parameters": {"slurm_partition": "batch"}}' PAYLOAD SOURCE

It submits the jobs, prints their ids, waits for them, cancels the one that does not end by itself, prints the results
and removes its folder. When its stdin closes, it cancels its jobs and ends.

Each fact is one line of JSON that starts with {"submitit": ; the kind of a result is the name of its submission.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

from pytest_gpucluster.kit.payloads.own_folder import make_folder, remove_folder
from pytest_gpucluster.kit.payloads.prelude import print_json

TASKS = 3
ARRAY = ((1, 10), (2, 20), (3, 30))
SETTLE = 30.0  # seconds within which a cancelled job must end


def add(one: int, other: int) -> int:
    """Return the sum: runs in a job."""
    return one + other


def task_location() -> Dict[str, Any]:
    """Return where this task runs: runs in a job."""
    import os

    import submitit

    known = submitit.JobEnvironment()
    return {
        "rank": known.global_rank,
        "tasks": known.num_tasks,
        "slurm": os.environ.get("SLURM_PROCID", ""),
        "node": os.environ.get("SLURMD_NODENAME", ""),
    }


def fail() -> None:
    """Raise: runs in a job."""
    raise ValueError("gpucluster: expected failure")


def linger(mark: str) -> str:
    """Write a mark, and wait to be cancelled: runs in a job."""
    import time
    from pathlib import Path

    Path(mark).write_text("runs")
    time.sleep(600)
    return "never cancelled"


class Driver:
    """The jobs of one run. `wait`: seconds that all of them may take."""

    def __init__(self, parameters: Dict[str, Any], wait: float, *, accounting: bool) -> None:
        self.folder = self.mark = None  # type: Any
        self.parameters, self.until = parameters, time.monotonic() + wait
        self.accounting = accounting
        self.jobs: Dict[str, List[Any]] = {}

    def make_folder(self, parent: str, prefix: str) -> None:
        """Create the folder of the run; only then clear() has one to remove."""
        self.folder = Path(make_folder(parent, prefix))
        self.mark = self.folder / "linger.runs"

    def submit(self) -> None:
        """Submit all jobs; an array is one submission."""
        import submitit

        executor = submitit.AutoExecutor(folder=str(self.folder / "%j"), cluster="slurm")
        executor.update_parameters(timeout_min=5, **self.parameters)
        self.jobs["add"] = [executor.submit(add, 5, 7)]
        self.jobs["failure"] = [executor.submit(fail)]
        self.jobs["array"] = executor.map_array(add, [one for one, _ in ARRAY], [other for _, other in ARRAY])
        executor.update_parameters(tasks_per_node=TASKS)
        self.jobs["multitask"] = [executor.submit(task_location)]
        executor.update_parameters(tasks_per_node=1)
        self.jobs["cancel"] = [executor.submit(linger, str(self.mark))]
        print_json(submitit="submitted", version=submitit.__version__, jobs=self.ids())

    def ids(self) -> List[str]:
        """Return the ids of all jobs, arrays as a whole."""
        return sorted({str(job.job_id).split("_")[0] for jobs in self.jobs.values() for job in jobs})

    def collect(self) -> None:
        """Report how each submission ended."""
        self.cancel()
        for name, jobs in self.jobs.items():
            if name != "cancel":
                self.report(name, jobs)

    def report(self, name: str, jobs: Sequence[Any]) -> None:
        """Report the results of one submission, or the exception."""
        if not self.wait_for(lambda: all(job.done() for job in jobs), self.until):
            print_json(submitit=name, error="late", text=self.squeue(jobs[0]))
            return
        try:
            # a job of several tasks has a list of results
            value = [found for job in jobs for found in job.results()]
            print_json(submitit=name, value=value, state=str(jobs[0].state))
        except Exception as error:
            kind = type(error).__name__
            print_json(submitit=name, error=kind, text=str(error)[-800:], state=str(jobs[0].state))

    def cancel(self) -> None:
        """Cancel the job that does not end by itself, as soon as it runs."""
        (job,) = self.jobs["cancel"]
        if not self.wait_for(self.mark.exists, self.until):
            print_json(submitit="cancel", error="late", text=self.squeue(job))
            job.cancel(check=False)
            return
        begin = time.monotonic()
        job.cancel()
        over = self.wait_for(lambda: self.squeue(job) in ("", "CANCELLED"), begin + SETTLE)
        seconds = round(time.monotonic() - begin, 2)
        known = (
            over
            and self.accounting
            and self.wait_for(lambda: job.watcher.is_done(job.job_id, mode="force"), begin + SETTLE / 3)
        )
        print_json(
            submitit="cancel", over=over, slurm=self.squeue(job), known=known, state=str(job.state), seconds=seconds
        )

    def squeue(self, job: Any) -> str:
        """Return Slurm's state of a job, '' if Slurm has removed its record."""
        words = ["squeue", "-h", "-a", "-t", "all", "-j", str(job.job_id), "-o", "%T"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=60)
        return done.stdout.decode().split("\n")[0].strip()

    def wait_for(self, true: Any, until: float) -> bool:
        """Wait until true() holds; return False if the time is over first."""
        while not true():
            if time.monotonic() > until:
                return False
            time.sleep(0.3)
        return True

    def clear(self) -> None:
        """Cancel the remaining jobs, and remove the folder."""
        if self.jobs:
            with contextlib.suppress(OSError):
                subprocess.call(["scancel", "--quiet", *self.ids()], stderr=subprocess.DEVNULL)
        if self.folder:
            remove_folder(str(self.folder))


def watch_over(driver: Driver) -> None:
    """End when the process that started this one has ended."""
    sys.stdin.read()
    driver.clear()
    os._exit(1)


def main(text: str) -> int:
    """Run the driver; return the exit code."""
    given = json.loads(text)
    driver = Driver(given["parameters"], given["wait"], accounting=given["accounting"])
    threading.Thread(target=watch_over, args=(driver,), daemon=True).start()
    phase = "submit"
    try:
        driver.make_folder(given["place"], given["prefix"])
        driver.submit()
        phase = "collect"
        driver.collect()
        print_json(submitit="done")
    except BaseException as error:
        print_json(submitit="failed", phase=phase, error=type(error).__name__, text=" ".join(str(error).split())[:400])
        return 1
    finally:
        driver.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
