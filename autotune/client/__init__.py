"""Client of the service over HTTP, with the same methods as `autotune.cli.source`.

    client = autotune.Client("http://127.0.0.1:8600", token=...)
    study  = client.submit({"model": "gpt2-medium", ...})["study"]
    for event in client.stream(study["id"]): ...
    client.best(study["id"])["best"]["config"]
    client.pause(study["id"]); client.resume(study["id"])            # also stop and cancel
    client.result(study["id"]).plot("budget")                        # the `Result` that `autotune.tune` returns

    async with autotune.AsyncClient(url) as client:     # the same methods as coroutines
        await client.status(study["id"])
        async for event in client.stream(study["id"]): ...

    operations.py    the requests and when they are repeated, without input or output
    event_stream.py  a study's event stream
    transports.py    Client and AsyncClient, which send the requests

An error in the service is raised here with the same class (`SpecError`, `NotFoundError`,
`ConflictError`, ...). `ServiceUnavailableError` means that the service cannot be reached, and
`ServiceError` any other answer. Requests are repeated if the service cannot be reached or is busy.
Repeating is safe, because most requests only read, and a submission has an idempotency key. The
token is sent only in the Authorization header. Redirects are not followed, and no message contains
the token.
"""

from autotune.client.transports import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
