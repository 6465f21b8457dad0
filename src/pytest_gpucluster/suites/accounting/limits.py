"""Limits of associations and QoS: their names in sacctmgr, their values, and the reasons of jobs beyond them. Pure.

Names: `sacctmgr show assoc|qos format=` of Slurm 22.05 to 26.05 (src/sacctmgr/common.c). Reasons: job_reason_string() of
src/common/slurm_protocol_defs.c (22.05 to 23.11), src/common/job_state_reason.c (24.05 to 26.05), where they are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core import units

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = int | float | dict[str, int] | None  # None: no limit

_COMMON = {
    "GrpTRES": "tres", "GrpTRESMins": "tres", "GrpTRESRunMins": "tres", "GrpJobs": "count", "GrpJobsAccrue": "count",
    "GrpSubmitJobs": "count", "GrpWall": "time", "MaxTRES": "tres", "MaxTRESPerNode": "tres", "MaxTRESMins": "tres",
    "MaxWall": "time",
}  # fmt: skip
ASSOCIATION_LIMITS = {**_COMMON, "MaxJobs": "count", "MaxJobsAccrue": "count", "MaxSubmitJobs": "count"}
QOS_LIMITS = {
    **_COMMON,
    "MaxTRESPU": "tres", "MaxTRESPA": "tres", "MaxTRESRunMinsPU": "tres", "MaxTRESRunMinsPA": "tres",
    "MaxJobsPU": "count", "MaxJobsPA": "count", "MaxSubmitPU": "count", "MaxSubmitPA": "count",
    "MaxJobsAccruePU": "count", "MaxJobsAccruePA": "count", "MinTRES": "tres",
}  # fmt: skip
# sacctmgr takes these too
ALIASES = {
    "MaxTRESPerJob": "MaxTRES", "MaxTRESPJ": "MaxTRES", "MaxTRESMinsPerJob": "MaxTRESMins", "MaxTRESPN": "MaxTRESPerNode",
    "MaxWallDurationPerJob": "MaxWall", "MaxTRESPerUser": "MaxTRESPU", "MaxTRESPerAccount": "MaxTRESPA",
    "MaxJobsPerUser": "MaxJobsPU", "MaxJobsPerAccount": "MaxJobsPA", "MaxSubmitJobsPerUser": "MaxSubmitPU",
    "MaxSubmitJobsPU": "MaxSubmitPU", "MaxSubmitJobsPerAccount": "MaxSubmitPA", "MaxSubmitJobsPA": "MaxSubmitPA",
    "GrpSubmit": "GrpSubmitJobs", "MaxSubmit": "MaxSubmitJobs", "MinTRESPerJob": "MinTRES",
    "MaxTRESRunMinsPerUser": "MaxTRESRunMinsPU", "MaxTRESRunMinsPerAccount": "MaxTRESRunMinsPA",
}  # fmt: skip

_BY_TRES = {
    ("qos", "GrpTRES"): ("QOSGrpNodeLimit", "QOSGrpGRES"),
    ("qos", "MaxTRESPU"): ("QOSMaxNodePerUserLimit", "QOSMaxGRESPerUser"),
    ("qos", "MaxTRESPA"): ("MaxNodePerAccount", "MaxGRESPerAccount"),
    ("account", "GrpTRES"): ("AssocGrpNodeLimit", "AssocGrpGRES"),
}
_BY_COUNT = {
    ("qos", "GrpJobs"): "QOSGrpJobsLimit",
    ("qos", "MaxJobsPU"): "QOSMaxJobsPerUserLimit",
    ("qos", "MaxJobsPA"): "MaxJobsPerAccount",
    ("qos", "GrpSubmitJobs"): "QOSGrpSubmitJobsLimit",
    ("qos", "MaxSubmitPU"): "QOSMaxSubmitJobPerUserLimit",
    ("qos", "MaxSubmitPA"): "MaxSubmitJobsPerAccount",
    ("account", "GrpJobs"): "AssocGrpJobsLimit",
    ("account", "MaxJobs"): "AssocMaxJobsLimit",
    ("account", "GrpSubmitJobs"): "AssocGrpSubmitJobsLimit",
    ("account", "MaxSubmitJobs"): "AssocMaxSubmitJobLimit",
}
SUBMIT_LIMITS = frozenset({"GrpSubmitJobs", "MaxSubmitPU", "MaxSubmitPA", "MaxSubmitJobs"})
TRES = ("node", "gres/gpu")  # not cpu: a job gets whole cores


def reason_beyond(owner: str, limit: str, tres: str = "") -> str:
    """Return Slurm's reason for a job beyond a limit of an owner (qos or account); '' for a limit that is not tried."""
    if (owner, limit) in _BY_COUNT and not tres:
        return _BY_COUNT[owner, limit]
    base = tres if tres in TRES else "gres/gpu" if tres.startswith("gres/gpu:") else ""
    return _BY_TRES[owner, limit][TRES.index(base)] if base and (owner, limit) in _BY_TRES else ""


def tried(owner: str) -> tuple[str, ...]:
    """Return the limits of an owner (qos or account) that a trial can reach."""
    return tuple(limit for of, limit in (*_BY_COUNT, *_BY_TRES) if of == owner)


def stated_limits(limits: Mapping[str, object], known: Mapping[str, str]) -> dict[str, Value]:
    """Return limits of a cluster file by their names in sacctmgr; ValueError for an unknown name or value."""
    names = {name.lower(): name for name in known} | {
        other.lower(): name for other, name in ALIASES.items() if name in known
    }
    found: dict[str, Value] = {}
    for key, value in limits.items():
        name = names.get(key.lower())
        if name is None:
            raise ValueError(f"{key}: not a limit here (known: {', '.join(known)})")
        try:
            found[name] = read_value(known[name], value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return found


def read_value(kind: str, value: object) -> Value:
    """Read a limit of the kind tres, count or time as sacctmgr prints it, or as a cluster file has it.

    '' , None and -1 are no limit. Memory is in bytes, a time in seconds.

    >>> read_value("tres", "gres/gpu=3,mem=1G"), read_value("time", "1-00:00:00"), read_value("count", "")
    ({'gres/gpu': 3, 'mem': 1073741824}, 86400.0, None)
    """
    text = "" if value is None else str(value).strip()
    if text in ("", "-1", "UNLIMITED"):
        return None
    if kind == "count":
        if not (text.isascii() and text.isdecimal() and len(text) < 12):
            raise ValueError(f"must be a number, not {text[:40]!r}")
        return int(text)
    if kind == "time":
        return units.parse_duration(value if isinstance(value, (int, float)) else text)
    pairs = value.items() if isinstance(value, dict) else [one.partition("=")[::2] for one in text.split(",")]
    found = {}
    for tres, amount in pairs:
        name, size = str(tres).strip().lower(), str(amount).strip()
        if not name or not size:
            raise ValueError(f"must be TRES=NUMBER[,...], like gres/gpu=8,mem=512G, not {text[:60]!r}")
        if name in ("mem", "vmem") and size.isdecimal():  # sacctmgr has memory in MiB
            size += "M"
        if size != "-1":
            found[name] = units.parse_size(size)
    return found or None


def written(value: Value) -> str:
    """Return a limit for a message."""
    if value is None:
        return "no limit"
    if isinstance(value, dict):
        return ",".join(
            f"{name}={units.write_size(amount) if name in ('mem', 'vmem') else amount}"
            for name, amount in sorted(value.items())
        )
    return units.slurm_time(value) if isinstance(value, float) else str(value)
