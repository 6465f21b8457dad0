"""What init and check --try read of a node: recorded hosts, written answers, and the scripts in a real shell."""

from __future__ import annotations

import subprocess

from paths import DATA

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.survey import Hardware
from pytest_gpucluster.kit.node.node_facts import MACHINE, SOFTWARE, packages, read_hardware

RECORDED = DATA / "h200x8"
H100 = "index, uuid, name, memory.total [MiB], mig.mode.current, ecc.mode.current, compute_mode\n"
PORTS = "port mlx5_0 1;4: ACTIVE;400 Gb/sec (4X NDR);InfiniBand;32.0 GT/s PCIe;16;;;;;\nnet lo;unknown;\nend\n"
VIRTUAL = "Architecture:     x86_64\nHypervisor vendor:   KVM\n\nQEMU\nend\n"


def answer(text: str) -> Answer:
    return Answer("gpu01", 0, text.encode())


def survey(**texts: str) -> Answer:
    return answer("".join(f"@@ {name} 0\n{text}\n" for name, text in texts.items()))


def recorded(name: str) -> str:
    """Return a recorded output without its command line and exit status."""
    return "\n".join((RECORDED / name).read_text().splitlines()[1:-1])


def test_recorded_host_of_eight() -> None:
    texts = {"gpus": "query-gpu.txt", "nvlink": "nvlink-s.txt", "topology": "topo.txt"}
    found = read_hardware(
        survey(**{key: recorded(file) for key, file in texts.items()}), answer(PORTS), answer(VIRTUAL)
    )
    assert found.gpus == (("NVIDIA H200", 143771 * 2**20),) * 8
    assert (found.nvlinks, found.links) == ((18,) * 8, frozenset({"NV18"}))
    assert (found.ports, found.virtual, found.vendor) == ((("InfiniBand", 50.0),), True, "QEMU")
    assert (found.mig, found.settings["ecc"], found.unread) == (False, True, ())


def test_single_gpu_and_mig_of_some() -> None:
    gpu = "{0}, GPU-{0}, NVIDIA A100-SXM4-40GB, 40960 MiB, {1}, Enabled, Default\n".format
    rows = gpu(0, "Enabled") + gpu(1, "Disabled")
    found = read_hardware(survey(gpus=H100 + rows), answer("end\n"), answer("\n\nend\n"))
    assert (found.mig, found.settings["mig"], found.settings["compute_mode"]) == (True, None, "Default")
    assert (found.virtual, found.vendor, found.ports) == (None, "", ())
    one = f"{H100}0, GPU-0, NVIDIA H100 80GB HBM3, 81559 MiB, Disabled, Enabled, Default\n"
    single = read_hardware(survey(gpus=one), answer(PORTS), answer(VIRTUAL))
    assert (single.gpus, single.links) == ((("NVIDIA H100 80GB HBM3", 81559 * 2**20),), frozenset())


def test_what_cannot_be_read_is_reported() -> None:
    found = read_hardware(
        answer("@@ gpus 127\nsh: nvidia-smi: not found\n"), answer("cut"), Answer("n", None, problem="timed out")
    )
    assert (found.gpus, found.virtual) == ((), None)
    assert [one.partition(":")[0] for one in found.unread] == ["GPUs", "adapters and interfaces", "machine"]
    assert Hardware().unread == ()


def test_scripts_run_in_a_real_shell() -> None:
    def run(command: str) -> Answer:
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=90)
        assert done.returncode == 0, done.stderr
        return Answer("here", done.returncode, done.stdout, done.stderr)

    found = SOFTWARE.parse(run(SOFTWARE.command))
    assert " 3." in found.python
    assert set(found.packages) <= {*packages()}
    MACHINE.parse(run(MACHINE.command))


def test_output_of_the_software_script() -> None:
    text = (
        "program mpirun\t/usr/bin/mpirun\nmpirun\tmpirun (Open MPI) 4.1.4\nimage\t/shared/a.sqsh\npyxis\tyes\n"
        'packages\t{"torch": "2.5.1"}\npython\t/usr/bin/python3 3.11.2\nmodule\tcuda/12.4\nend\n'
    )
    found = SOFTWARE.parse(answer(text))
    assert found.programs == {"mpirun": "/usr/bin/mpirun"}
    assert (found.packages, found.images) == ({"torch": "2.5.1"}, ("/shared/a.sqsh",))
    assert (found.modules, found.pyxis) == (("cuda/12.4",), True)
    assert found.versions == {"mpirun": "mpirun (Open MPI) 4.1.4"}
