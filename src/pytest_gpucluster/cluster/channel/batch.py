"""Several commands in one request. A request takes ten processes per node, a command in a batch only one.

The commands run one after another, each in a subshell, under one deadline: a timeout(1) and a shell for each would
cost as much as the commands themselves. A command without an answer (one hangs, the output was cut) must be sent again
alone, with its own deadline.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.core.probe import Answer

# One program with plain words: exec saves a fork, since a shell forks also for the last command of a list.
_PROGRAM = re.compile(r"(?P<name>[\w./][\w.+/-]*)(?: [\w.+/:,@%=-]+)*", re.ASCII)
# Builtins and reserved words (POSIX 2.4, 2.9.1.1, 2.14, bash, dash), which need no program file.
_OF_THE_SHELL = re.compile(
    r"alias|bg|bind|break|builtin|caller|case|cd|chdir|command|compgen|complete|compopt|continue|coproc|declare|dirs"
    r"|disown|do|done|echo|elif|else|enable|esac|eval|exec|exit|export|false|fc|fg|fi|for|function|getopts|hash|help"
    r"|history|if|in|jobs|kill|let|local|logout|mapfile|popd|printf|pushd|pwd|read|readarray|readonly|return|select"
    r"|set|shift|shopt|source|suspend|test|then|time|times|trap|true|type|typeset|ulimit|umask|unalias|unset|until"
    r"|wait|while|[.:]"
)

_HEAD = 'b() { (eval "$1") </dev/null; printf \'%s %s\\n\' "$m" $?; printf \'%s\\n\' "$m" >&2; }; '


@dataclass(frozen=True)
class Batch:
    """Commands with their deadlines in seconds."""

    commands: tuple[tuple[str, float], ...]

    @property
    def mark(self) -> str:
        """The end mark of each command's output: equal in every process for equal commands."""
        return "\x1e" + hashlib.sha256(repr(self.commands).encode()).hexdigest()[:16]

    @property
    def command(self) -> str:
        """The command line of the batch; of one command that command itself, since its shell alone shows its end."""
        if len(self.commands) == 1:
            return f"exec </dev/null; {_in_place(self.commands[0][0])}"
        calls = (f"b {shlex.quote(_in_place(command))}" for command, _ in self.commands)
        return f"m={shlex.quote(self.mark)}; {_HEAD}{'; '.join(calls)}; :"

    @property
    def timeout(self) -> float:
        """The longest deadline of its commands, in seconds."""
        return max(timeout for _, timeout in self.commands)

    def split(self, answer: Answer) -> dict[str, Answer]:
        """Return {command: answer} of the commands that ended; `answer` is that of the shell, whose end is that of one command."""
        if len(self.commands) == 1:
            return {} if answer.rc is None else {self.commands[0][0]: answer}
        outs = list(_pieces(answer.stdout, self.mark.encode() + rb" (\d{1,3})\n"))
        errs = list(_pieces(answer.stderr, self.mark.encode() + rb"()\n"))
        return {
            command: replace(answer, rc=int(status), stdout=out, stderr=err, problem="", truncated=False)
            for (command, _), (out, status), (err, _) in zip(self.commands, outs, errs, strict=False)
        }


def _in_place(command: str) -> str:
    """Return the command, with `exec` before it if it is one program with plain arguments."""
    found = _PROGRAM.fullmatch(command)
    return f"exec {command}" if found and not _OF_THE_SHELL.fullmatch(found["name"]) else command


def _pieces(stream: bytes, mark: bytes) -> Iterator[tuple[bytes, bytes]]:
    parts = re.split(mark, stream)
    return zip(parts[::2], parts[1::2], strict=False)


def batched(commands: Sequence[tuple[str, float]]) -> Batch | None:
    """Return the batch of two or more commands; None for fewer."""
    return Batch(tuple(commands)) if len(commands) > 1 else None
