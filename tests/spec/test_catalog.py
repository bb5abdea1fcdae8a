"""The catalog says what its sources say."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from autotune.errors import CatalogError, SpecError
from autotune.spec import PRECISIONS, ClusterSpec, GpuSpec, catalog
from autotune.spec.plain import identity, to_plain

PUBLISHED_PARAMETERS = {
    "gpt2-small": 124.4e6,
    "gpt2-medium": 354.8e6,
    "gpt2-large": 774.0e6,
    "gpt2-xl": 1557.6e6,
    "llama-1b": 1.236e9,
    "llama-3b": 3.213e9,
    "llama-8b": 8.030e9,
    "llama-70b": 70.554e9,
    "llama-405b": 405.85e9,
    "mixtral-8x7b": 46.70e9,
}
"""As counted from the published checkpoints."""


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED_PARAMETERS.items())
def test_models_have_the_published_number_of_parameters(name: str, parameters: float) -> None:
    assert catalog.model(name).num_parameters == pytest.approx(parameters, rel=1e-3)


def test_mixtral_uses_two_experts_per_token() -> None:
    assert catalog.model("mixtral-8x7b").active_parameters == pytest.approx(12.88e9, rel=1e-2)


def test_the_catalog_has_the_names_of_the_contract() -> None:
    assert set(PUBLISHED_PARAMETERS) | {"nano-gpt", "nano-llama"} <= set(catalog.model_names())
    gpus = {
        "v100-32gb",
        "a100-40gb",
        "a100-80gb",
        "h100-sxm",
        "h200-sxm",
        "b200-sxm",
        "l40s",
        "cpu",
    }
    assert gpus <= set(catalog.gpu_names())


def test_names_are_sorted_by_size() -> None:
    names = catalog.model_names()
    llamas = [name for name in names if re.fullmatch(r"llama-[0-9]+b", name)]
    assert llamas == ["llama-1b", "llama-3b", "llama-8b", "llama-70b", "llama-405b"]
    assert [name for name in names if name.startswith("gpt2")] == [
        "gpt2-small",
        "gpt2-medium",
        "gpt2-large",
        "gpt2-xl",
    ]


@pytest.mark.parametrize("name", catalog.model_names())
def test_every_model_can_be_read(name: str) -> None:
    assert catalog.model(name).name == name


NOMINAL_GB = {
    "v100-16gb": 16, "v100-32gb": 32, "t4": 16, "a30": 24, "a40": 48, "l40": 48, "rtx-a6000": 48, "rtx-pro-6000": 96,
    "a100-40gb": 40, "a100-80gb": 80, "a100-pcie-40gb": 40, "a100-pcie-80gb": 80, "a800": 80, "h100-sxm": 80, "h100-pcie": 80, "h100-nvl": 94, "h200-sxm": 141, "gh200": 96,
    "h800": 80, "h20": 96, "b200-sxm": 180, "gb200-nvl72": 186, "b300-sxm": 270, "gb300-nvl72": 279, "l4": 24, "a10": 24, "a10g": 24, "l40s": 48, "h100-sxm-96gb": 96,
    "rtx-3090": 24, "rtx-4090": 24, "rtx-5090": 32, "rtx-6000-ada": 48, "mi250x": 64, "mi300x": 192, "mi325x": 256, "mi355x": 288,
    "mi350x": 288, "mi210": 64, "rx-7900-xtx": 24, "h200-nvl": 141, "b100-sxm": 192, "gb10": 128, "l20": 48, "rtx-a5000": 24, "rtx-a4000": 16, "rtx-5000-ada": 32, "rtx-8000": 48,
    "rtx-5080": 16, "rtx-5070-ti": 16, "rtx-4080": 16, "rtx-4080-super": 16, "rtx-4070-ti": 12, "rtx-4070-ti-super": 16, "rtx-4060-ti-16gb": 16, "rtx-3090-ti": 24,
    "rtx-3080": 10, "rtx-3080-ti": 12, "rtx-3060": 12, "rtx-2080-ti": 11,
}  # fmt: skip
"""memory as the product's name or datasheet states it"""


def test_the_catalog_has_current_gpus() -> None:
    assert set(NOMINAL_GB) <= set(catalog.gpu_names())


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_every_gpu_can_be_read_and_is_plausible(name: str) -> None:
    gpu = catalog.gpu(name)
    assert gpu.name == name
    assert gpu.source
    peaks = gpu.peak_flops_per_s
    assert list(peaks) == [precision for precision in PRECISIONS if precision in peaks]
    assert all(rate <= peaks[precision] for precision, rate in gpu.measured_flops_per_s.items())
    if not gpu.is_cpu:
        assert gpu.power_watts
        assert gpu.usual_fabric
    if name in NOMINAL_GB:
        assert gpu.memory_bytes == pytest.approx(NOMINAL_GB[name] * 1e9, rel=0.08)


