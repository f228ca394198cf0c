"""The CSV of Nsight Compute: its pages raw and details, and other files."""

import pytest

from nsystui.base.errors import ExportError
from nsystui.exports.ncu_csv import NcuLaunch, read_ncu_csv

IDENTITY = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)
RAW = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "33.125000"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "71.500000"),
    "gpu__time_duration.sum": ("us", "1,234.500000"), "launch__occupancy_limit_blocks": ("block", "32"),
    "launch__occupancy_limit_registers": ("block", "4"), "launch__occupancy_limit_shared_mem": ("block", "6"),
    "launch__occupancy_limit_warps": ("block", "8"), "sm__maximum_warps_per_active_cycle_pct": ("%", "50.000000"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "40.250000"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "47.750000"),
}  # fmt: skip
VALUES = {
    "dram": 33.125, "memory": 71.5, "duration": 1_234_500.0, "blocks": 32.0, "registers": 4.0, "shared memory": 6.0,
    "warps": 8.0, "theoretical": 50.0, "compute": 40.25, "achieved": 47.75,
}  # fmt: skip


def line(*cells: str) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def identity(number: int, kernel: str, grid: str = "(16, 288, 1)", block: str = "(256, 1, 1)") -> list[str]:
    return [str(number), "65", "python3.12", "127.0.0.1", kernel, "1", "7", block, grid, "0", "9.0"]


def raw_page(*kernels: str, changed: dict[str, tuple[str, str]] | None = None) -> str:
    metrics = {**RAW, **(changed or {})}
    units = [unit for unit, _ in metrics.values()]
    lines = [line(*IDENTITY, *metrics), line(*[""] * len(IDENTITY), *units)]
    for number, kernel in enumerate(kernels):
        lines.append(line(*identity(number, kernel), *[value for _, value in metrics.values()]))
    return "".join(lines)


DETAILS = (
    ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "71.50"),
    ("GPU Speed Of Light Throughput", "Duration", "ms", "1.2345"),
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "%", "40.25"),
    ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "1,028.25"),
    ("Occupancy", "Block Limit SM", "block", "32"),
    ("Occupancy", "Achieved Occupancy", "%", "47.75"),
)


def details_page(*kernels: str) -> str:
    names = ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    lines = [line(*IDENTITY, *names, "Rule Name", "Rule Description")]
    for number, kernel in enumerate(kernels):
        lines += [line(*identity(number, kernel), *metric, "", "") for metric in DETAILS]
        lines.append(line(*identity(number, kernel), "Occupancy", "", "", "", "A rule", "says:\nthis, and that"))
    return "".join(lines)


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes, name: str = "report.csv") -> list[NcuLaunch]:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_ncu_csv(path)

    return read


def test_a_row_of_the_raw_page_is_a_launch_with_times_in_nanoseconds(read):
    (first, second) = read(raw_page("axpy(float *)", 'gemm<"a, b">(int)'))
    assert first == NcuLaunch("axpy(float *)", (16, 288, 1), (256, 1, 1), VALUES)
    assert second.kernel == 'gemm<"a, b">(int)'


def test_the_rows_of_the_details_page_are_put_together_by_launch(read):
    launches = read(details_page("axpy(float *)", "axpy(float *)"))
    expected = {"memory": 71.5, "duration": 1_234_500.0, "compute": 40.25, "blocks": 32.0, "achieved": 47.75}
    assert [one.values for one in launches] == [expected] * 2


def test_lines_may_stand_around_the_table_and_tables_that_were_appended_are_all_read(read):
    text = '==PROF== Connected to process 65\nloss "0.5", ok\n' + raw_page("axpy") + "==PROF== Disconnected\n"
    assert [one.values for one in read(text)] == [VALUES]
    assert len(read(raw_page("a") + details_page("b") + details_page("c"))) == 3


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [("ns", "2,048", 2048.0), ("nsecond", "2048", 2048.0), ("second", "4.0e-05", 40_000.0), ("msecond", "1.5", 1.5e6)],
)
def test_durations_come_in_any_unit(read, unit, text, expected):
    (one,) = read(raw_page("axpy", changed={"gpu__time_duration.sum": (unit, text)}))
    assert one.values["duration"] == pytest.approx(expected)


def test_what_ncu_does_not_have_is_missing_and_not_zero(read):
    changed = {
        "gpu__time_duration.sum": ("", "n/a"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "nan"),
        "launch__occupancy_limit_blocks": ("block", ""),
    }
    (one,) = read(raw_page("axpy", changed=changed))
    assert {"duration", "compute", "blocks"}.isdisjoint(one.values) and one.values["memory"] == 71.5
    (one,) = read(line("Kernel Name", "gpu__time_duration.sum") + line("axpy", "12.5"))
    assert one.values == {}  # a duration without a unit


def test_numbers_of_a_locale_with_a_decimal_comma(read):
    text = {name: (unit, value.translate(str.maketrans(",.", ".,"))) for name, (unit, value) in RAW.items()}
    (one,) = read(raw_page("axpy", changed=text))
    assert one.values == VALUES


def test_numbers_in_two_notations_or_without_end_are_refused_and_a_grid_that_cuda_cannot_have_is_none(read):
    for number, said in (("1.234,5", "cannot both be numbers"), ("1" * 5000, "a number of 5,000 digits")):
        with pytest.raises(ExportError, match=said):
            read(raw_page("axpy", changed={"gpu__time_duration.sum": ("us", number)}))
    (one,) = read(raw_page("axpy").replace("(16, 288, 1)", f"({'1' * 5000}, 288, 1)"))
    assert one.grid is None and one.values == VALUES


def test_the_command_that_writes_a_table_can_be_pasted_into_a_shell(read):
    with pytest.raises(ExportError, match=r"ncu --import '[^']*run 1\.ncu-rep' --csv --page raw > '[^']*run 1\.csv'"):
        read(b"NVR\0", "run 1.ncu-rep")


@pytest.mark.parametrize("page", [raw_page("axpy", "gemm"), details_page("axpy", "gemm")])
def test_a_file_that_was_cut_off_gives_no_number_that_was_not_there(read, page):
    whole = [one.values for one in read(page)]
    for end in range(len(page) - 1, 0, -7):
        try:
            launches = read(page[:end])
        except ExportError as error:
            assert "report.csv" in str(error)
        else:
            for one, full in zip(launches, whole, strict=False):
                assert one.values.items() <= full.items()


@pytest.mark.parametrize("row", ["1,Duration,ns,5", "1,Duration,ns", "1"])
def test_a_row_that_ends_before_the_name_of_its_kernel_is_refused(read, row):
    with pytest.raises(ExportError, match="is incomplete"):
        read(f"ID,Metric Name,Metric Unit,Metric Value,Kernel Name\n{row}\n")
