"""The checks that every distributed framework has: their names, causes and hints, stated once. Pure.

Each suite judges its own facts in the function below the decorator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec

from pytest_gpucluster.core.check import Action, check

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Check, Judgement

P = ParamSpec("P")


def _suite(name: str) -> str:
    """Return the suite of a check."""
    return name.partition(".")[0]


def framework_check(name: str, package: str) -> Callable[[Callable[P, Judgement]], Check[P]]:
    """Declare SUITE.framework: each node has the package, in the version of the others."""
    return check(
        name,
        cause=f"{package} is not installed for this python on the node, or the environment differs between nodes",
        hint=f"python3 -m pip show {package} on the node; or name another python under `environments` and that under "
        f"{_suite(name)}.environment",
        action=Action.CONFIGURE,
        setting=f"{_suite(name)}.environment",
    )


def transport_check(name: str) -> Callable[[Callable[P, Judgement]], Check[P]]:
    """Declare SUITE.transport: NCCL connects the ranks by the transports of the profile."""
    return check(
        name,
        cause="NCCL does not use the adapters, or the GPUs do not reach each other directly: NCCL_* of the environment, a "
        "missing library or device in the image, or an adapter that is down",
        hint="env | grep NCCL_ in a task; ibv_devinfo there; the nccl and fabric suites",
        action=Action.MONITOR,
    )


def between_check(name: str) -> Callable[[Callable[P, Judgement]], Check[P]]:
    """Declare SUITE.between: ranks of the node exchanged right data with ranks of other nodes."""
    return check(
        name,
        cause=f"partitions, or the key {_suite(name)}.nodes, leave the node without another one",
        hint=f"test nodes of one partition together: --nodes, {_suite(name)}.nodes",
        action=Action.CONFIGURE,
    )
