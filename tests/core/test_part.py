"""A part of a cluster: its words, what it has in common with the same part of another node, and its form in a log."""

from __future__ import annotations

from pytest_gpucluster.core.part import GPUS, Part, gpu, named, nvlink, pair, port


def test_words_of_a_part_and_its_form_in_a_log() -> None:
    one = gpu(3, uuid="GPU-x", address="1b:00", serial="S1")
    disk = Part("disk", name="sda", address="5e:00", serial="S2", model="PM9")
    rail = port("mlx5", 1, address="a", of=gpu(2))
    link, ends, mount = "GPU 3 (1b:00) NVLink 7", "mlx5 port 1 (a), rail of GPU 2", named("mount", "/data")
    for part, words, short, brief, likeness in (
        (one, "GPU 3 (GPU-x, 1b:00, S1)", "GPU 3", "GPU 3 (1b:00)", ("gpu", "")),
        (GPUS, "GPUs", "GPUs", "GPUs", ("gpu", "")),
        (nvlink(7, one), "GPU 3 (GPU-x, 1b:00, S1) NVLink 7", "GPU 3 NVLink 7", link, ("nvlink", "")),
        (rail, ends, "mlx5 port 1, rail of GPU 2", ends, ("port", "")),
        (port("hfi1", None), "hfi1", "hfi1", "hfi1", ("port", "")),
        (pair("a", "b"), "link a - b", "link a - b", "link a - b", ("pair", "")),
        (mount, "/data", "/data", "/data", ("mount", "/data")),
        (disk, "sda (PM9, 5e:00, S2)", "sda", "sda (PM9, 5e:00)", ("disk", "")),
    ):
        assert (str(part), part.short, part.brief, part.likeness) == (words, short, brief, likeness)
        assert Part.read(part.as_dict()) == part
        assert part.mapped(lambda text: text) == part
    assert Part.read({"kind": None, "index": "7", "of": 3, "nodes": "ab"}) == Part()
