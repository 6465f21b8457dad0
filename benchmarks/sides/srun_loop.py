"""The plain loop of scripts: `srun -w NODE COMMAND`, one after another.

python srun_loop.py            one srun per check and node
python srun_loop.py --whole    one srun per node, all checks in one script: the fewest processes that a loop can have
"""

from __future__ import annotations

import subprocess
import sys

from questions import Question, asked

LIMIT = 120  # seconds; a loop without one hangs with the first node that does
MARK = "=== end of check ==="


def ask(node: str, command: str) -> str:
    """Return what a node prints."""
    argv = ["srun", "-N1", "-n1", "-w", node, "sh", "-c", command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False).stdout


def one_by_one(node: str, questions: tuple[Question, ...]) -> list[str]:
    """Return the answers of a node to single questions."""
    return [ask(node, question.command) for question in questions]


def whole(node: str, questions: tuple[Question, ...]) -> list[str]:
    """Return the answers of a node that is asked everything in one script."""
    script = "\n".join(f"{question.command}\nprintf '{MARK}'" for question in questions)
    return ask(node, script).split(MARK)[:-1]


def main() -> int:
    """Ask every node, count what is right."""
    questions, nodes = asked()
    answers_of = whole if "--whole" in sys.argv else one_by_one
    verdicts = [
        question.right(answer)
        for node in nodes
        for question, answer in zip(questions, answers_of(node, questions), strict=True)
    ]
    print(f"{verdicts.count(False)} failed, {verdicts.count(True)} passed")
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
