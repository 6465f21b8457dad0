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
from typing import Any, Dict, List, Optional, Sequence

from pytest_gpucluster.kit.payloads.own_folder import make_folder, remove_folder
from pytest_gpucluster.kit.payloads.prelude import print_json

TASKS = 3
ARRAY = ((1, 10), (2, 20), (3, 30))
SIGNAL = "USR1"
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
        "slurm": int(os.environ["SLURM_PROCID"]),
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


class Steps:
    """A sum in steps that continues after a checkpoint: runs in a job. `mark` is the file written when half is done."""

    def __init__(self, mark: str) -> None:
        self.mark, self.step, self.sum = mark, 0, 0
        self.runs: List[Dict[str, Any]] = []

    def __call__(self) -> Dict[str, Any]:
        """Return the sum and how each run began; the first run waits for the signal."""
        import os
        import time
        from pathlib import Path

        restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.runs.append(
            {"restart": restart, "step": self.step, "node": os.environ.get("SLURMD_NODENAME", "")}
        )
        while self.step < 8:
            self.step += 1
            self.sum += self.step
            if self.step == 4 and not restart:
                Path(self.mark).write_text("runs")
                time.sleep(600)
        return {"sum": self.sum, "runs": self.runs}

    def checkpoint(self) -> Any:
        """Return the call with which submitit continues."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


class Driver:
    """The jobs of one run.

    `wait`: seconds that all of them may take. `requeue`: seconds until Slurm starts a requeued job again; None: no job
    is requeued.
    """

    def __init__(
        self,
        parameters: Dict[str, Any],
        wait: float,
        *,
        accounting: bool,
        requeue: Optional[float],
    ) -> None:
        self.requeue = requeue
        self.folder = self.mark = self.half = None  # type: Any
        self.parameters, self.until = parameters, time.monotonic() + wait
        self.accounting = accounting
        self.jobs: Dict[str, List[Any]] = {}

    def make_folder(self, parent: str, prefix: str) -> None:
        """Create the folder of the run; only then clear() has one to remove."""
        self.folder = Path(make_folder(parent, prefix))
        self.mark, self.half = self.folder / "linger.runs", self.folder / "steps.half"

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
        if self.requeue is not None:
            # set on the node: a site's SBATCH_EXPORT may keep variables of this process from the job
            setup = ["export SUBMITIT_PREEMPT_SIGNAL=%s" % SIGNAL]
            executor.update_parameters(slurm_setup=setup)
            self.jobs["checkpoint"] = [executor.submit(Steps(str(self.half)))]
        print_json(submitit="submitted", version=submitit.__version__, jobs=self.ids())

    def ids(self) -> List[str]:
        """Return the ids of all jobs, arrays as a whole."""
        return sorted({str(job.job_id).split("_")[0] for jobs in self.jobs.values() for job in jobs})

    def collect(self) -> None:
        """Report how each submission ended."""
        if "checkpoint" in self.jobs:
            self.preempt()
        self.cancel()
        for name, jobs in self.jobs.items():
            if name != "cancel":
                self.report(name, jobs, self.until + (self.requeue or 0 if name == "checkpoint" else 0))

    def preempt(self) -> None:
        """Send the signal to the job that saves its state, as soon as half of its steps are done."""
        (job,) = self.jobs["checkpoint"]
        if self.wait_for(self.half.exists, self.until):
            subprocess.call(["scancel", "--signal=" + SIGNAL, str(job.job_id)], timeout=60)

    def report(self, name: str, jobs: Sequence[Any], until: float) -> None:
        """Report the results of one submission, or the exception."""
        if not self.wait_for(lambda: all(job.done() for job in jobs), until):
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
            submitit="cancel",
            over=over,
            slurm=self.squeue(job),
            known=known,
            state=str(job.state),
            seconds=seconds,
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
            for pause in (0, 2) if self.requeue is not None else (0,):
                time.sleep(pause)  # scancel misses a job that is being requeued
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
    options = {key: given[key] for key in ("accounting", "requeue")}
    driver = Driver(given["parameters"], given["wait"], **options)
    threading.Thread(target=watch_over, args=(driver,), daemon=True).start()
    phase = "submit"
    try:
        driver.make_folder(given["place"], given["prefix"])
        driver.submit()
        phase = "collect"
        driver.collect()
        print_json(submitit="done")
    except BaseException as error:
        print_json(
            submitit="failed",
            phase=phase,
            error=type(error).__name__,
            text=" ".join(str(error).split())[:400],
        )
        return 1
    finally:
        driver.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
