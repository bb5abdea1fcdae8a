"""The probe's readings of a GPU, from a driver's library in C with the calls, types and units of
nvml.h, up to the finding of a diagnosis."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.diagnosis import diagnose, evidence_of
from autotune_workers.probe.injected.nvml import Gpu

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
UUID = "11111111-2222-3333-4444-555555555555"
Driver = Callable[..., Any]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """Makes the library; `driver(option)` gives its path with a setter of its variables."""

    def make(*options: str) -> tuple[str, Callable[..., None]]:
        path = tmp_path / f"libnvidia-ml-{'-'.join(options).strip('-') or 'new'}.so"
        source = Path(__file__).with_name("nvml.c")
        subprocess.run(
            ["cc", "-shared", "-fPIC", *options, "-o", str(path), str(source)],
            check=True,
            timeout=600,
        )
        library = ctypes.CDLL(str(path))

        def set_values(**values: int) -> None:
            for name, value in values.items():
                kind = ctypes.c_ulonglong if name in ("reasons", "nvlink_kib") else ctypes.c_uint
                kind.in_dll(library, name).value = value

        return str(path), set_values

    return make


def test_each_reading_comes_in_its_unit(driver: Driver) -> None:
    path, set_values = driver()
    gpu = Gpu(UUID, library=path)
    first = gpu.read()
    assert "nvlink_bytes_per_s" not in first, "of a counter one reading tells no rate"
    assert (
        first
        | {"sm": 0.97, "power_watts": 650.0, "power_limit_watts": 700.0, "pcie_bytes_per_s": 1.5e6}
        == first
    )
    assert (
        first
        | {
            "sm_clock_mhz": 1980.0,
            "max_clock_mhz": 1980.0,
            "temperature_c": 60.0,
            "held by heat": 0.0,
        }
        == first
    )
    set_values(nvlink_kib=1000 + (1 << 20), sm_clock=1200, temperature=90)
    second = gpu.read()
    assert second["nvlink_bytes_per_s"] > 0
    assert (second["sm_clock_mhz"], second["temperature_c"]) == (1590.0, 75.0), (
        "means of both readings"
    )


@pytest.mark.parametrize(
    ("bits", "held"),
    [
        (0x1, []),
        (0x2, []),
        (0x4, ["power cap"]),
        (0x8, ["hardware slowdown"]),
        (0x10, []),
        (0x20, ["heat"]),
        (0x40, ["heat"]),
        (0x48, ["hardware slowdown", "heat"]),
        (0x88, ["hardware slowdown", "power brake"]),
        (0x100, []),
    ],
)
def test_what_holds_the_clocks_down_is_a_finding_with_its_rank(
    driver: Driver, bits: int, held: list[str]
) -> None:
    path, set_values = driver()
    set_values(reasons=bits, sm_clock=1200, temperature=91)
    gpu = Gpu(UUID, library=path).read()
    assert (
        sorted(
            name.removeprefix("held by ")
            for name, share in gpu.items()
            if name[:5] == "held " and share
        )
        == held
    )
    step = {
        "s": 0.1,
        "phases": {"forward": [0.04, 0.04, 0], "backward": [0.06, 0.06, 0]},
        "tokens": 64,
        "sequences": [1],
    }
    reports = [
        {"kind": "step", "rank": 3, "steps": [step] * 12},
        {"kind": "watch", "rank": 3, "host": "n1", "elapsed_s": 1.0, "gpu": gpu},
    ]
    evidence = evidence_of(reports)
    assert evidence is not None
    found = [f for f in diagnose(evidence).findings if f.cause == "clocks"]
    assert [(f.rank, f.node) for f in found] == ([(3, "n1")] if held else [])
    for finding in found:
        assert finding.what.startswith(
            f"rank 3's GPU runs at 1200 of 1980 MHz because of {' and '.join(held)}"
        )
        assert "91 degrees, 650 of 700 watts" in finding.evidence[-1]


def test_what_is_not_told_is_left_out(driver: Driver) -> None:
    path, set_values = driver()
    set_values(is_virtual=1)
    assert Gpu(UUID, library=path).read() == {}
    set_values(is_virtual=0, has_nvlink=0)
    gpu = Gpu(UUID, library=path)
    assert {"nvlink_bytes_per_s"} & {*gpu.read(), *gpu.read()} == set()
    old, _ = driver("-DOLD_DRIVER")
    assert not [name for name in Gpu(UUID, library=old).read() if name.startswith("held by")]
    with pytest.raises(ValueError, match="GPU-9"):
        Gpu("9", library=path)
    with pytest.raises(OSError, match="libnvidia-none"):
        Gpu(UUID, library="libnvidia-none.so.1")
