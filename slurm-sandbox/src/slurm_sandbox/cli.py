"""The command `slurm-sandbox`: start and stop a sandbox, put faults into its nodes.

Another program may have the same verbs: `verbs` describes them, `run` executes them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_sandbox import __version__
from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from slurm_sandbox.api import Sandbox


def main(argv: Sequence[str] | None = None) -> int:
    """Run `slurm-sandbox` and return its exit status. Errors are one line on stderr."""
    parser = argparse.ArgumentParser(prog="slurm-sandbox", description="A real Slurm of virtual nodes on this machine.")
    parser.add_argument("--version", action="version", version=f"slurm-sandbox {__version__}")
    _add_verbs(parser, verbs("SLURM_SANDBOX"))
    args = parser.parse_args(argv)
    from slurm_sandbox.api import Sandbox  # not for --help

    try:
        run(Sandbox(args.state_dir), args)
    except (SandboxError, OSError) as error:
        sys.stderr.write(f"slurm-sandbox: error: {error}\n")
        return 1
    return 0


def run(sandbox: Sandbox, args: argparse.Namespace, found_by: Mapping[str, str] | None = None) -> None:
    """Execute a parsed command. `found_by`: {fault: the test that finds it}, for the list of faults."""
    if args.verb is _fault and args.list:
        _list_faults(args, found_by)
    else:
        args.verb(sandbox, args)


class Verb(NamedTuple):
    """A verb: its name, one line of help, what executes it, and its arguments: names, and attributes of add_argument().

    The attribute `completes`, a function, returns the words that a shell completes.
    """

    name: str
    help: str
    act: Callable[..., None]
    arguments: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...]


def verbs(environment: str) -> tuple[Verb, ...]:
    """Return the verbs. `environment`: the variable with the default of the state folder."""
    default = f"state folder of the sandbox (default: ${environment})"
    folder = _argument("--state-dir", type=Path, metavar="DIR", help=default)
    json_ = _argument("--json", action="store_true", help="print one JSON document")
    node_help = "nodes, like gpu03 or gpu[01-60]"
    return (
        Verb("up", "start a real Slurm of virtual nodes on this machine", _up, (folder, *_UP)),
        Verb("down", "stop the sandbox", _down, (folder,)),
        Verb("status", "show the state and the active faults, always as JSON", _status, (folder, json_)),
        Verb(
            "fault",
            "inject a fault into nodes",
            _fault,
            (
                folder,
                _argument("--list", action="store_true", help="list the kinds of faults and the check that finds each"),
                json_,
                _argument("kind", nargs="?", help="kind of the fault", completes=_fault_kinds),
                _argument("words", nargs="*", metavar="NODES|key=value", help=f"{node_help}, and options of the fault"),
            ),
        ),
        Verb(
            "heal",
            "remove faults: all, or those of nodes or of a kind",
            _heal,
            (
                folder,
                _argument("nodes", nargs="*", metavar="NODES", help=f"{node_help} (default: all nodes)"),
                _argument("--kind", help="remove faults of this kind only", completes=_fault_kinds),
            ),
        ),
    )


def _add_verbs(parser: argparse.ArgumentParser, verbs: Sequence[Verb]) -> None:
    commands = parser.add_subparsers(required=True, metavar="|".join(verb.name for verb in verbs))
    for verb in verbs:
        one = commands.add_parser(verb.name, help=verb.help, description=verb.help)
        one.set_defaults(verb=verb.act)
        for names, attributes in verb.arguments:
            one.add_argument(*names, **{key: it for key, it in attributes.items() if key != "completes"})


def _argument(*names: str, **attributes: Any) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    return names, attributes


def _fault_kinds() -> Iterable[str]:
    from slurm_sandbox.api import FAULTS  # only here

    return FAULTS


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a number from {least} to {most}, not {text!r}")
        return int(text)

    return number


_UP = (
    _argument("--nodes", type=_number(1, 256), default=4, help="virtual nodes, 1 to 256 (default: 4)"),
    _argument(
        "--model",
        default="h200",
        help="hardware model of the nodes: t4, v100, a100, h100, h200 or gb200 (default: h200)",
    ),
    _argument("--gpus", type=_number(0, 16), help="GPUs per node (default: those of the model)"),
    _argument(
        "--kind",
        choices=("plain", "namespaced", "auto"),
        default="plain",
        help="plain: all nodes on 127.0.0.1; namespaced: each node with its own network, hostname, processes, /tmp and "
        "sshd; auto: namespaced if this machine allows it (default: plain)",
    ),
    _argument("--accounting", action="store_true", help="also start slurmdbd with its own MariaDB"),
    _argument(
        "--isolation",
        action="store_true",
        help="isolate jobs by cgroups, device files and a private /tmp; needs root and cgroup v1",
    ),
    _argument("--backup", action="store_true", help="also start a backup controller (root, plain nodes)"),
    _argument(
        "--share",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="make this folder below /tmp or /run visible on namespaced nodes",
    ),
    _argument(
        "--pyxis",
        default="auto",
        metavar="auto|off|FILE",
        help="containers: auto: the bundled plugin if it can be compiled; off: none; FILE: the site's spank_pyxis.so "
        "with the enroot on PATH (default: auto)",
    ),
)


def _up(sandbox: Sandbox, args: argparse.Namespace) -> None:
    sandbox.up(
        nodes=args.nodes,
        gpus_per_node=args.gpus,
        model=args.model,
        kind=args.kind,
        accounting=args.accounting,
        backup=args.backup,
        share=args.share,
        pyxis=args.pyxis,
        isolation=args.isolation,
    )
    status = sandbox.status()
    if status.get("why_plain"):
        _say(f"The nodes are plain: {status['why_plain']}")
    _say(f"The sandbox is up: {args.nodes} {status['kind']} nodes. Now: {sandbox.next_step}")


def _down(sandbox: Sandbox, _args: argparse.Namespace) -> None:
    sandbox.down()
    _say("The sandbox is down.")


def _status(sandbox: Sandbox, _args: argparse.Namespace) -> None:
    _say(json.dumps(sandbox.status(), indent=2))


def _list_faults(args: argparse.Namespace, found_by: Mapping[str, str] | None) -> None:
    from slurm_sandbox.api import FAULTS  # only here

    rows = [{"fault": fault.name, "description": fault.description} for fault in FAULTS.values()]
    if found_by is not None:
        rows = [row | {"check": found_by.get(row["fault"], "")} for row in rows]
    if args.json:
        _say(json.dumps({"faults": rows}, indent=2))
        return
    titles = {"fault": "fault", "description": "what it does", "check": "found by"}
    widths = {name: max(len(row[name]) for row in [titles, *rows]) for name in rows[0]}
    for row in [titles, *rows]:
        _say("  ".join(row[name].ljust(width) for name, width in widths.items()).rstrip())


def _fault(sandbox: Sandbox, args: argparse.Namespace) -> None:
    from slurm_sandbox.api import fold  # only here

    named = [word for word in args.words if "=" not in word]
    if not (args.kind and named):
        raise SandboxError(f"missing fault or node: use `{sandbox.command} fault KIND NODES`; --list shows the kinds")
    options = _options(word for word in args.words if "=" in word)
    nodes = fold(sandbox.fault(args.kind, ",".join(named), **options))
    _say(f"{nodes}: {args.kind} is active. `{sandbox.command} heal {shlex.quote(nodes)}` removes it.")


def _options(words: Iterable[str]) -> dict[str, Any]:
    found = dict(word.split("=", 1) for word in words)
    for name, value in found.items():
        if not name.isidentifier():
            raise SandboxError(f"an option of a fault must be key=value, not {f'{name}={value}'!r}")
    return found


def _heal(sandbox: Sandbox, args: argparse.Namespace) -> None:
    from slurm_sandbox.api import fold  # only here

    nodes = sandbox.heal(",".join(args.nodes) or None, args.kind)
    _say(f"Healed: {fold(nodes) if args.nodes else 'all nodes'}.")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
