"""Judge recorded output of real machines: the probe's own command runs against recorded tools and files.

A case is one file `tests/corpus/AREA/NAME.txt`: a YAML header, a line `---`, then the output of one or more commands
and the content of one or more files, each after a line `>>> `:

    hardware: 8 x H100 SXM5
    version: driver 535.129.03
    source: https://github.com/OWNER/REPO/issues/1
    profile: dgx-h100                       # optional; a shipped profile or a mapping, default `generic`
    cluster: {sudo: true}                   # optional; further keys of a cluster file
    expect:
      gpu.xid: {outcome: failed, action: reboot, part: GPU at 0000:1b:00, says: fallen off}
      os.kernel_log: passed
    ---
    >>> dmesg
    [   12.114906] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03
    >>> gpu02: nvidia-smi nvlink -s [exit 9]
    NVIDIA-SMI has failed ...
    >>> /sys/class/infiniband/mlx5_0/fw_ver
    28.39.1002

`>>> NODE: COMMAND` is of one of several nodes; without NODE it holds for every node. The arguments of a command must be
equal; `COMMAND *` answers to any. `[exit N]` is its status, `[stderr]` sends the text there. `expect` is of node gpu01;
`gpu02 gpu.xid: passed` is of another one; `os.drift/kernel` is of this setting alone. Outcomes: passed, failed, not applicable, not checked, error; `part` and
`says` are parts of a finding's text, `warning` is part of a warning's, `action` is the action of the verdict.
`>>> scontrol show node ...` gives each node's entry of Slurm's inventory; `scontrol show config` its configuration.
`>>> kubectl ...` is what the machine that runs pytest gets from the API server.
`>>> /sys/class/infiniband/mlx5_0/device -> /sys/devices/pci0000:15/...` is a link.
What the case does not hold is absent: no tool and no file of the testing machine shows through. /tmp and /dev/shm can
be written to, unless the case holds a `mktemp *` that fails.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import corpus_steps
import yaml
from scrambled import scrambled

from pytest_gpucluster.cluster.slurm import inventory
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.common_cause import Place, peer_groups
from pytest_gpucluster.core.errors import GpuClusterError, NotJudged, ProbeError
from pytest_gpucluster.core.fact import Fact, probe_for
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.kit.gpu.nvidia_smi import PAUSE
from pytest_gpucluster.run.facts import facts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.core.check import Verdict

ROOT = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "corpus"
# The ground that every node has; all else of a node is what its case recorded.
_BASIC = re.findall(
    r"\w+",
    """sh awk sed grep cat ls head tail cut tr sort uniq date printf echo test true false sleep id dirname basename env
    timeout mkdir rm stat readlink xargs find mktemp""",
)
_KEYS = {"hardware", "version", "source", "profile", "cluster", "expect", "note"}
# What tells of the GPUs, the best first: corpus_nvidia_smi.py answers from it.
_GPUS = ("nvidia-smi -q", "nvidia-smi -q -x", "nvidia-smi -L", "nvidia-smi nvlink -s", "nvidia-smi topo -m")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # every worker reads all cases
_WANTED = {"outcome", "action", "part", "says", "warning"}
_OUTCOMES = {"passed", "failed", "not applicable", "not checked", "error"}
_TITLE = re.compile(r"(?:(?P<node>[a-z]+\d+): )?(?P<what>.+?)(?: \[exit (?P<rc>\d+)\])?(?P<err> \[stderr\])?$")
# /proc and /sys always come from the case; of /dev all but the devices that every shell needs
_PATHS = re.compile(
    r"(?<![\w.*/$}])/(?:proc|sys|etc|var|run|tmp|dev(?!/(?:null|zero|stdin|stdout|stderr|tty|fd)\b))(?=[/\s;)\"']|$)"
)


@dataclass(frozen=True)
class Section:
    """What one command printed, or what one file holds, on one node ('' is every node)."""

    node: str
    what: str
    rc: int
    stderr: bool
    text: str


@dataclass(frozen=True)
class Result:
    """How a check ended on a node: a verdict, or an outcome and the reason for it."""

    outcome: str
    verdict: Verdict | None = None
    reason: str = ""

    @property
    def decided(self) -> Any:
        """What programs decide by."""
        if self.verdict is None:
            return self.outcome
        found, warned = self.verdict.findings, self.verdict.advisories
        of_findings = [(str(it.part), it.code, it.relation, it.action, it.setting) for it in found]
        return self.outcome, self.verdict.action, of_findings, [(str(it.part), it.code) for it in warned]

    def __str__(self) -> str:
        found = self.verdict.findings if self.verdict else ()
        shown = [f"{it.part}: {it.measured} (expected {it.expected})" for it in found]
        shown += [f"warning: {it.part}: {it.measured}" for it in (self.verdict.advisories if self.verdict else ())]
        action = f", action {self.verdict.action.value}" if found and self.verdict else ""
        reason = f": {self.reason or (self.verdict.reason if self.verdict else '')}"
        return f"{self.outcome}{action}{reason}; " + " | ".join(shown)


@dataclass(frozen=True)
class Case:
    """One recorded machine, and what the checks must say of it."""

    path: Path
    head: Mapping[str, Any]
    sections: tuple[Section, ...]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(CORPUS).with_suffix(""))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        named = {it.node for it in self.sections} | {key.rpartition(" ")[0] for key in self.head["expect"]}
        return tuple(sorted(named - {""})) or ("gpu01",)

    @property
    def expected(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield (node, check, what is expected)."""
        for key, wanted in self.head["expect"].items():
            node, _, check = key.rpartition(" ")
            yield node or self.nodes[0], check, {"outcome": wanted} if isinstance(wanted, str) else wanted

    @property
    def sick(self) -> bool:
        """Whether any check must fail: else the machine is healthy, and no check may fail."""
        return any(wanted["outcome"] == "failed" for _, _, wanted in self.expected)