@pytest.mark.parametrize("name", [name for name in catalog.gpu_names() if name != "cpu"])
def test_peaks_are_dense_and_higher_in_narrower_precisions(name: str) -> None:
    peaks = catalog.gpu(name).peak_flops_per_s
    ladder = [
        peaks[precision]
        for precision in ("fp32", "tf32", "fp16", "fp8", "nvfp4")
        if precision in peaks
    ]
    assert ladder == sorted(ladder)
    assert peaks.get("mxfp8", peaks.get("fp8")) == peaks.get("fp8")
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    # a figure with sparsity would be off by a factor of two against its neighbours
    if "fp8" in peaks:
        assert peaks["fp8"] == pytest.approx(2 * peaks["fp16"], rel=0.03)
    if "tf32" in peaks:
        assert peaks["fp16"] == pytest.approx(2 * peaks["tf32"], rel=0.03)
    if "nvfp4" in peaks:
        assert peaks["nvfp4"] / peaks["fp8"] == pytest.approx(
            3 if "300" in name else 4 if name.startswith("rtx-50") else 2, rel=0.03
        )


@pytest.mark.parametrize("name", [name for name in catalog.gpu_names() if name != "cpu"])
def test_gpus_linked_by_pcie_have_the_same_link_to_their_host(name: str) -> None:
    inside, host = (
        catalog.cluster(f"{name}-1x2").intra_node.bytes_per_s,
        catalog.gpu(name).host_bytes_per_s,
    )
    if inside in (16e9, 32e9):
        assert host == inside
    assert host in (16e9, 32e9, 64e9) or name in ("gh200", "gb200-nvl72", "gb300-nvl72", "gb10")


def test_a_rack_of_72_is_one_domain_of_18_nodes() -> None:
    for name in ("gb200-nvl72", "gb300-nvl72"):
        rack = catalog.cluster(f"{name}-18x4")
        assert (rack.num_gpus, rack.domain_gpus, rack.nodes_per_domain) == (72, 72, 18)
        assert catalog.cluster(f"{name}-72x4").domain_gpus == 72
        assert catalog.usual_cluster(name, num_gpus=64).name == f"{name}-16x4"
        assert f"{name}-18x4" in catalog.cluster_names()


@pytest.mark.parametrize("name", catalog.cluster_names())
def test_every_listed_cluster_can_be_read(name: str) -> None:
    cluster = catalog.cluster(name)
    assert cluster.name == name
    assert cluster.intra_node.bytes_per_s > cluster.inter_node.bytes_per_s


def test_clusters_of_any_size() -> None:
    cluster = catalog.cluster("a100-80gb-3x5")
    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.gpu.name) == (3, 5, "a100-80gb")
    assert cluster == catalog.cluster("a100-80gb-16x8").resized(num_nodes=3, gpus_per_node=5)
    assert cluster == ClusterSpec.of("a100-80gb", num_nodes=3, gpus_per_node=5)


def test_a_users_gpu_gets_default_links() -> None:
    gpu = GpuSpec(
        name="own", memory_bytes=1e9, peak_flops_per_s={"fp32": 1e12}, memory_bytes_per_s=1e11
    )
    cluster = catalog.cluster_of(gpu, num_nodes=2, gpus_per_node=4)
    assert cluster.name == "own-2x4"
    assert cluster.gpu is gpu


@pytest.mark.parametrize(
    ("look", "name", "remedy"),
    [
        (catalog.model, "lama-8b", "did you mean llama-8b?"),
        (catalog.model, "../models/gpt2-small", "did you mean gpt2-small?"),
        (catalog.model, "bert", f"`autotune models` lists all {len(catalog.model_names())}"),
        (catalog.gpu, "h100", "did you mean h100-nvl, h100-pcie, h100-sxm or h100-sxm-96gb?"),
        (
            catalog.cluster,
            "h100-1x8",
            "did you mean h100-nvl-1x8, h100-pcie-1x8, h100-sxm-1x8 or h100-sxm-96gb-1x8?",
        ),
        (catalog.cluster, "h100-1x", "did you mean h100-nvl-1x8, h100-pcie-1x8,"),
        (catalog.cluster, "4xH100-SXM", "did you mean h100-sxm-1x4?"),
        (catalog.cluster, "h100-sxm-8", "did you mean h100-sxm-1x8?"),
        (catalog.cluster, "h100-sxm", "write h100-sxm-NODESxGPUS"),
        (catalog.cluster, "local", "write GPU-NODESxGPUS"),
        (catalog.cluster, "h100-sxm-99999999999999x8", "did you mean h100-sxm-1x8?"),
    ],
)
def test_the_error_for_an_unknown_name_suggests_the_nearest(
    look: object, name: str, remedy: str
) -> None:
    with pytest.raises(CatalogError) as error:
        look(name)  # type: ignore[operator]
    assert remedy in error.value.remedy


