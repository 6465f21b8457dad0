"""The environment of steps, agents and Slurm's commands: the site's, neither that of pytest nor that of the shell that runs it.

Slurm's commands start with `base_environment`: the user's identity, the system's folders on PATH, a fixed locale, and
what Slurm's clients need to reach their controller. srun passes it on (SLURM_EXPORT_ENV=ALL) with what the cluster file
names (`variables`). Outside of containers `login_lines` then add in each task what a login sets on its node.
srun's own --export=NONE would set no PATH, and sbatch's --get-user-env reads the files of the user's home.
"""

from __future__ import annotations

import functools
import os
import pwd
import shlex
import shutil
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import EnvironmentConfig

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOCALE = "C.UTF-8"  # login.sh replaces it by C where the node has no such locale
UMASK = 0o022
IDENTITY = ("HOME", "LOGNAME", "SHELL", "USER")
# what Slurm's clients need to reach their controller: slurm.conf(5), ENVIRONMENT VARIABLES; SACK: auth/slurm
CLIENT = (
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"),
    *("SLURM_SACK_SOCKET", "SLURM_SACK_KEY", "SLURM_SACK_JWKS"),
)
_PYTHON = ("PYTHONPATH", "PYTHONHOME")
_LC = ("ALL", "CTYPE", "COLLATE", "MESSAGES", "NUMERIC", "TIME", "MONETARY")
_LOCALE = ("LANGUAGE", *(f"LC_{name}" for name in _LC))
# for commands on the machine of Slurm's commands only: the time zone in which they print, and credentials of ssh
COMMANDS_ONLY = ("KRB5CCNAME", "SSH_AUTH_SOCK", "TZ")
# ALL preserves values with commas, which a list of --export would split
OF_STEPS: Mapping[str, str | None] = {"SLURM_EXPORT_ENV": "ALL", **dict.fromkeys(COMMANDS_ONLY)}
# limits of the shell that runs pytest: each step has those of slurmd instead (srun(1), --propagate)
OWN_LIMITS = "--propagate=NONE"


def base_environment(shell: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's commands on this machine. `shell`: that of this process."""
    known = {name: shell[name] for name in (*CLIENT, *COMMANDS_ONLY) if name in shell}
    return {**_identity(shell), **known, "LANG": LOCALE, "PATH": command_path(shell.get("PATH", os.defpath))}


def command_path(search: str, system: str = SYSTEM_PATH) -> str:
    """Return the system's folders, behind them the folder of Slurm's commands on `search` if it is another one.

    It comes first if the system's folders have other commands of Slurm.
    """
    folder = _folder_of_slurm(search)
    if not folder or folder in (*system.split(":"), *tool_folders()):
        return system
    return f"{folder}:{system}" if _folder_of_slurm(system) else f"{system}:{folder}"


def variables(environment: EnvironmentConfig | None, shell: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what an environment of the cluster file adds to tasks: `pass_env` from the shell, and `exports`."""
    if environment is None:
        return {}
    found = os.environ if shell is None else shell
    passed = {name: value for name, value in found.items() if is_passed(environment, name)}
    passed |= {name: without_tool(name, passed[name]) for name in _OF_TOOL & passed.keys()}
    return {**{name: value for name, value in passed.items() if value}, **environment.exports}


def is_passed(environment: EnvironmentConfig, name: str) -> bool:
    """Return whether the environment's `pass_env` names this variable of the shell."""
    return any(fnmatchcase(name, pattern) for pattern in environment.pass_env)


_OF_TOOL = frozenset({"PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"})


def without_tool(name: str, value: str) -> str:
    """Return a variable of the shell without the folders of the interpreter that runs pytest; '' if nothing is left."""
    prefixes = [Path(folder).parent for folder in tool_folders()]
    homes = {*Path(sys.base_prefix).parents, *Path(sys.prefix).parents}

    def is_own(folder: str) -> bool:
        path = Path(folder)
        if folder in tool_folders() or any(path == prefix or prefix in path.parents for prefix in prefixes):
            return True
        # of pyenv's or asdf's shims that start the interpreter
        return name == "PATH" and path.name == "shims" and path.parent in homes

    return ":".join(folder for folder in value.split(":") if folder and not is_own(folder))


@functools.cache
def tool_folders() -> tuple[str, ...]:
    """Return the folders with the interpreter that runs pytest, if they are its own: of a venv, conda, pyenv or $HOME."""
    own = dict.fromkeys((sys.prefix, os.path.realpath(sys.prefix)))
    of_system, in_home = ("/usr", "/usr/local", "/"), Path.home() in Path(sys.prefix).parents
    is_own = sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir() or in_home
    return tuple(f"{prefix}/bin" for prefix in own if is_own and prefix not in of_system)


def login_lines() -> str:
    """Return lines of sh that set, in a task, what a login on the node sets (login.sh)."""
    lines = without_tool_lines("login_path")
    return script(__package__, "login.sh", SYSTEM=SYSTEM_PATH, WITHOUT_TOOL=lines)


def without_tool_lines(variable: str) -> str:
    """Return lines of sh that remove the folders of the interpreter that runs pytest from a search path, and its venv."""
    lines = [f"{variable}=:${variable}:"]
    for folder in tool_folders():
        own = shlex.quote(folder)
        lines += [
            f"while case ${variable} in *:{own}:*) ;; *) false ;; esac; do "
            f"{variable}=${{{variable}%%:{own}:*}}:${{{variable}#*:{own}:}}; done",
            f'[ "${{VIRTUAL_ENV-}}/bin" != {own} ] || unset VIRTUAL_ENV',
        ]
    return "\n".join([*lines, f"{variable}=${{{variable}#:}} {variable}=${{{variable}%:}}"])


def session_lines() -> str:
    """Return lines of sh for an SSH session on a node: its own environment, which is that of a login, and locale and umask of steps.

    login.sh puts what the profile sets instead of SYSTEM_PATH.
    """
    known = without_tool_lines("PATH")
    unset = f"unset {' '.join((*_PYTHON, *_LOCALE))}"
    return f"{known}\nPATH=$PATH:{SYSTEM_PATH} LANG={LOCALE}\nexport PATH LANG\n{unset}\numask {UMASK:03o}"


@functools.lru_cache(maxsize=16)
def _folder_of_slurm(search: str) -> str:
    found = shutil.which("srun", path=search) or shutil.which("scontrol", path=search)
    return str(Path(found).parent) if found and Path(found).is_absolute() else ""


def _identity(shell: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables of a login: from the user database, else those of the shell."""
    known = {name: shell[name] for name in IDENTITY if name in shell}
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:  # a container without an entry of the user
        return known
    own = {"LOGNAME": entry.pw_name, "SHELL": entry.pw_shell or "/bin/sh", "USER": entry.pw_name}
    home = entry.pw_dir if Path(entry.pw_dir).is_dir() else known.get("HOME", entry.pw_dir)
    return {**own, "HOME": home}
