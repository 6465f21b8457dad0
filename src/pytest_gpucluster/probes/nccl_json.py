"""JSON of nccl-tests -J (2.17.3 and later, file versions 1 to 3) -> a Run. Pure.

Source: src/util.cu of github.com/NVIDIA/nccl-tests. Its booleans are strings, `root` is padded text, nan is the
string "nan", and `devices` has one entry a process, not a GPU. Before 2.17.9 the keys of the average were
misspelt. `env` holds the whole environment: `redact.variables` takes the secrets out before anything is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import jsontext, redact
from pytest_gpucluster.errors import ProbeError
from pytest_gpucluster.probes.nccl_tests import (
    COLLECTIVES,
    Failure,
    Half,
    IterStats,
    RankLine,
    Row,
    Run,
    bus_factor,
    completed,
    sweep,
)
from pytest_gpucluster.redact import REDACTED, is_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["REDACTED", "Report", "read"]

_FILE_VERSIONS = (1, 2, 3)
_MISSPELT = {"average_bus_bandwidth": "average_bus_bandwidith", "bandwidth": "bandwidith"}


@dataclass(frozen=True)
class Report:
    """The run of one JSON file and what surrounds it; `args` and `env` are free of secrets.

    `exact` is False where a process had several GPUs: then the file names only the first device of each.
    """

    run: Run
    args: tuple[str, ...]
    env: dict[str, str]
    start_time: str
    end_time: str
    exact: bool


def read(text: str) -> Report:
    """Read one file of -J. ProbeError where it is no such file, is cut, or contradicts itself in its form."""
    try:
        data = jsontext.loads(text)
    except ValueError as error:
        raise ProbeError(f"JSON of nccl-tests is cut or damaged: {error}") from None
    if not isinstance(data, dict) or "nccl_version" not in data:
        raise ProbeError("not a JSON report of nccl-tests: key 'nccl_version' is missing")
    if data.get("version") not in _FILE_VERSIONS:
        raise ProbeError(f"JSON version {data.get('version')!r} of nccl-tests is none of 1, 2, 3")
    try:
        return _report(data)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ProbeError(f"JSON of nccl-tests is not understood: {type(error).__name__} {error}") from None


def _redact_args(args: Iterable[str]) -> tuple[str, ...]:
    return tuple(REDACTED if is_secret("", str(arg)) else str(arg) for arg in args)


def _report(data: Mapping[str, Any]) -> Report:
    config = data.get("config") or {}
    args = _redact_args(data.get("args") or ())
    each = int(config["nthreads"]) * int(config["ngpus"]) if config else 1
    reasons: list[str] = []
    ranks = tuple(_rank(entry) for entry in config.get("devices") or ())
    world = len(ranks) * each
    collective = _collective(args, reasons)
    rows = tuple(_rows(data.get("results") or (), collective, world, reasons))
    factor = "step_factor" in config
    steps = ("minimum_bytes", "maximum_bytes", "step_factor" if factor else "step_bytes")
    sizes = sweep(*(int(config[key]) for key in steps), factor=factor) if config else ()
    bounds = data.get("out_of_bounds") or {}
    if bounds and _truth(bounds.get("okay")) != (bounds.get("count") == 0):
        reasons.append(f"out_of_bounds contradicts itself: {bounds}")
    if "end_time" not in data:
        reasons.append("no end_time: the run did not end")
    run = Run(
        version="2.17.3 or later", collective=collective, ranks=ranks, rows=rows,
        out_of_bounds=bounds.get("count"), avg_busbw=_average(data), failures=tuple(_failures(data)),
        world=world, validation=bool(config) and int(config["validation"]) > 0, sweep=sizes,
        nccl_version=str(data["nccl_version"]),
    )  # fmt: skip
    env = redact.variables(str(variable) for variable in data.get("env") or ())
    start, end = (str(data.get(key) or "") for key in ("start_time", "end_time"))
    return Report(completed(run, reasons), args, env, start, end, exact=each == 1)


def _truth(value: object) -> bool:
    """Read a boolean, which nccl-tests writes as a string."""
    if isinstance(value, bool) or value in ("true", "false"):
        return value in (True, "true")
    raise ValueError(f"{value!r} is no boolean")


def _rank(entry: Mapping[str, Any]) -> RankLine:
    return RankLine(
        int(entry["rank"]), int(entry["group"]), int(entry["pid"]), str(entry["hostname"]),
        int(entry["device"]), str(entry["device_hex"]), str(entry["device_info"]),
    )  # fmt: skip


def _collective(args: tuple[str, ...], reasons: list[str]) -> str:
    name = args[0].rsplit("/", 1)[-1].split("_perf")[0] if args else ""
    if name in COLLECTIVES:
        return name
    reasons.append(f"collective {name!r} is none of {', '.join(COLLECTIVES)}: its bandwidth cannot be proved")
    return ""


def _rows(entries: Iterable[Any], collective: str, world: int, reasons: list[str]) -> Iterable[Row]:
    for place, entry in enumerate(entries):
        if entry.get("out_of_place") is None:
            reasons.append(f"result {place}: no out-of-place half")
            continue
        inside = entry.get("in_place")
        row = Row(
            int(entry["size"]), int(entry["count"]), str(entry["type"]), str(entry["redop"]),
            int(str(entry["root"]).strip()), _half(entry, "out_of_place"), _half(entry, "in_place") if inside else None,
        )  # fmt: skip
        problem = _contradiction(row, collective, world, cpu="cpu_time" in entry["out_of_place"])
        if problem:
            reasons.append(f"result {place}: refused: {problem}")
        else:
            yield row


def _half(entry: Mapping[str, Any], key: str) -> Half:
    half = entry[key]
    wrong = half["nwrong"]
    stats = entry.get(f"{key}_per_iter")
    iterations = (
        IterStats(*(float(stats[name]) for name in ("min_us", "max_us", "p99_us", "cv_pct")))
        if stats
        else None
    )
    time = half["cpu_time"] if "cpu_time" in half else half["time"]
    printed, algbw, busbw = (_float(number) for number in (time, half["alg_bw"], half["bus_bw"]))
    return Half(printed, algbw, busbw, None if wrong is None else int(wrong), iterations=iterations)


def _float(value: Any) -> float | None:
    if value == "nan":
        return None
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    ):
        return float(value)
    raise ValueError(f"{value!r} is no measurement")


def _contradiction(row: Row, collective: str, world: int, *, cpu: bool) -> str:
    """Say where a row's own numbers do not agree; six decimals leave no room for rounding."""
    if not collective or not world:
        return "its collective or its ranks are not known"
    factor = bus_factor(collective, world)
    share = factor if collective == "hypercube" else 1.0  # its algorithm bandwidth is the bus bandwidth
    for half in (row.out_of_place, row.in_place):
        if half is None or row.size == 0 or half.time_us is None or half.algbw is None or half.busbw is None:
            continue
        time = half.time_us if not cpu else 0.0
        if (
            time
            and abs(row.size * share / time / 1e3 - half.algbw)
            > 1e-4 * half.algbw + 1e-4 + half.algbw * 1e-6 / time
        ):
            return f"{row.size} B in {half.time_us} us is not {half.algbw} GB/s"
        if abs(half.algbw * factor / share - half.busbw) > 1e-5 * half.busbw + 2e-6:
            return f"busbw {half.busbw} is not {factor:g} x algbw {half.algbw} ({world} ranks)"
    return ""


def _average(data: Mapping[str, Any]) -> float | None:
    average = _either(data, "average_bus_bandwidth")
    return _float(_either(average, "bandwidth")) if average else None


def _either(data: Mapping[str, Any], key: str) -> Any:
    return data.get(key, data.get(_MISSPELT[key]))


def _failures(data: Mapping[str, Any]) -> Iterable[Failure]:
    for text in data.get("errors") or ():
        if text:
            yield Failure("NCCL", "", str(text), "set NCCL_DEBUG=INFO and repeat")
    average = _either(data, "average_bus_bandwidth") or {}
    if average.get("okay") == "false":
        yield Failure(
            "minimum bandwidth",
            "",
            "average bus bandwidth is below 0.9 x NCCL_TESTS_MIN_BW",
            "judge per size instead",
        )
