"""How much a request may think: what it asks for, within what the server was started with."""

from __future__ import annotations

from dataclasses import replace

from pymtp.chat import Chat
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import Ask
from pymtp.server.settings import Settings
from pymtp.validation import is_whole, shown


def within_budget(ask: Ask, settings: Settings, n_ctx: int) -> Ask:
    """The request with its budget of thinking: its own, or that of its effort, and never more than the server's.

    A server's budget beyond the context is as none. Texts that are no chats have their own budget alone.
    """
    params = ask.params
    budget = params.thinking_budget
    if isinstance(ask.prompt, Chat):
        effort = (ask.prompt.chat_template_kwargs or {}).get("reasoning_effort")
        of_server = [settings.reasoning_budget, settings.effort_budgets.get(str(effort)) if budget is None else None]
        budget = min((each for each in (budget, *of_server) if each is not None and each <= n_ctx), default=budget)
    if budget is None:
        return ask
    return replace(ask, params=replace(params, thinking_budget=budget, thinking_end=settings.reasoning_budget_message))


def read_effort_budgets(option: str, text: str) -> dict[str, int]:
    """`low=1024,high=8192`, as efforts and their budgets. Raises InvalidRequestError for what is no such list."""
    found: dict[str, int] = {}
    for pair in text.split(",") if text else ():
        effort, _, budget = (part.strip() for part in pair.partition("="))
        if not effort or not budget.isdecimal() or effort in found or not is_whole(int(budget), 0, 2**31 - 1):
            raise InvalidRequestError(
                f"{option} {shown(text)} must be efforts and their budgets in tokens, such as low=1024,high=8192"
            )
        found[effort] = int(budget)
    return found
