"""The service from a program: the same questions as `autotune.cli.source`, over HTTP.

    client = autotune.Client("http://127.0.0.1:8600", token=...)
    study  = client.submit({"model": "gpt2-medium", ...})["study"]
    for event in client.stream(study["id"]): ...
    client.best(study["id"])["best"]["config"]

    async with autotune.AsyncClient(url) as client:     # the same methods, awaited
        await client.status(study["id"])
        async for event in client.stream(study["id"]): ...

    questions.py   what can be asked, and when it is asked again: without input or output     following.py   a study's event stream
    transports.py  Client and AsyncClient: the two that do what those say

Errors of the service arrive as the errors they are (`SpecError`, `NotFoundError`, ...). What can be asked again safely is asked again when the
service cannot be reached or is busy: reads, and submissions, which carry a key that makes the second one the first. The token goes nowhere but into the
Authorization header: redirects are not followed, and it stands in no message.
"""

from autotune.client.transports import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
