"""Faults that the BMC recorded since the boot, and states of its sensors."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.core.part import named, register
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.suites.os.bmc_facts import Grade, code_word

if TYPE_CHECKING:
    from pytest_gpucluster.suites.os.bmc_facts import Bmc, SelEntry, UsualBmc

DAY = 86_400.0
register("sensor", "sensor", named=True)


@check(
    "os.bmc_events",
    cause="an error of memory, of a processor or of a PCIe device could not be corrected, or a part failed",
    hint="ipmitool sel elist; ipmitool sel get ID for the DIMM or slot; replace the part; ipmitool sel clear afterwards",
    action=Action.MONITOR,
    marks=("slow",),
    show="ipmitool sel list last 200",
)
def bmc_events(bmc: Bmc, uptime: float, usual_bmc: UsualBmc) -> Judgement:
    """Since the boot the BMC recorded no hardware fault that has not ended; one of the 24 hours before is a warning.

    No healthy node fails: an entry counts only if it is younger than the boot by the BMC's own clock, with no later entry of a
    boot, of the same sensor deasserted, or of a part taken out or put in, and if most nodes have no such entries. Where the sensor
    can be read, os.bmc_sensors judges its present state. A replaced DIMM, processor or card needs a boot, after which it passes.
    """
    if "events" in bmc.problems:
        raise NotAvailable(bmc.problems["events"])
    found: defaultdict[tuple[str, str], list[tuple[SelEntry, bool]]] = defaultdict(list)
    for event, after_boot in bmc.lasting():
        age = None if event.time is None else bmc.now - event.time
        if not event.grade or age is None or (not event.of_moment and bmc.has_sensor(event)):
            continue
        since_boot = after_boot and age <= uptime
        if since_boot or (event.grade is Grade.FAULT and event.of_moment and age <= DAY):
            found[event.part, event.state].append((event, since_boot))
    for (part, _), entries in found.items():
        event, since_boot = entries[-1]
        ago = format_duration(max(bmc.now - (event.time or 0.0), 0.0))
        times = f", {len(entries)} times" if len(entries) > 1 else ""
        measured = f"{event.text}, {ago} ago{times}{'' if since_boot else ', before the boot'}"
        known = event.of_moment or "sensors" not in bmc.problems
        fault = event.grade is Grade.FAULT and event.asserted
        certain = fault and since_boot and known and not usual_bmc.is_logged(event)
        deviation = Finding if certain else Advisory
        expected = "no such event since the boot"
        yield deviation(named("sensor", part), Quote(measured), expected, code=code_word(event.state))


@check(
    "os.bmc_sensors",
    cause="a power supply, fan or drive failed or has no power, or the node is too hot",
    hint="ipmitool sdr elist; ipmitool sel elist; cables and power feed; replace the part; ipmitool mc reset cold if the BMC shows an old state",
    action=Action.MONITOR,
    marks=("slow",),
    show="ipmitool sdr elist",
)
def bmc_sensors(bmc: Bmc, usual_bmc: UsualBmc) -> Judgement:
    """In two readings no power supply, drive, fan, temperature or voltage is in a failed or critical state; other states are a warning.

    No healthy node fails: an empty bay, a sensor without a reading and an unused connector have no such state. What an unplugged part
    shows too (no input, a value of 0) fails only where most nodes show the part in order. What most nodes show is at most a warning.
    """
    if "sensors" in bmc.problems:
        raise NotAvailable(bmc.problems["sensors"])
    if not bmc.sensors:
        raise NotAvailable("ipmitool sdr elist printed no sensor")
    for sensor in bmc.sensors:
        if not sensor.grade:
            continue
        usual = usual_bmc.sensors.get(sensor.key, Norm())
        grade = usual.value if not usual.absent else None
        part, code = named("sensor", f"{sensor.name} ({sensor.entity})"), code_word(sensor.worst)
        if grade is not None and grade >= sensor.grade:
            if sensor.grade > Grade.NOTABLE:
                yield Advisory(part, Quote(sensor.shown), f"in order; {usual.most}", code=code)
        elif sensor.grade is Grade.FAULT or (sensor.grade is Grade.COMPARED and grade is not None):
            expected = "in order" if grade is None else f"in order, {usual.most}"
            yield Finding(part, Quote(sensor.shown), expected, code=code)
        else:
            yield Advisory(part, Quote(sensor.shown), "in order", code=code)
