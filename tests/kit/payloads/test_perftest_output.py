"""What perftest prints, by its versions, in public output: tables in Gb/s, MB/s and MiB/s, the report with and without quotes, errors."""

from __future__ import annotations

import pytest

from pytest_gpucluster.kit.payloads.perftest_output import error_of, read_perftest

LINE = "-" * 87
# perftest 25 on RoCE at 100 Gb/s, 5 s; the warning stands between the header and its row (public notes on RoCE)
DURATION = f"""{LINE}
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 PCIe relax order: ON           Lock-free      : OFF
 CQE Poll Batch  : Dynamic
 GID index       : 4
 local address: LID 0000 QPN 0x008a PSN 0xfffb6d RKey 0x238f86 VAddr 0x007dd5a3cfd000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:06:116
{LINE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 65536      560845           0.00               98.02                0.186950
{LINE}
"""
# perftest 4.4 and 4.5 write MB/sec for MiB/s (openucx issue 8851); 25.01 and later MiB/sec
MEGABYTES = """ #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]
 65536      5000             11729.10           11728.47             0.187656
"""
# ConnectX-3, ib_read_lat (public notes on InfiniBand)
LATENCY = """ #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
Conflicting CPU frequency values detected: 2400.000000 != 1873.463000. CPU Frequency is not max.
 2       1000          1.76           6.12         1.79                1.80             0.06            1.88                    6.12
"""
# write_bw_report_to_file of 24.01
QUOTED = """{
"test_info": {
"test": "RDMA_Write_BW_Test",
"Mtu": 4096
},
"results": {
"MsgSize": 1048576,
"n_iterations": 10000,
"BW_peak": 394.28,
"BW_average": 393.98,
"MsgRate": 0.046966
}
}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DURATION, {"bandwidth": 98.02 / 8}),
        (MEGABYTES.format(unit="MB"), {"bandwidth": 11728.47 * 2**20 / 1e9}),
        (MEGABYTES.format(unit="MiB"), {"bandwidth": 11728.47 * 2**20 / 1e9}),
        (LATENCY, {"latency": 1.79, "tail": 1.88}),
        (QUOTED, {"bandwidth": 393.98 / 8}),
        (DURATION + QUOTED, {"bandwidth": 393.98 / 8}),
    ],
)
def test_every_form_gives_the_same_figures(text: str, expected: dict[str, float]) -> None:
    assert read_perftest(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        DURATION.partition(" 65536")[0],
        DURATION.replace("98.02", "-98.02"),  # perftest issue 82: the counter of cycles ran over
        DURATION.replace("98.02", "nan"),
        "* Waiting for client to connect... *\n",
    ],
)
def test_output_without_a_result_gives_none(text: str) -> None:
    assert read_perftest(text) == {}


def test_the_last_size_of_a_sweep_counts() -> None:
    rows = "\n".join(f" {2**n}  5000   1.00   {n}.00   0.1" for n in (1, 20, 23))
    head = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    assert read_perftest(head + rows) == {"bandwidth": 23 / 8}


FAILED = " Completion with error at client\n Failed status {}: wr_id 0 syndrom 0x{}\nscnt=128, ccnt=0\n"
ZEROS = "00000000 00000000 00000000 00000000\n"
DOWN, WARNING = " Port number 1 state is Down\n", "libibverbs: Warning: "


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (f"{DOWN} Couldn't set the link layer\n Couldn't get context for the device\n", DOWN.strip()),
        (FAILED.format(12, 81), "Completion with error at client Failed status 12: wr_id 0 syndrom 0x81"),
        (f"{WARNING}couldn't load driver 'x.so'\nIB device mlx5_9 not found\n", "IB device mlx5_9 not found"),
        # perftest issue 140; providers/mlx5/cq.c
        (
            f"got completion with error:\n{ZEROS}00000000 01005104 08001a78 000013d2\n{FAILED.format(4, 51)}",
            "Completion with error at client Failed status 4: wr_id 0 syndrom 0x51",
        ),
        ("Perftest doesn't supports CUDA tests with inline messages: inline size set to 0\n", ""),
        ("", ""),
    ],
)
def test_the_cause_is_the_first_line_that_is_no_warning(stderr: str, expected: str) -> None:
    assert error_of(stderr) == expected
