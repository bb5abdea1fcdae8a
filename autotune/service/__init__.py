"""The service: submit tuning jobs and ask for best configurations over HTTP. Studies run in
processes of their own.

    server.py            serve(options): socket, application, supervisor, graceful shutdown
    options.py           the options of `autotune serve`
    study_views.py       results and figures of studies, kept until the study changes; what event streams look at

    http/                app.py               create_app(store, options): routes, middleware, error handlers, OpenAPI
                         service_state.py     what all routes share
                         fair_use.py          CPU-heavy requests by turns among callers, rate limits, places for event streams
                         response_cache.py    responses kept until the study's revision changes
                         error_responses.py   errors as responses of one shape
                         access.py            tokens, scopes, owners, protection against cross-site requests
                         middleware.py        Host allow-list, limits on request bodies, security headers
                         refusals.py          refused requests, written to the audit log
                         specs.py             specs of requests: read strictly, restricted to the options, folders and programs that this service allows
    routes/              the routes under /api/v1; response_models.py has the shapes of the responses, for OpenAPI
    pages/               the web pages (templates in dashboards/web)
    supervise/           presence.py          which stores the services of this machine run
                         supervisor.py        keeps every study that should run running
                         launcher.py          starts studies as child processes of
                         study_fork_server.py   a process that has imported everything and forks one child per study, which runs
                         worker.py              one study
                         ray_jobs.py          starts studies as Ray jobs instead
                         ray_retry.py         opens Ray in the background, and again when it fails or dies
                         ray_cluster.py       a Ray cluster that lives as long as the service, run by
                           ray_head.py          a process of its own
    metrics/             scrape_targets.py    the files from which Prometheus knows what to scrape
                         study_metrics.py     metrics of a running study, through Ray; the service's own

The store is the only state. Any process of the service may be killed at any time; when the service
starts again, its studies continue.
"""
