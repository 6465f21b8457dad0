"""Peak rates of known GPUs from the vendor's data sheets, and the share of them that a healthy GPU reaches. Pure.

Peaks are those of NVIDIA's data sheets (dense: figures "with sparsity" are halved), in TFLOP/s (int8: TOP/s) and GB/s.
The hard limit is peak x factor. Every healthy GPU must reach it with any driver and library, since a lower rate may
drain the node; burnin.stragglers finds GPUs that are slightly slower than their fleet. Rows of the hardware profile
(`burnin`) and of the cluster file (`burnin.expect`) are tighter and override these limits.

- Matrix products with cuBLAS reach 66 to 90% of the peak on cards with sufficient power (H200, 700 W: fp16 66%, bf16
  69%, tf32 73%): factor 0.5. fp8 and int8 depend more on the library (H200: int8 45%): factor 0.3. T4, L4 and A10
  reach their power limit of 70 to 150 W far below the peak: factor 0.2.
- A copy within memory reaches 80 to 92% of the peak (H200: 90%), also with ECC: factor 0.7.
- Copies between pinned memory and one GPU reach 80 to 90% of the PCIe link; all GPUs at once share the bandwidth of
  the host's memory and of the switches: factor 0.25.

Names are compared as a whole: a MIG slice, a vGPU or a card with other memory (H100 64GB HBM2, H800 PCIe, A10G) has
the beginning of its name in common with a faster card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

PRODUCT, PRODUCT_NARROW, PRODUCT_LOW_POWER, COPY, PCIE = 0.5, 0.3, 0.2, 0.7, 0.25
# GB/s per lane and direction by generation, after line coding (PCI-SIG)
LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True)
class Figures:
    """Dense peaks of one card: `tflops` by data type, `hbm` in GB/s."""

    tflops: Mapping[str, float]
    hbm: float
    source: str
    low_power: bool = False


def _peaks(fp64: float, fp32: float, tf32: float, half: float, fp8: float, int8: float) -> dict[str, float]:
    row = {"fp64": fp64, "fp32": fp32, "tf32": tf32, "fp16": half, "fp8": fp8, "int8": int8}
    return {dtype: peak for dtype, peak in {**row, "bf16": half if tf32 else 0}.items() if peak}


_HOPPER = _peaks(67, 67, 494.5, 989.5, 1979, 1979)
_HOPPER_NVL = _peaks(60, 60, 417.5, 835.5, 1670.5, 1670.5)
_HOPPER_PCIE = _peaks(51, 51, 378, 756, 1513, 1513)
_A100 = _peaks(19.5, 19.5, 156, 312, 0, 624)
_A100_40 = Figures(_A100, 1555, "data sheet A100")
_V100 = Figures(_peaks(7.8, 15.7, 0, 125, 0, 0), 900, "data sheet V100")
_V100_PCIE = Figures(_peaks(7, 14, 0, 112, 0, 0), 900, "data sheet V100")
# names of nvidia-smi without a leading NVIDIA, which drivers before 465 omit
KNOWN: Mapping[str, Figures] = {
    "H200 NVL": Figures(_HOPPER_NVL, 4800, "data sheet H200"),
    "H200": Figures(_HOPPER, 4800, "data sheet H200"),
    "H100 PCIe": Figures(_HOPPER_PCIE, 2000, "data sheet H100"),
    "H100 NVL": Figures(_HOPPER_NVL, 3900, "data sheet H100"),
    "H100 80GB HBM3": Figures(_HOPPER, 3350, "data sheet H100"),
    "H800": Figures(_peaks(0, 67, 494.5, 989.5, 1979, 1979), 3350, "data sheet H100; fp64 is cut"),
    "A100-SXM4-40GB": _A100_40,
    "A100-PCIE-40GB": _A100_40,
    "A100-SXM4-80GB": Figures(_A100, 2039, "data sheet A100 80GB"),
    "A100 80GB PCIe": Figures(_A100, 1935, "data sheet A100 80GB"),
    "A30": Figures(_peaks(10.3, 10.3, 82, 165, 0, 330), 933, "data sheet A30"),
    "A10": Figures(_peaks(0, 31.2, 62.5, 125, 0, 250), 600, "data sheet A10", low_power=True),
    "L40S": Figures(_peaks(0, 91.6, 183, 362, 733, 733), 864, "data sheet L40S"),
    "L40": Figures(_peaks(0, 90.5, 90.5, 181, 362, 362), 864, "data sheet L40"),
    "L4": Figures(_peaks(0, 30.3, 60, 121, 242.5, 242.5), 300, "data sheet L4", low_power=True),
    "Tesla V100-PCIE-16GB": _V100_PCIE,
    "Tesla V100-PCIE-32GB": _V100_PCIE,
    "Tesla V100S-PCIE-32GB": _V100_PCIE,
    "Tesla V100-SXM2-16GB": _V100,
    "Tesla V100-SXM2-32GB": _V100,
    "Tesla V100-SXM3-32GB": _V100,
    "Tesla T4": Figures(_peaks(0, 8.1, 0, 65, 0, 130), 300, "data sheet T4", low_power=True),
}


@dataclass(frozen=True)
class RateFloor:
    """A hard limit: the lowest accepted rate, its unit and its source."""

    rate: float
    unit: str
    why: str

    @property
    def bound(self) -> Quantity:
        """The limit as findings and metrics have it."""
        return Quantity(self.rate, self.unit, f">= {self.rate:.4g} {self.unit}: {self.why}")


def bare(name: str) -> str:
    """Return a card's name without the vendor."""
    return name.removeprefix("NVIDIA ")


def figures_of(name: str) -> Figures | None:
    """Return the figures of a card by its name in nvidia-smi, None if it is unknown."""
    return KNOWN.get(bare(name))


def floor_of(metric: str, name: str, *, gen: int | None = None, width: int | None = None) -> RateFloor | None:
    """Return the limit of a metric (a data type, hbm, h2d, d2h) on a card; None if it is unknown."""
    if metric in ("h2d", "d2h"):
        return _of_link(gen, width)
    figures = figures_of(name)
    return _of_card(metric, figures) if figures is not None else None


def _of_link(gen: int | None, width: int | None) -> RateFloor | None:
    if gen not in LANE or not width:
        return None
    link = LANE[gen] * width
    return RateFloor(link * PCIE, "GB/s", f"{PCIE:.0%} of {link:.1f} GB/s (PCIe {gen} x{width})")


def _of_card(metric: str, figures: Figures) -> RateFloor | None:
    if metric == "hbm":
        return RateFloor(figures.hbm * COPY, "GB/s", f"{COPY:.0%} of {figures.hbm:g} GB/s ({figures.source})")
    peak = figures.tflops.get(metric)
    if peak is None:
        return None
    narrow = PRODUCT_NARROW if metric in ("fp8", "int8") else PRODUCT
    factor = PRODUCT_LOW_POWER if figures.low_power else narrow
    return RateFloor(peak * factor, "TFLOP/s", f"{factor:.0%} of {peak:g} TFLOP/s dense ({figures.source})")
