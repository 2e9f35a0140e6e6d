"""A client's request in any API: its fields, its preparation for a model, and its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from pymtp.chat import Chat, OutputFormat, ParsedOutput, Tool, ToolChoice, template_messages
from pymtp.chat.prompt import CacheKey, ChatPrompt
from pymtp.engine.prepare import Prompt, apply_thinking_budget
from pymtp.engine.request import Completion, cache_key
from pymtp.errors import InvalidRequestError
from pymtp.openai.answer_rules import AnswerRule
from pymtp.openai.infill import infill_prompt
from pymtp.openai.loaded import LoadedModel
from pymtp.sampling import SamplingParams
from pymtp.validation import replace_surrogates

OutputFinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class GenerateRequest:
    """A request of a client.

    prompt: a string, token ids, a Chat, or tokens with branch points. Only for a Chat, the output is parsed into
        reasoning, content and tool calls.
    schema: the JSON schema of a chat's content.
    strict_schema: whether a keyword of the schema that no grammar can express is refused; otherwise it is left out.
    schema_field: the name of the body's field that has the schema of the answer.
    answer_rule: another rule for the answer; None for none.
    separate_reasoning: whether reasoning is separated from content.
    continue_final_message: whether the last message of the chat is the assistant's, and the output continues it.
    suffix: the text after the one that the model fills in; "": the model continues the prompt. Not for a Chat.
    stream: whether the client wants each piece of the output as soon as it is generated.
    timeout: limit on the time of the request, in seconds; the server's own limit applies if it is shorter.
    """

    prompt: str | Sequence[int] | Chat | ChatPrompt
    params: SamplingParams
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    schema: Mapping[str, Any] | None = None
    strict_schema: bool = False
    schema_field: str = "schema"
    answer_rule: AnswerRule | None = None
    separate_reasoning: bool = True
    continue_final_message: bool = False
    suffix: str = ""
    stream: bool = False
    timeout: float | None = None


class PreparedRequest(NamedTuple):
    """The prompt and params for an LLM, and the format of the output.

    output_format: None where the prompt is not a Chat.
    """

    prompt: Prompt
    params: SamplingParams
    output_format: OutputFormat | None


class Output(NamedTuple):
    """One finished completion of a request.

    parsed: its reasoning, content and tool calls; None where the prompt is not a Chat.
    """

    completion: Completion
    parsed: ParsedOutput | None
    finish_reason: OutputFinishReason


def prepare_request(llm: LoadedModel, request: GenerateRequest) -> PreparedRequest:
    """Render and tokenize the prompt, and make the grammar of the output. Takes a while for a long prompt.

    Raises InvalidRequestError for a request that the template or the grammar refuses.
    """
    if not isinstance(request.prompt, Chat):
        if request.suffix and not isinstance(request.prompt, ChatPrompt):
            prompt_tokens = infill_prompt(llm, request.prompt, request.suffix, request.params)
            request = replace(request, prompt=prompt_tokens, suffix="")
        params = request.params
        if request.answer_rule is not None:
            params = replace(params, grammar=_rule_grammar(llm, request.answer_rule))
        return PreparedRequest(request.prompt, params, None)
    chat = apply_thinking_budget(request.prompt, request.params)
    key = cache_key(request.params)
    prompt = (
        _continuation_prompt(llm, chat, key) if request.continue_final_message else llm.chat_prompts.prompt(chat, key)
    )
    output_format = OutputFormat(
        llm.template_source,
        prompt.end,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        schema=request.schema,
        strict_schema=request.strict_schema,
        separate_reasoning=request.separate_reasoning,
        cache_key=key,
    )
    if not request.separate_reasoning:
        prompt = prompt._replace(end="")  # with an empty end, stop strings match in the reasoning, too
    if request.answer_rule is not None:
        gbnf = _rule_grammar(llm, request.answer_rule)
        return PreparedRequest(prompt, _after_thinking(llm, request.params, gbnf), output_format)
    if output_format.gbnf is None:
        return PreparedRequest(prompt, request.params, output_format)
    if request.params.gbnf is not None:
        raise InvalidRequestError("a grammar cannot be combined with tools or a response_format")
    params = replace(request.params, grammar=output_format.gbnf, distinct_calls=output_format.needs_distinct_calls)
    return PreparedRequest(prompt, params, output_format)


def left_out_keywords(request: GenerateRequest, output_format: OutputFormat | None) -> list[str]:
    """Return the places of the keywords in a request's schemas that no grammar can express, by fields of the body."""
    names = request.params.left_out if output_format is None else output_format.left_out
    return [f"{request.schema_field}{name}" if name.startswith("#") else name for name in names]


def _rule_grammar(llm: LoadedModel, rule: AnswerRule) -> str:
    """Return the grammar of a rule. Raises InvalidRequestError, which names the rule's field, for an invalid one."""
    gbnf = rule.gbnf
    try:
        llm.model.grammar(gbnf)
    except InvalidRequestError as error:
        words = "must be GBNF, with a rule root" if rule.kind == "grammar" else "has a grammar that is refused"
        raise InvalidRequestError(f"{rule.field} {words}: {error}", rule.field) from error
    return gbnf


def _after_thinking(llm: LoadedModel, params: SamplingParams, gbnf: str) -> SamplingParams:
    """Return params with a grammar that begins after the thinking, if the prompt has opened the thinking.

    The grammar waits for the end of the thinking only where there is a budget: here one that the context cannot exceed.
    """
    budget = llm.context.n_ctx if params.thinking_budget is None else params.thinking_budget
    return replace(params, grammar=gbnf, thinking_budget=budget)


def _continuation_prompt(llm: LoadedModel, chat: Chat, key: CacheKey | None) -> ChatPrompt:
    """Return the prompt of a chat whose last message is the beginning of the answer."""
    messages = template_messages(chat.messages, llm.chat_prompts.collect_images())
    if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        raise InvalidRequestError("continue_final_message: the last message must be text of the assistant")
    last = messages[-1]
    question = [{"role": "user", "content": ""}]  # templates need a user message: see `message_rewrites`
    prompt = llm.chat_prompts.prompt(replace(chat, messages=chat.messages[:-1] or question), key)
    begun: str = last["content"]
    if prompt.end.rstrip().endswith("<think>"):
        begun = f"{last.get('reasoning_content') or ''}\n</think>\n\n{begun}"
    begun = replace_surrogates(begun)  # ChatTemplate.render does this for the other messages
    llm.model.check_fits(begun, llm.context.n_ctx)
    tokens = [*prompt.tokens, *llm.model.tokenize(begun, add_special=False)] if begun else prompt.tokens
    return prompt._replace(tokens=tokens, end=prompt.end + begun)


def output_finish_reason(completion_reason: OutputFinishReason, parsed: ParsedOutput | None) -> OutputFinishReason:
    """Return the finish reason for the client: "tool_calls" for calls that ended with "stop", else the completion's."""
    called = parsed is not None and completion_reason == "stop" and parsed.tool_calls
    return "tool_calls" if called else completion_reason


def parse_outputs(output_format: OutputFormat | None, completion: Completion) -> list[Output]:
    """Parse all completions of a prompt."""
    outputs = []
    for one in (completion, *completion.others):
        parsed = None if output_format is None else output_format.parse(one.text)
        outputs.append(Output(one, parsed, output_finish_reason(one.finish_reason, parsed)))
    return outputs
