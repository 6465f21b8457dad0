"""Values of GPUs: comparison with the profile and with other GPUs of the model, and reasons for absent values."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from pytest_gpucluster.core.check import Action, Finding, Judgement
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.majority import Norm, differs, norms
from pytest_gpucluster.core.text import matches
from pytest_gpucluster.kit.gpu.nvidia_csv import NOT_REPORTED, is_unsaid, is_unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus

P = ParamSpec("P")
ByModel = dict[str, Norm[str]]


def of_present_gpus(judge: Callable[Concatenate[Gpus, P], Judgement]) -> Callable[Concatenate[Gpus, P], Judgement]:
    """Pass only GPUs that answer; gpu.count and gpu.driver judge lost GPUs and nodes without GPUs."""

    @functools.wraps(judge)
    def judged(gpus: Gpus, /, *args: P.args, **kwargs: P.kwargs) -> Judgement:
        lost = [gpu for gpu in gpus if gpu.lost]
        for gpu in lost:
            yield NotAvailable(f"{gpu} is lost (see gpu.count): {gpu.lost}")
        if not lost:
            yield from judge(with_gpus(gpus), *args, **kwargs)
        elif len(lost) < len(gpus):
            present = replace(gpus, devices=tuple(gpu for gpu in gpus if not gpu.lost))
            yield from judge(present, *args, **kwargs)

    return judged


def with_gpus(gpus: Gpus) -> Gpus:
    """Return GPUs that nvidia-smi lists; NotAvailable without any."""
    if gpus.devices:
        return gpus
    if gpus.driver_problem:
        raise NotAvailable(f"nvidia-smi does not work (see gpu.driver): {gpus.driver_problem}")
    raise NotAvailable(f"nvidia-smi lists no GPU (see gpu.count): {nvidia_smi_message(gpus)}")


def nvidia_smi_message(gpus: Gpus) -> str:
    """Return the messages of nvidia-smi beside its tables, and its exit status if it failed."""
    text = "; ".join(gpus.messages)[:200] or ("" if gpus.failed else "no message")
    return f"{text} ({gpus.failed})".strip() if gpus.failed else text


def unread(
    gpus: Gpus, gpu: Gpu, attribute: str, expected: Measure, *, stated: bool
) -> Finding | NotAvailable | NotApplicable:
    """Return why a value is absent.

    A value that other GPUs of the model report is a finding. If none reports it, the model, the guest or the driver does
    not have it: not checked if the profile states it, or if the text does not say so (Unknown), else not applicable. Any other
    text is an error of the driver in reading this value, which proves no fault of a GPU that answers.
    """
    text = gpu.unread.get(attribute, "no value")
    if text == NOT_REPORTED:
        return NotAvailable(f"{attribute}: {NOT_REPORTED} ({gpu.driver or 'version unknown'})")
    if root_only(text):
        return NotAvailable(f"{attribute} of {gpu}: nvidia-smi shows it to root alone: {text}")
    if not is_unsupported(text) and not is_unsaid(text):
        return Finding(gpu.part, Quote(text), expected, Action.MONITOR, code="unreadable")
    if any(one.name == gpu.name and getattr(one, attribute) is not None for one in gpus):
        others = f"{expected}; other GPUs of the node report it"
        return Finding(gpu.part, Quote(text), others, Action.MONITOR, code="not_reported")
    why = f"{attribute} of {gpu}: {text}, as on all GPUs of this model on the node"
    return NotAvailable(why) if stated or is_unsaid(text) else NotApplicable(why)


def states(profile: GpuProfile, key: str) -> bool:
    """Whether the profile states the value itself, and not only by default."""
    return key in profile.model_fields_set


def root_only(text: str) -> bool:
    """Whether only root may read the value, as nvmlErrorString prints it."""
    return "insufficient permissions" in text.lower()


def judge_equal(
    gpus: Gpus, attribute: str, expected: Any, shown: Callable[[Any], Measure] = str, *, code: str, stated: bool = True
) -> Judgement:
    """Judge that a value of every GPU is the expected one; `code`: of a finding on another value."""
    for gpu in gpus:
        value = getattr(gpu, attribute)
        if value is None:
            yield unread(gpus, gpu, attribute, shown(expected), stated=stated)
        elif value != expected:
            yield Finding(gpu.part, shown(value), shown(expected), code=code)


def judge_switch(gpus: Gpus, attribute: str, profile: GpuProfile, *, what: str) -> Judgement:
    """Judge whether a feature is enabled; a GPU that lacks it has it disabled."""
    on = getattr(profile, attribute)
    if on is None:
        raise NotApplicable(f"the profile does not state whether {what} must be on")
    shown = {True: "Enabled", False: "Disabled"}
    for gpu in gpus:
        value = getattr(gpu, attribute)
        if value is None and not on and gpu.lacks(attribute):
            continue
        if value is None:
            stated = states(profile, attribute)
            yield unread(gpus, gpu, attribute, shown[on], stated=stated)
        elif value != on:
            yield Finding(gpu.part, shown[value], shown[on], code="enabled" if value else "disabled")


def judge_version(gpus: Gpus, attribute: str, fleet: ByModel, *, stated: str | None) -> Judgement:
    """Judge a version by the profile ('535.*' is a prefix), else by the majority of the fleet."""
    for gpu in gpus:
        value = getattr(gpu, attribute)
        if value is None:
            expected = stated or "a version"
            yield unread(gpus, gpu, attribute, expected, stated=stated is not None)
        elif stated is None:
            yield from fleet.get(gpu.name or "", Norm[str]()).judge(gpu.part, value, worse=differs)
        elif not matches(value.lower(), stated.lower()):
            yield Finding(gpu.part, Quote(value), stated, code="wrong_version")


def by_model(facts: Mapping[str, Gpus], read: Callable[[Gpu], str | None], *, per_node: bool) -> ByModel:
    """Return {GPU model: norm of a value of all GPUs}, with one vote per GPU, or per node and value."""
    votes = [
        (gpu.name, node, value) for node, gpus in facts.items() for gpu in gpus if gpu.name and (value := read(gpu))
    ]
    voters = "nodes with this model" if per_node else "GPUs of this model"
    return norms(dict.fromkeys(votes) if per_node else votes, voters)
