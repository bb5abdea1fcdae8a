"""A store with exactly the methods of the protocol is enough to tune, to ask for the best, to plan, and to read through the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import api
from autotune.cost import calibration_for
from autotune.ports import ServiceStore
from autotune.results.best_known import best_known
from autotune.results.question import Asked
from autotune.service.options import ServiceOptions
from autotune.spec import StudyStatus
from autotune.spec.study import SIMULATED
from autotune.study.progress import TrialStarted
from autotune.testing.stores import ServiceStoreContract, StoreContract
from tests.service.running import Service, bearer
from tests.small_studies import QUIET, configs, spec
from tests.store.dict_store import DictStore

ADDRESSES = (
    "/api/v1/studies",
    "/api/v1/studies?status=COMPLETED&model=gpt2-medium",
    "/api/v1/studies/small",
    "/api/v1/studies/small/record",
    "/api/v1/studies/small/trials",
    "/api/v1/studies/small/events",
    "/api/v1/studies/small/best?top=3",
    "/api/v1/studies/small/best?pareto=true&metric=cost",
    "/api/v1/studies/small/explain",
    "/api/v1/studies/small/export/native",
    "/api/v1/best?model=gpt2-medium&runner=simulated",
    "/api/v1/best?model=gpt2-medium&cluster=h100-sxm-1x8",
    "/api/v1/health",
    "/api/v1/metrics",
    "/studies",
    "/studies/small",
    "/studies/small/report",
    "/best?model=gpt2-medium&runner=simulated",
)


@pytest.mark.thorough
class TestDictStore(StoreContract, ServiceStoreContract):
    @pytest.fixture
    def store(self) -> DictStore:
        return DictStore()


@pytest.fixture(scope="module")
def tuned() -> DictStore:
    """A store with one study, tuned to its end."""
    store = DictStore()
    api.tune(spec(), store=store)
    return store


@pytest.fixture(scope="module")
def service(tuned: DictStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service on that store."""
    with Service(tmp_path_factory.mktemp("service"), store=tuned) as running:
        yield running


def test_it_has_the_methods_of_the_protocol_and_no_other() -> None:
    assert {name for name in dir(DictStore) if name[0] != "_"} == {name for name in dir(ServiceStore) if name[0] != "_"}
    assert DictStore.__mro__ == (DictStore, object)


@pytest.mark.thorough
def test_a_study_is_tuned_and_resumed() -> None:
    slow = spec(runner=QUIET | {"time_scale": 0.001})
    store, undisturbed = DictStore(), DictStore()

    def interrupt(event: object) -> None:
        if isinstance(event, TrialStarted) and event.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.tune(slow, store=store, on_event=interrupt)
    resumed = api.tune(slow, store=store)
    assert len(store.studies()) == 1
    assert resumed.record.status is StudyStatus.COMPLETED
    whole = api.tune(slow, store=undisturbed)
    assert configs(t for t in resumed.trials if t.status != "CANCELLED") == configs(whole.trials)


def test_the_best_is_known_and_nearest_workloads_are_found(tuned: DictStore) -> None:
    winner = api.best_document(tuned, "small", top=3)["best"]
    across = best_known(tuned, Asked(model="gpt2-medium", cluster="h100-sxm-1x8", runner=SIMULATED))
    assert across["source"] == "measured"
    assert across["evidence"]["studies"] == 1
    assert winner["config"] in [
        row["best"]["config"] for row in api.past_studies(tuned, model="gpt2-medium", runner=SIMULATED, limit=20)
    ]
    near = best_known(tuned, Asked(model="gpt2-large", cluster="h100-sxm-1x8", runner=SIMULATED))
    assert near["source"] == "nearest"


def test_a_plan_uses_the_calibration_that_is_kept() -> None:
    study, store = api.load_study(spec()), DictStore()
    assumed = api.plan_of(study, store=store)
    constants = calibration_for(study.workload).to_dict() | {"source": "measured here"}
    store.save_calibration(study.workload.cluster.name, study.trainer, constants)
    assert assumed.source != api.plan_of(study, store=store).source == "measured here"


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_service_reads_from_it(service: Service, address: str) -> None:
    answer = service.http.get(address)
    assert answer.status_code == 200, answer.text
    assert answer.content


def test_the_service_plans_with_it(service: Service) -> None:
    answer = service.http.post("/api/v1/plan", json=spec())
    assert answer.status_code == 200, answer.text
    assert answer.json()["configs"]


def test_the_service_knows_the_tokens_that_it_keeps(tmp_path: Path) -> None:
    store = DictStore()
    with Service(tmp_path, store=store, options=ServiceOptions(port=0, require_token=True)) as guarded:
        assert guarded.http.get("/api/v1/studies").status_code == 401
        assert guarded.http.get("/api/v1/studies", headers=bearer(guarded.token("read"))).status_code == 200
    assert [line.action for line in store.audit_events()] == ["refused"]