def load(path: Path) -> Case:
    """Read a case; ValueError where it is not one."""
    text = path.read_text()
    head, rule, body = text.partition("\n---\n")
    data = yaml.load(head, _Loader)
    if not rule or not isinstance(data, dict):
        raise ValueError(f"{path}: must begin with a YAML header, then a line ---")
    if wrong := set(data) - _KEYS or {"hardware", "version", "source", "expect"} - set(data):
        raise ValueError(f"{path}: unknown or missing keys of the header: {', '.join(sorted(wrong))}")
    case = Case(path, data, tuple(_sections(body)))
    for _, check, wanted in case.expected:
        if wanted.get("outcome") not in _OUTCOMES or set(wanted) - _WANTED:
            raise ValueError(f"{path}: {check}: {wanted} is not an expectation")
        if wanted["outcome"] == "failed" and not {"action", "part"} <= set(wanted):
            raise ValueError(f"{path}: {check}: a failure needs its action and its part")
    return case


def _sections(body: str) -> Iterator[Section]:
    for block in re.split(r"^>>> ", body, flags=re.MULTILINE)[1:]:
        title, _, text = block.partition("\n")
        match = _TITLE.match(title)
        assert match, title
        yield Section(match["node"] or "", match["what"], int(match["rc"] or 0), bool(match["err"]), text)


def all_cases() -> list[Case]:
    """Return every case of the corpus, by name."""
    return [load(path) for path in sorted(CORPUS.rglob("*.txt"))]


# --- the recorded machine


