"""The web pages, rendered from the templates of `dashboards/web`.

    across_studies.py  the list of studies, the best configs of all history, studies or trials side by side
    study_page.py      one study, its report, its buttons, its configs in another order
    study_actions.py   notes, tags, deleting          login.py         login and logout
    plan_page.py       a plan of a model and a cluster
    submit_page.py     a new study                    export_page.py   a launch of a trainer
    trial_page.py      one trial                      trial_table.py   the trials of a study, sorted and filtered
    rendering.py       templates and filters          page_requests.py callers, forms, messages after actions
    static_files.py    style sheets and scripts

`live.js` updates the page of a running study from its event stream; without scripts, the page
reloads every few seconds.
"""

from __future__ import annotations

from fastapi import APIRouter

from autotune.service.pages import (
    across_studies,
    export_page,
    login,
    plan_page,
    static_files,
    study_actions,
    study_page,
    submit_page,
    trial_page,
)

router = APIRouter()
for module in (
    static_files,
    across_studies,
    submit_page,
    plan_page,
    study_page,
    trial_page,
    study_actions,
    export_page,
    login,
):
    router.include_router(module.router)
