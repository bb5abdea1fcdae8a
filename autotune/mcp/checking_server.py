"""An MCP server that rejects unknown arguments, which the SDK would silently drop, and describes
wrong values in plain words."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from autotune.spec.checks import nearest
from autotune.spec.texts.validation import violated_rule


class CheckingServer(MCPServer[Any]):  # type: ignore[misc]  # mypy does not follow the package
    """An MCP server that checks the arguments of each call."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool. Raises `ToolError` for arguments that the tool does not have, and for wrong values."""
        tools = {
            tool.name: tool.input_schema.get("properties", {}) for tool in await self.list_tools()
        }
        parameters = tools.get(name, arguments)
        for given in arguments:
            if given not in parameters:
                remedy = (
                    nearest(given, parameters) or f"arguments: {', '.join(parameters) or 'none'}"
                )
                raise ToolError(f"{name} has no argument {given!r:.80}; {remedy}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(
                    "; ".join(map(_problem_text, error.__cause__.errors()))
                ) from error.__cause__
            raise


def _problem_text(problem: Any) -> str:
    """Describe a wrong argument: its name, the rule and the value."""
    text = f"{'.'.join(map(str, problem['loc']))} {violated_rule(problem)}"
    return text if problem["type"] == "missing" else f"{text}, but is {problem['input']!r:.80}"