def test_a_cluster_needs_a_node_and_a_gpu() -> None:
    with pytest.raises(SpecError, match="num_nodes must be 1"):
        catalog.cluster("h100-sxm-0x8")
    with pytest.raises(SpecError, match="gpus_per_node must be 1"):
        catalog.cluster("h100-sxm-1x9999")


def test_a_cluster_by_its_name_or_by_gpu_and_sizes() -> None:
    assert ClusterSpec.of("h100-sxm-4x8") == ClusterSpec.of(
        "h100-sxm", num_nodes=4, gpus_per_node=8
    )
    with pytest.raises(CatalogError, match="h100-sxm"):
        ClusterSpec.of("h100-sxn")


IDENTITIES = {
    "llama-8b": "93fb8b63fb5f4ac0017d2b3d1042658e",
    "qwen2.5-7b": "a110c34a06087c0c8cdf2e4920f2a88b",
    "gpt2-small": "2f9af2bf85d45d79610bdd0c49fd5959",
    "deepseek-v3": "240c609166227b1f7081cef9bcfd1479",
    "mixtral-8x7b": "59b5c2f029177a070a3bc40ba0966d60",
    "gemma-3-12b": "43e7618108ba3847012998e29d2137ea",
}
"""As stores have kept them since the catalog held shapes alone."""


@pytest.mark.parametrize(("name", "kept"), IDENTITIES.items())
def test_a_model_has_the_identity_under_which_earlier_results_are_stored(
    name: str, kept: str
) -> None:
    assert identity(to_plain(catalog.model(name))) == kept


CLUSTER_IDENTITIES = {
    "a100-80gb-4x8": "d96902e9b5256ceeabe3ba6d9f0e3641",
    "h100-sxm-16x8": "eeec1c40a86570356f7483f2028f7735",
    "h200-sxm-1x8": "cee8c4991f63d74615fede2a762fdfb0",
    "cpu-1x4": "f763fad9a0aad6884a8800758c2e56f3",
}
"""As stores have kept them since before the catalog held measured rates and domains."""


@pytest.mark.parametrize(("name", "kept"), CLUSTER_IDENTITIES.items())
def test_a_cluster_has_the_identity_under_which_earlier_results_are_stored(
    name: str, kept: str
) -> None:
    assert identity(to_plain(catalog.cluster(name))) == kept


def test_measured_rates_are_below_the_peak_and_shared_by_precisions_of_the_same_rate() -> None:
    h100 = catalog.gpu("h100-sxm")
    assert h100.ceiling_flops_per_s("bf16") == h100.ceiling_flops_per_s("fp16") == 795e12
    assert h100.ceiling_flops_per_s("tf32") == h100.peak_flops_per_s["tf32"]
    with pytest.raises(SpecError, match="at most the peak"):
        replace(h100, measured_flops_per_s={"bf16": 1.6e15})
    with pytest.raises(SpecError, match="no precision 'int8'"):
        replace(h100, measured_flops_per_s={"int8": 1e12})


def test_a_domain_is_a_node_unless_nvlink_spans_nodes() -> None:
    h100 = ClusterSpec.of("h100-sxm-4x8")
    assert (h100.nodes_per_domain, h100.domain_gpus) == (1, 8)
    rack = replace(h100, num_nodes=36, gpus_per_node=4, gpus_per_domain=72)
    assert (rack.nodes_per_domain, rack.domain_gpus) == (18, 72)
    assert replace(rack, num_nodes=2).domain_gpus == 8
    assert replace(rack, gpus_per_node=5).domain_gpus == 70


def test_a_job_uses_the_same_number_of_nodes_in_each_domain() -> None:
    rack = replace(ClusterSpec.of("h100-sxm-64x4"), gpus_per_domain=72)
    jobs = np.array([2.0, 4.0, 8.0, 64.0, 72.0, 128.0, 144.0, 148.0, 256.0, 1024.0])
    assert rack.domain_ranks(jobs).tolist() == [4, 4, 8, 64, 72, 64, 72, 48, 64, 64]
    assert ClusterSpec.of("h100-sxm-4x8").domain_ranks(jobs).tolist() == [8] * len(jobs)
