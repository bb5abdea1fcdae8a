"""The catalog says what its sources say."""

from __future__ import annotations

import re

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


def test_mixtral_visits_two_experts() -> None:
    assert catalog.model("mixtral-8x7b").active_parameters == pytest.approx(12.88e9, rel=1e-2)


def test_the_contract_names_are_there() -> None:
    assert set(PUBLISHED_PARAMETERS) | {"nano-gpt", "nano-llama"} <= set(catalog.model_names())
    gpus = {"v100-32gb", "a100-40gb", "a100-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "l40s", "cpu"}
    assert gpus <= set(catalog.gpu_names())


def test_names_come_by_size() -> None:
    names = catalog.model_names()
    llamas = [name for name in names if re.fullmatch(r"llama-[0-9]+b", name)]
    assert llamas == ["llama-1b", "llama-3b", "llama-8b", "llama-70b", "llama-405b"]
    assert [name for name in names if name.startswith("gpt2")] == ["gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"]


@pytest.mark.parametrize("name", catalog.model_names())
def test_every_model_can_be_read(name: str) -> None:
    assert catalog.model(name).name == name


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_every_gpu_can_be_read_and_is_plausible(name: str) -> None:
    gpu = catalog.gpu(name)
    assert gpu.name == name
    assert gpu.source
    peaks = gpu.peak_flops_per_s
    assert list(peaks) == [precision for precision in PRECISIONS if precision in peaks]
    if not gpu.is_cpu:
        assert gpu.power_watts
        assert gpu.usd_per_hour
        named = {"h200": 141e9, "b200": 180e9, "l40s": 48e9, "h100": 80e9}
        nominal = named.get(name.split("-")[0]) or float(name.split("-")[1].removesuffix("gb")) * 1e9
        assert gpu.memory_bytes == pytest.approx(nominal, rel=0.08)


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


def test_a_gpu_of_ones_own_gets_default_links() -> None:
    gpu = GpuSpec(name="own", memory_bytes=1e9, peak_flops_per_s={"fp32": 1e12}, memory_bytes_per_s=1e11)
    cluster = catalog.cluster_of(gpu, num_nodes=2, gpus_per_node=4)
    assert cluster.name == "own-2x4"
    assert cluster.gpu is gpu


@pytest.mark.parametrize(
    ("look", "name", "remedy"),
    [
        (catalog.model, "lama-8b", "did you mean llama-8b?"),
        (catalog.model, "../models/gpt2-small", "did you mean gpt2-small?"),
        (catalog.model, "bert", f"`autotune models` lists all {len(catalog.model_names())}"),
        (catalog.gpu, "h100", "did you mean h100-sxm?"),
        (catalog.cluster, "h100-1x8", "did you mean h100-sxm?"),
        (catalog.cluster, "h100-sxm", "did you mean h100-sxm-"),
        (catalog.cluster, "local", "write GPU-NODESxGPUS"),
        (catalog.cluster, "h100-sxm-99999999999999x8", "write GPU-NODESxGPUS"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(look: object, name: str, remedy: str) -> None:
    with pytest.raises(CatalogError) as error:
        look(name)  # type: ignore[operator]
    assert remedy in error.value.remedy


def test_a_cluster_needs_a_node_and_a_gpu() -> None:
    with pytest.raises(SpecError, match="num_nodes must be 1"):
        catalog.cluster("h100-sxm-0x8")
    with pytest.raises(SpecError, match="gpus_per_node must be 1"):
        catalog.cluster("h100-sxm-1x9999")


def test_a_cluster_by_its_name_or_by_gpu_and_sizes() -> None:
    assert ClusterSpec.of("h100-sxm-4x8") == ClusterSpec.of("h100-sxm", num_nodes=4, gpus_per_node=8)
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
def test_a_model_has_the_identity_under_which_earlier_results_are_stored(name: str, kept: str) -> None:
    assert identity(to_plain(catalog.model(name))) == kept
