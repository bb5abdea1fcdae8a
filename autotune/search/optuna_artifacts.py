"""The evidence of exported trials as Optuna artifacts: files of a trial, which optuna-dashboard shows beside it.

    trial.json    the whole trial: config, estimate, every step time and loss, reward, failure
    failure.log   of a failed trial: kind, message, exception, last log lines

Exported trials have ended, and `optuna.artifacts.upload_artifact` takes only trials that run. So the files are written first, and a trial is made with their descriptions
in its system attributes, in the form in which `upload_artifact` writes them.
"""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import asdict

from optuna.artifacts._protocol import ArtifactStore
from optuna.artifacts._upload import ARTIFACTS_ATTR_PREFIX, ArtifactMeta

from autotune.spec import Trial


def keep_files(trial: Trial, store: ArtifactStore) -> dict[str, str]:
    """Writes the trial's files; returns the system attributes that name them."""
    attributes: dict[str, str] = {}
    for name, text in _files(trial).items():
        key = str(uuid.uuid4())
        kind = "application/json" if name.endswith(".json") else "text/plain"
        store.write(key, io.BytesIO(text.encode()))
        described = ArtifactMeta(artifact_id=key, filename=name, mimetype=kind, encoding=None)
        attributes[ARTIFACTS_ATTR_PREFIX + key] = json.dumps(asdict(described))
    return attributes


def _files(trial: Trial) -> dict[str, str]:
    files = {"trial.json": json.dumps(trial.to_dict(), indent=1)}
    if trial.failure is not None:
        files["failure.log"] = trial.failure.evidence + "\n"
    return files