class Machine:
    """One node of a case in a folder of its own: `bin` with the recorded tools, `root` with the recorded files."""

    def __init__(self, case: Case, node: str, folder: Path) -> None:
        self.node, self.bin, self.root = node, folder / "bin", folder / "root"
        self._answers: dict[str, Answer] = {}
        for path in (
            self.bin,
            *(self.root / name for name in ("proc", "sys", "dev/shm", "etc", "var/tmp", "run", "tmp")),
        ):
            path.mkdir(parents=True)
        (self.root / "proc/uptime").write_text("1903284.11 240000000.00\n")
        for name in _BASIC:
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        mine = [section for section in case.sections if section.node in ("", node)]
        tools: dict[str, list[Section]] = {}
        for link, _, target in (it.what.partition(" -> ") for it in mine if " -> " in it.what):
            (self.root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
            path = self.root / link.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(self.root / target.lstrip("/"))
        for section in mine:
            if " -> " in section.what:
                continue
            if section.what.startswith("/"):
                path = self.root / section.what.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(section.text)
            else:
                tools.setdefault(section.what.split()[0], []).append(section)
        for name, recorded in tools.items():
            self._stub(name, recorded)

    def _stub(self, name: str, recorded: list[Section]) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        # the arguments are recorded with the machine's own paths
        lines = ["#!/bin/sh", f'case "$(printf %s "$*" | sed "s|{self.root}||g")" in']
        for number, section in enumerate(recorded):
            said = path.with_name(f".{name}.{number}")
            said.write_text(section.text)
            arguments = section.what.partition(" ")[2]
            pattern = "*" if arguments == "*" else shlex.quote(arguments)
            redirect = " >&2" if section.stderr else ""
            lines.append(f"  {pattern}) cat {shlex.quote(str(said))}{redirect}; exit {section.rc};;")
        for what in _GPUS:
            whole = next((it.text for it in recorded if it.what == what), None)
            if whole is not None:
                break
        if whole is not None:
            said = path.with_name(f".{name}.q")
            said.write_text(whole)
            converter = Path(__file__).with_name("corpus_nvidia_smi.py")
            lines.append(f'  *) exec {shlex.quote(sys.executable)} -SE {converter} {shlex.quote(str(said))} "$@";;')
        lines += [f'  *) echo "{name}: not recorded: $*" >&2; exit 1;;', "esac"]
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)

    def replace(self, tool: str, text: str) -> None:
        """Let the one recorded command of a tool print another text; answers that came from it are forgotten."""
        (self.bin / f".{tool}.0").write_text(text)
        self._answers = {command: it for command, it in self._answers.items() if tool not in command}

    def answer(self, probe: Probe[Any]) -> Answer:
        """Return the answer to a probe's command; as in a run, one that several probes share runs once."""
        if probe.command not in self._answers:
            self._answers[probe.command] = self._run(probe.command)
        return self._answers[probe.command]

    def _run(self, command: str) -> Answer:
        """Run a command as it is, but for where the recorded tools and files are."""
        command = command.replace(f"sleep {PAUSE};", "")  # a recording does not change
        command = _PATHS.sub(lambda match: f"{self.root}{match[0]}", command)
        env = {"PATH": str(self.bin), "HOME": "/root", "LC_ALL": "C", "TZ": "UTC"}
        done = subprocess.run(
            [str(self.bin / "sh"), "-c", command],
            env=env, cwd=self.root, capture_output=True, stdin=subprocess.DEVNULL, timeout=300, check=False,
        )  # fmt: skip
        # what the command says of its files must read as on a real machine
        out, err = (text.replace(str(self.root).encode(), b"") for text in (done.stdout, done.stderr))
        return Answer(self.node, done.returncode, out, err)


# --- the test of the suite, called with what its fixtures would give


