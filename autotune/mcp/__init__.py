"""Tools for agents: a server of the Model Context Protocol over standard input and output (`autotune mcp`).

    server.py            the server: which tools there are, and errors as tool errors with their remedy
    checking_server.py   unknown and wrong arguments of a call, in plain words
    spec_tools.py        what needs no hardware and no study: the catalog, what is valid, what fits, what is predicted, the plan, clusters side by side
    study_tools.py       studies and results of a store or a service; submitting and steering through a service
    tool_answers.py      what the tools return: small frozen values, whose schemas the SDK publishes

Specs come from agents, so they are read as a service reads them: paths and code of models are rejected. Only a service is asked to run anything, and what the
caller may do there is decided by its token. Nothing but protocol messages is written to standard output.
"""

from autotune.mcp.server import make_server, serve_stdio

__all__ = ["make_server", "serve_stdio"]
