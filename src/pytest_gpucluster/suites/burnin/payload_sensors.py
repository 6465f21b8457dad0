"""What a node measures during a burn-in: temperature, power, clocks and throttling of its GPUs.

Python 3.6 and the standard library only.
"""

import re
import statistics
import threading
import time
from collections import Counter
from typing import Any, Dict, List, Optional, Sequence, Tuple

from pytest_gpucluster.suites.burnin.payload_counters import SMI, SMI_WARNING, number

# Bits of clocks_event_reasons.active (nvml.h); those of SLOW_BITS stand for heat or the power brake
SLOW_BITS = {0x8: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake"}
REASONS = {**SLOW_BITS, 0x4: "sw_power_cap", 0x10: "sync_boost"}
WATTS = 5  # width of the histogram of power
SETTLED = 1.0  # seconds after which the power follows a new load


class Row:
    """One reading of one GPU; a value is None if nvidia-smi does not know it. `loaded`: a load was running."""

    def __init__(self, at: float, cells: Sequence[str], loaded: bool) -> None:
        self.at, self.loaded = at, loaded
        self.celsius, self.watts, self.sm_mhz = [number(cell) for cell in cells[:3]]
        self.mask = int(cells[3], 16) if re.match(r"0x[0-9a-fA-F]+$", cells[3]) else None


def known(rows: Sequence[Row], name: str) -> List[float]:
    """Return the values of a field."""
    return [value for value in (getattr(row, name) for row in rows) if value is not None]


class Sensors:
    """Samples the GPUs in a thread from `start` on, every `every` seconds; a summary is of the time since the last one.

    loaded: a load runs; its summary ends it.
    """

    FIELDS = "uuid,temperature.gpu,power.draw,clocks.sm,"

    def __init__(self, every: float) -> None:
        self.every, self.reasons = every, "clocks_event_reasons.active"
        self.rows = {}  # type: Dict[str, List[Row]]
        self.loaded, self.lock = False, threading.Lock()

    def start(self) -> None:
        """Start sampling."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(self.every)
            self.sample()

    def sample(self) -> None:
        """Read all GPUs once."""
        loaded = self.loaded
        rc, out, _ = self._query()
        if rc not in (0, SMI_WARNING) and self.reasons.startswith("clocks_event"):
            self.reasons = "clocks_throttle_reasons.active"  # before driver 535
            rc, out, _ = self._query()
        if rc not in (0, SMI_WARNING):
            return
        now = time.monotonic()
        with self.lock:
            for line in out.splitlines():
                cells = [cell.strip() for cell in line.split(",")]
                if len(cells) == 5:  # the fields
                    row = Row(now, cells[1:], loaded and self.loaded)
                    self.rows.setdefault(cells[0], []).append(row)

    def _query(self) -> Tuple[Optional[int], str, str]:
        query = "--query-gpu=" + self.FIELDS + self.reasons
        return SMI.query(query, "--format=csv,noheader,nounits", timeout=30)

    def watts_between(self, uuid: str, begin: float, end: float) -> Optional[float]:
        """Return the mean power of a GPU from SETTLED seconds after `begin` (time.monotonic) to `end`."""
        with self.lock:
            rows = [row for row in self.rows.get(uuid, ()) if begin + SETTLED <= row.at <= end]
        watts = known(rows, "watts")
        return round(statistics.mean(watts), 1) if watts else None

    def summary(self) -> Dict[str, Dict[str, Any]]:
        """End the load; return {UUID: readings of the load, power and reasons of throttling of the whole time}.

        `samples`, the highest temperature, the median clock and shares of samples that were slowed are of the load; `watts`
        (histogram) and `slowed` (seconds for each reason) are of all the time since the last summary.
        """
        with self.lock:
            self.loaded, rows, self.rows = False, self.rows, {}
        return {uuid: {**_of_load(mine), **_of_time(mine, self.every)} for uuid, mine in rows.items()}


def _of_load(rows: Sequence[Row]) -> Dict[str, Any]:
    rows = [row for row in rows if row.loaded]
    masks = [int(mask) for mask in known(rows, "mask")]
    slow = {
        name: round(sum(bool(mask & bit) for mask in masks) / len(masks), 3)
        for bit, name in SLOW_BITS.items()
        if any(mask & bit for mask in masks)
    }
    celsius, sm_mhz = known(rows, "celsius"), known(rows, "sm_mhz")
    return {
        "samples": len(rows),
        "slow": slow,
        "celsius": max(celsius) if celsius else None,
        "sm_mhz": statistics.median(sm_mhz) if sm_mhz else None,
    }


def _of_time(rows: Sequence[Row], every: float) -> Dict[str, Any]:
    masks = [int(mask) for mask in known(rows, "mask")]
    slowed = {name: sum(bool(mask & bit) for mask in masks) * every for bit, name in REASONS.items()}
    return {
        "watts": Counter(str(int(round(value / WATTS) * WATTS)) for value in known(rows, "watts")),
        "slowed": {name: round(seconds, 1) for name, seconds in slowed.items() if seconds},
    }