@dataclass
class Bench:
    """Stands in for the run: gives the suites' own fixtures the facts of the recorded machines."""

    case: Case
    folder: Path
    current: str = ""
    machines: dict[str, Machine] = field(default_factory=dict)
    _facts: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    @cached_property
    def cluster(self) -> Any:
        file = self.folder / "corpus.yaml"
        head = self.case.head
        data = {"nodes": ",".join(self.case.nodes), "profile": head.get("profile", "generic")}
        file.write_text(yaml.safe_dump({**data, **head.get("cluster", {})}))
        return load_cluster(str(file))

    def recorded(self, command: str) -> str:
        """Return what a command printed that the controller runs; '' where it is not recorded."""
        return "\n".join(section.text for section in self.case.sections if section.what.startswith(command))

    @cached_property
    def slurm(self) -> Any:
        """Slurm's client, as far as it reads what is recorded."""
        return SimpleNamespace(
            nodes=lambda: inventory.parse_nodes(self.recorded("scontrol show node")),
            config=lambda: inventory.parse_config(self.recorded("scontrol show config")),
            partitions=lambda: inventory.parse_partitions(self.recorded("scontrol show partition")),
        )

    def ask(self, *words: str) -> tuple[str, str]:
        """Return what kubectl printed; no command of a recording failed."""
        return self.recorded(" ".join(("kubectl", *words))), ""

    @cached_property
    def plan(self) -> Any:
        """The plan of a run on all nodes."""
        return SimpleNamespace(selected=self.case.nodes)

    def begin(self, suite: Any) -> Future[Any]:
        """Do the work of a suite before its first test."""
        future = Future[Any]()
        known = {name: getattr(self, name) for name in ("cluster", "nodes", "slurm", "run_step")}
        try:
            work = suite.load(suite.before_first_test.part)
            future.set_result(work(SimpleNamespace(**known, facts=SimpleNamespace(of_fleet=self.fleet_facts))))
        except GpuClusterError as error:
            future.set_exception(error)
        return future

    inventory: ClassVar[dict[str, Any]] = {}
    history: ClassVar[None] = None  # no run came before

    @cached_property
    def nodes(self) -> dict[str, Any]:
        """The nodes of a run, as far as suites compare them."""
        known = self.slurm.nodes()
        places = {}
        for name in self.case.nodes:
            info, group = known.get(name), self.cluster.group_of(name)
            places[name] = Place(group.nodes, "", info.arch if info else "", info.system if info else "")
        peers, twins = (peer_groups(places, image=image) for image in (False, True))
        return {
            name: SimpleNamespace(
                group=(group := self.cluster.group_of(name)),
                profile=group.profile,
                peers=peers[name],
                twins=twins[name],
                info=known.get(name),
            )
            for name in self.case.nodes
        }

    def run_step(self, argv: tuple[str, ...], *, nodes: tuple[str, ...], **_: Any) -> Any:
        """Run a command with one task on one node, as far as its tools are recorded."""
        answer = self.answer(nodes[0], Probe("step", argv[-1], lambda answer: answer))
        return SimpleNamespace(tasks=(SimpleNamespace(stdout=answer.out, stderr=answer.err),))

    def need_slurm(self) -> Any:
        """Slurm's client, as far as its commands are recorded."""
        return SimpleNamespace(run=lambda *words: self.recorded(" ".join(words)))

    record = SimpleNamespace()  # of an item, with the picture that it records

    def allocation_of(self, node: str) -> None:
        """No node of a recording is allocated: no step has run there."""

    def read(self, node: str, probe: Probe[Any]) -> Any:
        key = (node, probe.name, probe.command)
        if key not in self._facts:
            try:
                self._facts[key] = probe.parse(self.answer(node, probe))
            except ProbeError as error:
                self._facts[key] = error
        if isinstance(self._facts[key], ProbeError):
            raise self._facts[key]
        return self._facts[key]

    def answer(self, node: str, probe: Probe[Any]) -> Answer:
        """Return a node's answer as it came, as a session does."""
        if node not in self.machines:
            self.machines[node] = Machine(self.case, node, self.folder / node)
        return self.machines[node].answer(probe)

    # what probes give to the facts of a node and of the fleet

    def facts(self, asked: Any) -> Any:
        return self.read(self.current, probe_for(asked, self.cluster))

    def fleet_facts(self, asked: Any) -> dict[str, Any]:
        found = {}
        for node in self.case.nodes:
            try:
                found[node] = self.read(node, probe_for(asked, self.cluster))
            except ProbeError:
                continue
        return found

    def judge(self, node: str, check: str) -> Result:
        """Return how a check of the suites ends on a node: the same with every text of ours as noise."""
        found = self._judge(node, check)
        with scrambled():
            noise = self._judge(node, check)
        return found if noise.decided == found.decided else Result("error", reason=f"words decide: {noise}")

    def _judge(self, node: str, check: str) -> Result:
        self.current = node
        if check in corpus_steps.CHECKS:
            try:
                verdict = corpus_steps.judge(check, node, self.case.sections, self.cluster)
            except GpuClusterError as error:
                return Result("error", reason=str(error))
            return Result(verdict.outcome.value, verdict)
        check, _, setting = check.partition("/")
        suite = check.partition(".")[0]
        module = importlib.import_module(f"pytest_gpucluster.suites.{suite}.test_{suite}")
        (judged,) = (one for one in module.TESTS.checks() if one.name == check)
        try:
            given = self._given(node) | ({"slurm": self.slurm} if suite == "slurm" else {})
            found = {name: self._fact(module, name, given) for name in judged.facts}
            if setting:
                found["readings"] = [it for it in found["readings"] if it.setting.name == setting]
            verdict = judged.of_facts(found)
        except NotJudged as error:
            return Result(error.outcome, reason=str(error))
        except (GpuClusterError, ValueError) as error:
            return Result("error", reason=str(error))
        return Result(verdict.outcome.value, verdict)

    def _given(self, node: str) -> dict[str, Any]:
        group = self.cluster.group_of(node)
        return {
            "node": SimpleNamespace(
                name=node,
                profile=group.profile,
                group=group,
                info=self.slurm.nodes().get(node),
                peers=self.nodes[node].peers,
                twins=self.nodes[node].twins,
            ),
            "peers": frozenset(self.nodes[node].peers.names),
            "inventory": self.slurm.nodes(),
            "node_name": node,
            "profile": group.profile,
            "cluster": self.cluster,
            "ask": self.ask,
            "nodes": self.case.nodes,
            "facts": self.facts,
            "fleet_facts": self.fleet_facts,
            "session": self,
            "item": self,
        }

    def _fact(self, module: Any, name: str, given: Mapping[str, Any]) -> Any:
        if name in given:
            return given[name]
        return self._made(module, facts_of(module)[name], given)

    def _made(self, module: Any, fact: Fact[Any], given: Mapping[str, Any]) -> Any:
        names = {it: name for name, it in facts_of(module).items()}
        if names.get(fact) in given:
            return given[names[fact]]
        read = self.fleet_facts if fact.once else self.facts
        sources = [self._made(module, it, given) if isinstance(it, Fact) else read(it) for it in fact.sources]
        return fact.function(*sources)


