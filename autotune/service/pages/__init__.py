"""The web pages, one module each, rendered from the templates of `dashboards/web`.

    study_list.py   studies with filters          study_page.py   one study, its report and its buttons
    best_page.py    the best across all history   login.py        login and logout
    study_actions.py notes, tags, deleting        study_tools.py  what these need on the study's page
    plan_page.py    a plan of a model and a cluster
    submit_page.py  a new study                   export_page.py  a launch of a trainer
    ranking_page.py another order of the configs
    compare_page.py studies or trials side by side
    trial_page.py   one trial                          trial_table.py  the trials of a study, sorted and filtered
    rendering.py    templates and filters         visits.py       who asks, forms, errors as pages, what an action did
    static_files.py style sheet and script

The only script, `live.js`, keeps the page of a running study current by its event stream; without scripts the page reloads itself every few seconds.
"""

from __future__ import annotations

from fastapi import APIRouter

from autotune.service.pages import (
    best_page,
    compare_page,
    export_page,
    login,
    plan_page,
    ranking_page,
    static_files,
    study_actions,
    study_list,
    study_page,
    submit_page,
    trial_page,
)

router = APIRouter()
for module in (
    static_files,
    study_list,
    submit_page,
    plan_page,
    study_page,
    trial_page,
    study_actions,
    export_page,
    ranking_page,
    compare_page,
    best_page,
    login,
):
    router.include_router(module.router)
