"""The data folders are found in a checkout and in a wheel, and what ships in them is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import assets
from autotune.errors import CatalogError
from autotune.schema import parse_space, parse_study, read_spec
from autotune.space import SearchSpace, default_config, reasons
from autotune.spec import ParallelConfig, Study, catalog


def shipped(name: str) -> Study:
    return parse_study(read_spec(name), local_cluster=lambda: catalog.cluster("cpu-1x4"))


def test_folders_are_found() -> None:
    assert assets.search_spaces().is_dir()
    assert (assets.search_spaces() / "studies" / "laptop.yaml").is_file()


def test_the_packaged_copy_comes_before_what_lies_beside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "site" / "autotune"
    (tmp_path / "site" / "search_spaces").mkdir(parents=True)
    package.mkdir()
    assert assets._folder("search_spaces", package) == tmp_path / "site" / "search_spaces"
    (package / "data" / "search_spaces").mkdir(parents=True)
    assert assets._folder("search_spaces", package) == package / "data" / "search_spaces"
    with pytest.raises(CatalogError, match="data folder 'dashboards' is missing"):
        assets._folder("dashboards", package)


def test_an_unknown_space_is_answered_with_the_nearest() -> None:
    with pytest.raises(CatalogError, match="did you mean dense-single-node"):
        assets.space_file("dense-singlenode")


@pytest.mark.parametrize("name", assets.space_files())
def test_every_space_that_ships_says_what_it_is_for(name: str) -> None:
    spec = parse_space(name)
    assert spec.name == name
    assert spec.knobs
    assert read_spec(assets.space_files()[name])["description"]


@pytest.mark.parametrize(
    ("space", "model", "cluster"),
    [
        ("laptop", "nano-gpt", "cpu-1x4"),
        ("laptop", "nano-llama", "cpu-1x4"),
        ("laptop", "nano-gpt", "cpu-1x1"),
        ("single-gpu", "gpt2-medium", "a100-40gb-1x1"),
        ("dense-single-node", "llama-8b", "h100-sxm-1x8"),
        ("dense-single-node", "gpt2-xl", "a100-40gb-1x4"),
        ("dense-multi-node", "llama-405b", "h100-sxm-2048x8"),
        ("moe-multi-node", "mixtral-8x7b", "h100-sxm-16x8"),
        ("long-context", "llama-8b", "h200-sxm-8x8"),
    ],
)
def test_every_space_that_ships_holds_configs(space: str, model: str, cluster: str) -> None:
    workload = {"seq_len": 4096, "global_batch_size": 2048}
    study = parse_study({"model": model, "cluster": cluster, "workload": workload, "space": space})
    configs = SearchSpace.build(study.workload, study.space)
    assert 10 <= len(configs) <= 100_000
    assert not reasons(study.workload, default_config(configs))


@pytest.mark.parametrize("name", assets.study_files())
def test_every_study_that_ships_can_be_asked_for_by_name(name: str) -> None:
    study = shipped(name)
    space = SearchSpace.build(study.workload, study.space)
    small = {
        "goodput-laptop": 30,
        "few-for-many-laptop": 20,
    }  # on purpose: one trains to a loss, one is measured whole by a benchmark
    assert len(space) > small.get(name, 100)
    assert all(space.why_not(config) is None for config in study.enqueue)


def test_the_laptop_study_tours_every_kind_of_parallelism() -> None:
    study = shipped("laptop")
    space = SearchSpace.build(study.workload, study.space)
    degrees = {(config.tp, config.pp, config.dp) for config in study.enqueue}
    assert len(degrees) >= 6
    assert (2, 2, 1) in degrees
    assert study.budget.max_trials >= 12
    assert study.budget.min_gain == 0
    assert default_config(space) == ParallelConfig(dp=4, accumulation_steps=4, precision="fp32")


def test_on_one_gpu_the_laptop_study_keeps_the_guesses_that_it_can_run() -> None:
    document = read_spec("laptop")
    study = parse_study(document, local_cluster=lambda: catalog.cluster("h100-sxm-1x1"))
    space = SearchSpace.build(study.workload, study.space)
    assert study.enqueue
    assert all(config in space for config in study.enqueue)
