"""The thinking budget of a request, limited by the options of the server."""

from __future__ import annotations

from dataclasses import replace

from pymtp.chat import Chat
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest
from pymtp.server.settings import ServerSettings
from pymtp.validation import is_whole, shown


def apply_thinking_budget(request: GenerateRequest, settings: ServerSettings, n_ctx: int) -> GenerateRequest:
    """Return the request with its thinking budget: its own or its effort's, and at most the server's.

    A budget of the server that is larger than the context counts as none. The server's budgets apply to chats only.
    """
    params = request.params
    budget = params.thinking_budget
    if isinstance(request.prompt, Chat):
        effort = (request.prompt.chat_template_kwargs or {}).get("reasoning_effort")
        server_budgets = [
            settings.reasoning_budget,
            settings.effort_budgets.get(str(effort)) if budget is None else None,
        ]
        budget = min(
            (limit for limit in (budget, *server_budgets) if limit is not None and limit <= n_ctx), default=budget
        )
    if budget is None:
        return request
    return replace(
        request, params=replace(params, thinking_budget=budget, thinking_end=settings.reasoning_budget_message)
    )


def parse_effort_budgets(option: str, text: str) -> dict[str, int]:
    """Parse a list such as `low=1024,high=8192` as efforts and their budgets.

    Raises InvalidRequestError for any other text.
    """
    budgets: dict[str, int] = {}
    for pair in text.split(",") if text else ():
        effort, _, budget = (part.strip() for part in pair.partition("="))
        if not effort or not budget.isdecimal() or effort in budgets or not is_whole(int(budget), 0, 2**31 - 1):
            raise InvalidRequestError(
                f"{option} {shown(text)} must be efforts and their budgets in tokens, such as low=1024,high=8192"
            )
        budgets[effort] = int(budget)
    return budgets
