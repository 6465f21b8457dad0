"""Checks of `slurm.bin` and of options for salloc and srun, on the machine of Slurm's commands."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.client import error_line, outage
from pytest_gpucluster.core.errors import ConfigError, SlurmError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster

COMMANDS = ("salloc", "sbatch", "scancel", "scontrol", "squeue", "srun")  # that a run starts
# salloc and srun parse their options in order and exit at the first unknown one, so an unknown last option makes them
# exit before any request. A word that is no option ends the parsing, as the command of a job: then they exit because
# -v and -Q exclude each other (_opt_verify() of src/salloc/opt.c and src/srun/opt.c, Slurm 20.11 to 26.05).
_END = "--gpucluster-end"
_BOTH = ("-v", "-Q")
_NEXT = "gpucluster-next"  # a line between two answers
_READ = re.compile(rf"unrecognized option\W+{_END.strip('-')}\b")
# the latter: srun
_NOT_READ = re.compile(r"both --verbose \(-v\) and --quiet \(-Q\)|No command given to execute")
# no such command, no configuration, or no controller: the first other command reports it better
_CANNOT = re.compile(r"fatal:|: not found|[Pp]ermission denied")


def refuse_options(cluster: Cluster, slurm: Slurm) -> None:
    """Raise ConfigError for a setting that Slurm's commands refuse: at most one process."""
    folder, options = cluster.slurm.bin, dict(_options(cluster))
    if not folder and not options:
        return
    # LC_ALL: getopt translates the messages that _READ searches for
    parts = [_commands_in(str(folder)), *(_trial(*one) for one in options.values())]
    try:
        answer = slurm.run("sh", "-c", f"\necho {_NEXT}\n".join(parts) + "\n:", env={"LC_ALL": "C"})
    except SlurmError:  # the first other command reports it better
        return
    found, *texts = answer.split(f"{_NEXT}\n")
    if folder and not found.strip():
        raise ConfigError(
            f"cluster {cluster.name}: slurm.bin: {folder} has none of Slurm's commands ({', '.join(COMMANDS)}): name "
            "their folder, or omit the key if they are on PATH"
        )
    for (where, (command, _)), text in zip(options.items(), texts, strict=False):
        if why := refusal(command, text):
            raise ConfigError(f"cluster {cluster.name}: {where}: {command} refuses them: {why}")


def refusal(command: str, text: str) -> str:
    """Return why a command refuses its options, from its output; '' if it accepts all of them."""
    if _NOT_READ.search(text):
        return "a word is no option, or an option has no value"
    if _READ.search(text) or _CANNOT.search(text) or outage(text):
        return ""
    first = text.partition("\n")[0]
    if "error:" in text or "option" in first:
        return error_line(text if "error:" in text else first)
    return f"{command} only prints something and ends"


def _options(cluster: Cluster) -> Iterator[tuple[str, tuple[str, Sequence[str]]]]:
    """Yield (key of the cluster file, (command, its options))."""
    if cluster.slurm.extra_args:
        yield "slurm.extra_args", ("salloc", cluster.slurm.extra_args)
    for name, environment in cluster.environments.items():
        if environment.srun_args:
            yield f"environments.{name}.srun_args", ("srun", environment.srun_args)


def _commands_in(folder: str) -> str:
    test = '[ -f "$folder/$name" ] && [ -x "$folder/$name" ] && echo "$name"'
    return f"folder={shlex.quote(folder)}; for name in {' '.join(COMMANDS)}; do {test}; done"


def _trial(command: str, options: Sequence[str]) -> str:
    return f"{shlex.join((command, *_BOTH, *options, _END))} </dev/null 2>&1"
