"""Recommends changes to Kubeflow TrainJobs: takes a TrainJob, and returns a JSON patch (RFC 6902).

    TrainJob, YAML or JSON                       a list of operations; empty: no change
    AdmissionReview (admission.k8s.io/v1)        an AdmissionReview that allows the job, with the patch if there is one

KEP-3328 of Kubeflow Trainer lets plugins configure a TrainJob before it is admitted. How they will
be called is not decided, so everything about it is in this module. Its annotation
`trainer.kubeflow.org/autoconf-plugin` names the plugin that may change the job. Within an
admission, a job that does not name this plugin is not changed. `spec.trainer` is immutable once a
job exists, so only its creation is answered with a patch.

A patch changes words of the container's command and arguments, never its GPUs or its precision, and
only if the edited job is read as the proposed config. No job is ever rejected; whatever is not
understood becomes a warning.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from autotune.errors import AutotuneError, SpecError
from autotune.reviews.answer import Review
from autotune.reviews.lines import edited
from autotune.reviews.reviewing import review_texts
from autotune.reviews.words import gain_words
from autotune.trainers.present_configuration import section

PLUGIN = "trainer.kubeflow.org/autoconf-plugin"
"""annotation that names the plugin"""
NAME = "autotune"
"""name of this plugin"""
MOST_WARNING = 200
"""maximum characters of a warning; Kubernetes truncates much longer ones"""
_FILE = "job.yaml"
_WORDS = ("command", "args")


@dataclass(frozen=True, slots=True)
class Recommended:
    """The recommended change of a job."""

    patch: tuple[dict[str, Any], ...]
    """operations; empty: no change"""
    words: str
    """the reason"""


def recommended(text: str, **arguments: Any) -> tuple[Any, str]:
    """(the answer as a JSON document, the reason) for a TrainJob or an AdmissionReview.
    `arguments`: as for `review_texts`. Raises `SpecError` for any other text."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(
            f"the text is neither YAML nor JSON: {str(error).splitlines()[0]}", field="TARGET"
        ) from None
    kind = document.get("kind") if isinstance(document, Mapping) else None
    if kind == "TrainJob":
        found = of_job(document, **arguments)
        return list(found.patch), found.words
    if kind != "AdmissionReview" or not isinstance(document.get("request"), Mapping):
        raise SpecError(
            f"a TrainJob or an AdmissionReview with a request is expected, but kind is {kind!r:.80}",
            remedy="print a TrainJob with kubectl get trainjob NAME -o yaml",
            field="TARGET",
        )
    found = _admitted(document["request"], arguments)
    return _response(str(document["request"].get("uid", "")), found), found.words


def _admitted(request: Mapping[str, Any], arguments: Mapping[str, Any]) -> Recommended:
    """The recommendation for an admission request."""
    job = request.get("object")
    if (
        request.get("operation") != "CREATE"
        or not isinstance(job, Mapping)
        or job.get("kind") != "TrainJob"
    ):
        return Recommended((), "a TrainJob can be changed only at creation")
    annotations = section(job, "metadata.annotations")
    if annotations.get(PLUGIN) != NAME:
        return Recommended((), "")
    try:
        return of_job(job, **arguments)
    except AutotuneError as error:
        return Recommended((), str(error))


def _response(uid: str, found: Recommended) -> dict[str, Any]:
    """The AdmissionReview that allows the job."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if found.patch:
        patch = json.dumps(found.patch).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if found.words:
        response["warnings"] = [f"{NAME}: {found.words}"[:MOST_WARNING]]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def of_job(job: Mapping[str, Any], **arguments: Any) -> Recommended:
    """The recommended change of a TrainJob. Raises the errors of `review_texts`."""
    text = _text(job)
    found = review_texts({_FILE: text}, **arguments)
    if any("precision" in edit.changes for edit in found.edits) and found.config is not None:
        # the user decides about the precision
        arguments = {
            **arguments,
            "precision": found.config.precision,
        }
        found = review_texts({_FILE: text}, **arguments)
    if found.missing:
        missing = "; ".join(f"{each.what} ({each.remedy})" for each in found.missing)
        return Recommended((), f"no change: the launch lacks {missing}")
    if found.together is None:
        return Recommended((), "no change: no edit is certain to be faster")
    after = yaml.safe_load(edited(found.texts, found.lines).get(_FILE, text))
    if not _added(after, found.unplaced):
        return Recommended(
            (), f"no change: {', '.join(found.unplaced)} cannot be added to the job's arguments"
        )
    if review_texts({_FILE: _text(after)}, **arguments).config != found.together.config:
        return Recommended((), "no change: the edited job would not train with the proposed config")
    return Recommended(tuple(_operations(json.loads(json.dumps(job)), after, "")), _why(found))


def _text(job: Mapping[str, Any]) -> str:
    """The job as YAML, with one word of its command per line."""
    plain = json.loads(json.dumps(job, default=str))  # YAML parses times as objects
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=False, width=1 << 20)


def _added(job: dict[str, Any], options: tuple[str, ...]) -> bool:
    """Appends options to the words of the job's container. Returns False if they cannot be
    appended, for example after a shell script."""
    trainer: Any = section(job, "spec.trainer")
    key = next((key for key in reversed(_WORDS) if trainer.get(key)), None)
    first = str((trainer.get("command") or trainer.get("args") or [""])[0]).rpartition("/")[2]
    if options and (
        key is None or first in ("sh", "bash") or any(not _is_option(each) for each in options)
    ):
        return False
    if key is not None:
        trainer[key].extend(options)
    return True


def _is_option(words: str) -> bool:
    return words.startswith("--") and "=" in words


def _operations(before: Any, after: Any, path: str) -> Iterator[dict[str, Any]]:
    """The operations that change the first document into the second."""
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        for key in before:
            yield from _operations(
                before[key], after[key], f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            )
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for at, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from _operations(old, new, f"{path}/{at}")
        yield from (
            {"op": "add", "path": f"{path}/-", "value": new} for new in after[len(before) :]
        )
    elif before != after:
        yield {"op": "replace", "path": path, "value": copy.deepcopy(after)}


def _why(found: Review) -> str:
    """The reason for a change: the edits and the predicted gain."""
    assert found.together is not None
    changes = ", ".join(
        f"{name} {old} -> {new}"
        for edit in found.edits
        for name, (old, new) in edit.changes.items()
    )
    return f"{changes}: predicted {gain_words(found.together.gain)} in tokens/s"
