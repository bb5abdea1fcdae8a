"""The service: submit tuning jobs and query the best configs over HTTP. Each study runs in its own
process.

    server.py            serve(options): socket, application, supervisor, graceful shutdown
    options.py           the options of `autotune serve`
    study_views.py       results and figures of studies, cached until the study changes; revisions for event streams
    http/                app.py               create_app(store, options): routes, middleware, error handlers, OpenAPI
                         service_state.py     state that all routes share
                         fair_use.py          queue of CPU-heavy requests, rate limits, slots for event streams
                         response_cache.py    responses cached until the study's revision changes
                         error_responses.py   errors as responses of one shape
                         access.py            tokens, scopes, owners, protection against cross-site requests
                         middleware.py        Host allow-list, limits on request bodies, security headers
                         refusals.py          rejected requests in the audit log
                         specs.py             submitted specs: strict reading, restriction to allowed options, folders and programs
    routes/              the routes under /api/v1; response_models.py has the shapes of the responses, for OpenAPI
    pages/               the web pages (templates in dashboards/web)
    supervise/           presence.py          the stores that services of this machine serve
                         supervisor.py        starts the process of each study that should run, and restarts it
                         launcher.py          starts studies as children of
                         study_fork_server.py   a process that has imported everything and forks one child per study, which runs
                         worker.py              one study
                         ray_jobs.py          starts studies as Ray jobs instead
                         ray_retry.py         opens Ray in the background, and again if it fails or dies
                         ray_cluster.py       a Ray cluster that runs as long as the service, in
                           ray_head.py          its own process
    metrics/             scrape_targets.py    files with Prometheus' scrape targets
                         study_metrics.py     metrics of a running study, exported through Ray, and of the service

The store is the only state. Any process of the service may be killed at any time; when the service
starts again, its studies continue.
"""
