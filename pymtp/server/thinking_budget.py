"""The thinking budget of a request, with the limits of the server's options."""

from __future__ import annotations

from dataclasses import replace

from pymtp.chat import Chat
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest
from pymtp.server.settings import ServerSettings
from pymtp.validation import is_whole, shown


def apply_thinking_budget(request: GenerateRequest, settings: ServerSettings, n_ctx: int) -> GenerateRequest:
    """Return the request with its effective thinking budget, which is at most the server's budget.

    A chat without a thinking budget gets the budget that the server has for its reasoning effort. Server budgets that
    are larger than the context are ignored. Prompts that are not chats keep their own budget.
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
    """Parse a list such as `low=1024,high=8192`, and return the thinking budget of each reasoning effort.

    Raises InvalidRequestError if the list has another form.
    """
    budgets: dict[str, int] = {}
    for pair in text.split(",") if text else ():
        effort, _, budget = (part.strip() for part in pair.partition("="))
        if not effort or not budget.isdecimal() or effort in budgets or not is_whole(int(budget), 0, 2**31 - 1):
            raise InvalidRequestError(
                f"{option} {shown(text)} must list reasoning efforts with budgets in tokens, such as low=1024,high=8192"
            )
        budgets[effort] = int(budget)
    return budgets
