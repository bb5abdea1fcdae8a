"""The contract of stores as a test suite. Inherit from `StoreContract` and provide the `store`
fixture:

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self): ...                          # a fresh, empty store; closed by the fixture

    study_contract.py       submission, lookup, status, history            lease_contract.py    one holder at a time
    trial_contract.py       trials, attempts and steps under a lease       knowledge_contract.py    best configs, calibrations, profiles
    decision_contract.py    decisions in one transaction
    annotation_contract.py  notes, tags and deletion, a part of
    service_contract.py     `ServiceStoreContract`: tokens, audit, counts, for a store used by the service
    sample_studies.py       sample data: `a_study`, `pending`, `measured`, `failed`, `run_trial`; also used by other tests
"""

from autotune.testing.stores.annotation_contract import AnnotationContract
from autotune.testing.stores.decision_contract import DecisionContract
from autotune.testing.stores.knowledge_contract import KnowledgeContract
from autotune.testing.stores.lease_contract import LeaseContract
from autotune.testing.stores.sample_studies import (
    LONG_S,
    a_study,
    an_estimate,
    an_observed_run,
    decide,
    failed,
    kinds,
    launch,
    measured,
    pending,
    reported,
    run_trial,
    running_study,
)
from autotune.testing.stores.service_contract import ServiceStoreContract
from autotune.testing.stores.study_contract import StudyContract
from autotune.testing.stores.trial_contract import TrialContract


class StoreContract(
    StudyContract, LeaseContract, TrialContract, DecisionContract, KnowledgeContract
):
    """Tests that every `autotune.ports.Store` must pass."""


__all__ = [
    "LONG_S",
    "AnnotationContract",
    "DecisionContract",
    "KnowledgeContract",
    "LeaseContract",
    "ServiceStoreContract",
    "StoreContract",
    "StudyContract",
    "TrialContract",
    "a_study",
    "an_estimate",
    "an_observed_run",
    "decide",
    "failed",
    "kinds",
    "launch",
    "measured",
    "pending",
    "reported",
    "run_trial",
    "running_study",
]
