"""The NCCL variables that a task sees in the image of the steps. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, check
from pytest_gpucluster.suites.nccl.environment import ignored_lines, judge_setting
from pytest_gpucluster.suites.nccl.environment_rules import NodeContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.suites.nccl.environment_facts import NcclEnvironment


@check(
    "nccl.image_environment",
    cause="the image, a hook of Enroot or a variable that Pyxis passes on sets NCCL's variables",
    hint="env | grep ^NCCL_ in the image; /etc/enroot/environ.d and hooks.d; ENV lines of the image; mount the missing file",
    action=Action.CONFIGURE,
)
def image_environment(found: NcclEnvironment, profile: Profile, intended_variables: Mapping[str, str]) -> Judgement:
    """In the image of the steps, NCCL's variables, files and plugins leave it its speed."""
    context = NodeContext(profile, found)
    for name, setting in sorted(found.effective.items()):
        if intended_variables.get(name) != setting.value:
            yield from judge_setting(setting, context, setting.where or "the environment of the task in the image")
    yield from ignored_lines(found)