def wrong(case: Case, folder: Path) -> list[str]:
    """Judge a case; return what is not as expected, one line for each check."""
    bench = Bench(case, folder)
    found = []
    for node, check, wanted in case.expected:
        result = bench.judge(node, check)
        if differences := list(differing(result, wanted)):
            found.append(f"{case.name}: {check} on {node}: {'; '.join(differences)}; it ended as {result}")
    return found


def differing(result: Result, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a result is not as expected."""
    verdict = result.verdict
    findings = verdict.findings if verdict else ()
    if result.outcome != wanted["outcome"]:
        yield f"must end as {wanted['outcome']}"
    if "action" in wanted and (verdict is None or verdict.action.value != wanted["action"]):
        yield f"must ask for {wanted['action']}"
    for key, texts in (
        ("part", [str(it.part) for it in findings]),
        (
            "says",
            [f"{it.measured}, expected {it.expected}" for it in findings]
            or [result.reason or getattr(verdict, "reason", "")],
        ),
        ("warning", [f"{it.part}: {it.measured}" for it in (verdict.advisories if verdict else ())]),
    ):
        for text in [wanted[key]] if isinstance(wanted.get(key), str) else wanted.get(key, ()):
            if not any(text in shown for shown in texts):
                yield f"{key} must hold {text!r}"
