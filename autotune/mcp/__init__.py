"""Tools for agents: a server of the Model Context Protocol over standard input and output (`autotune mcp`).

    server.py            creates the server with its tools, and converts errors to tool errors with their remedy
    checking_server.py   rejects unknown and wrong arguments of a call, in plain words
    spec_tools.py        tools that need no hardware and no study: catalog, valid configs, predictions, plans, reviews, cluster comparison
    study_tools.py       tools for studies and results of a store or a service; submits and controls studies through a service
    tool_answers.py      results of the tools: small frozen values, whose schemas the SDK publishes

Specs come from agents, so they are read as the service reads them: paths and code of models are rejected. Only a service runs trials, and the caller's token
decides what is allowed there. Only protocol messages are written to standard output.
"""

from autotune.mcp.server import make_server, serve_stdio

__all__ = ["make_server", "serve_stdio"]
