"""`rounds` of the payload on torch.distributed, on the sandbox's link model.

It is copied into the sandbox's state folder, beside collectives.py of the sandbox.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_sandbox import collectives
else:
    sys.path.insert(0, str(Path(__file__).parent))
    import collectives


def rounds(argv: list[str], folder: Path, base: Path) -> int:
    """Measure a schedule of groups (JSON on stdin) round by round on the link model; print one JSON line per group.

    A member is a node, or one of its GPUs, 'node:index'. A group that hangs lasts until its round's deadline; its
    members take no part in later rounds.
    """
    given = dict(zip(argv[::2], argv[1::2], strict=False))
    size, deadline = int(given["-s"]), float(given.get("--deadline", "120"))
    nodes = collectives.expand(os.environ["SLURM_STEP_NODELIST"])
    gpus = int(os.environ["SLURM_STEP_NUM_TASKS"]) // len(nodes)
    health = {node: collectives.node_health(folder, base, node) for node in nodes}
    noise = random.Random(  # repeatable, nothing secret
        "/".join([*nodes, os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")])
    )
    gone: set[str] = set()
    for number, groups in enumerate(json.load(sys.stdin)):
        hung = False
        health = {node: replace(was, hang=was.hang or collectives.frozen(folder, node)) for node, was in health.items()}
        for members in groups:
            result = _group(members, health, gpus, size=size, noise=noise, gone=gone)
            hung |= result.pop("hung", False)
            collectives.print_line(
                json.dumps({"round": number, "members": members, "size": size, "simulated": True, **result})
            )
        if hung:
            time.sleep(deadline)
    return 0


def _group(
    members: list[str],
    health: dict[str, collectives.NodeHealth],
    gpus: int,
    *,
    size: int,
    noise: random.Random,
    gone: set[str],
) -> dict[str, Any]:
    names = [member.partition(":")[0] for member in members]
    world = collectives.CommunicatorModel(
        {name: collectives.now(health[name], noise) for name in names},
        1 if ":" in members[0] else gpus,
        mnnvl=collectives.is_on("NCCL_MNNVL_ENABLE"),
    )
    if gone & set(names):
        return {"skipped": True, "problem": "a process of the group left in an earlier round"}
    if any(node.hang for node in world.nodes.values()):
        gone.update(names)
        return {"hung": True, "problem": "hung: no answer within the deadline of the round"}
    if any(node.crash for node in world.nodes.values()):
        gone.update(names)
        return {"problem": "NCCL error: unhandled system error"}
    ranks = len(members) * world.gpus if ":" not in members[0] else len(members)
    if ranks < 2:  # one rank transfers nothing
        return {"problem": "one rank alone has no bus bandwidth"}
    if len(world.nodes) == 1 and ":" in members[0]:
        world = collectives.CommunicatorModel(world.nodes, 2)
    wrong = sum(node.wrong for node in world.nodes.values())
    value = collectives.busbw(world, "all_reduce", size) * noise.lognormvariate(0.0, collectives.NOISE)
    return {"busbw": round(value, 3), "wrong": wrong, "problem": f"wrong data: {wrong} elements" if wrong else ""}


if __name__ == "__main__":
    nodes_at, base_at, *words = sys.argv[1:]
    sys.exit(rounds(words[1:], Path(nodes_at), Path(base_at)))
