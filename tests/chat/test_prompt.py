"""Tests of the prompts of chats: their tokens, and the branch points where later prompts differ from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from helpers.chats import assistant, shared_tokens, user
from hypothesis import given, settings
from makers import chat_templates
from makers.gguf_variants import rewrite

from pymtp import InvalidRequestError
from pymtp.chat import Chat, ChatTemplate, Message
from pymtp.chat.prompt import ChatPrompts
from pymtp.model.model import Model

SYSTEM = {"role": "system", "content": "You write functions that are short and have no side effects."}
TEMPLATES = ("DROPS_THINKING", "KEEPS_THINKING", "OPENS_NOTHING", "PLAIN")
ANSWERS = ("An answer.", " with a blank", "\nwith a line", "1 digit", "")


class Prompts(ChatPrompts):
    """ChatPrompts that can also tokenize a prompt without their cache."""

    def __init__(self, model: Model) -> None:
        self.template = ChatTemplate(model)
        super().__init__(model, self.template)

    def tokens(self, chat: Chat) -> list[int]:
        return self._model.tokenize(self.template.render(chat.messages, tools=chat.tools))


MakePrompts = Callable[[str], Prompts]


@pytest.fixture(scope="module")
def make_prompts(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> MakePrompts:
    """Make prompts of the shipped model with one of the templates of makers/chat_templates.py.

    "+bos" behind its name stands for a tokenizer that adds a token.
    """
    made: dict[str, Model] = {}

    def make(name: str) -> Prompts:
        if name not in made:
            path = tmp_path_factory.mktemp("models") / f"{name}.gguf"
            template, _, more = name.partition("+")
            changes = {"tokenizer.chat_template": getattr(chat_templates, template)}
            rewrite(demo, path, metadata=changes | ({"tokenizer.ggml.add_bos_token": True} if more else {}))
            made[name] = Model(path, vocab_only=True)
        return Prompts(made[name])

    return make


def tokens_past_branch_point(
    prompts: Prompts, messages: Sequence[Message], later: Sequence[Message], **options: Any
) -> int:
    """Count the tokens from the last usable branch point to where a later prompt differs."""
    tokens, branch_points, *_ = prompts.prompt(Chat(messages, **options))
    shared = shared_tokens(tokens, prompts.prompt(Chat(later, **options)).tokens)
    return shared - max((point for point in branch_points if point <= shared), default=0)


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("name", [*TEMPLATES, "DROPS_THINKING+bos"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_next_turn_branches_off_at_a_branch_point(
    make_prompts: MakePrompts, name: str, answer: str, thinks: bool
) -> None:
    prompts, options = make_prompts(name), {"chat_template_kwargs": {"enable_thinking": thinks}}
    reasoning = "One could sort it first." if thinks else ""
    messages: list[Message] = [SYSTEM, user("Write a function first.")]
    for said in ("Now a function last.", " And the length?", "2 of them."):
        later = [*messages, assistant(answer, reasoning), user(said)]
        assert tokens_past_branch_point(prompts, messages, later, **options) <= 2
        messages = later


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("said", ["Another one.", "a", "Write nothing.", " blank", "\nline"])
def test_edited_last_user_message_branches_off_at_a_branch_point(
    make_prompts: MakePrompts, name: str, said: str
) -> None:
    messages = [SYSTEM, user("Hello."), assistant("Hello!"), user("a function first")]
    assert (
        tokens_past_branch_point(make_prompts(name), messages, [*messages[:-1], user(said)]) <= 3
    )  # 3, because both messages may begin with a space


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_with_the_same_system_message_branches_off_at_a_branch_point(make_prompts: MakePrompts, name: str) -> None:
    messages = [SYSTEM, user("Hello."), assistant("Hello!"), user("Write a function first.")]
    assert tokens_past_branch_point(make_prompts(name), messages, [SYSTEM, user("Something else.")]) <= 2


def test_tool_results_and_the_next_question_branch_off_at_branch_points(make_prompts: MakePrompts) -> None:
    prompts = make_prompts("DROPS_THINKING")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    called = [SYSTEM, user("What is there?"), assistant("look()"), {"role": "tool", "content": "A file."}]
    again = [*called, assistant("look()"), {"role": "tool", "content": "Another."}]
    assert tokens_past_branch_point(prompts, called, again, tools=tools) <= 2
    assert tokens_past_branch_point(prompts, again, [*again, assistant("Two."), user("Thanks.")], tools=tools) <= 2
    assert tokens_past_branch_point(prompts, again, [SYSTEM, user("Hello.")], tools=tools) <= 2


def test_turns_that_the_template_refuses_have_no_branch_points(make_prompts: MakePrompts) -> None:
    prompts = make_prompts("REFUSES_MORE")
    chat = Chat([SYSTEM, user("Hello.")])
    tokens, branch_points, *_ = prompts.prompt(chat)
    assert tokens == prompts.tokens(chat)
    assert len(branch_points) == 1  # the one for an edited last message
    with pytest.raises(InvalidRequestError, match="two messages"):
        prompts.prompt(Chat([user("Hello.")]))


def test_branch_points_rise_within_the_prompt(make_prompts: MakePrompts) -> None:
    for name in TEMPLATES:
        tokens, branch_points, *_ = make_prompts(name).prompt(
            Chat([SYSTEM, user("Hello."), assistant("Hi."), user("a")])
        )
        assert list(branch_points) == sorted(set(branch_points))
        assert 0 < branch_points[0] < branch_points[-1] <= len(tokens)


PIECES = st.sampled_from(
    [
        "a",
        "An",
        " ",
        "\n",
        "\n\n",
        "é",
        "日本",
        "<think>",
        "<|im_end|>",
        "<|im_start|>",
        "1",
        ".",
        "\r",
        "e\u0301",
        "\u0338",
    ]
)
CONTENTS = st.lists(PIECES, max_size=8).map("".join)
CHATS = st.lists(
    st.builds(
        lambda first, more: [user(first), *(each for a, b in more for each in (assistant(a), user(b)))],
        CONTENTS,
        st.lists(st.tuples(CONTENTS, CONTENTS), max_size=4),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=20)
@given(name=st.sampled_from([*TEMPLATES, "DATED", "DROPS_THINKING+bos"]), chats=CHATS, more=CONTENTS)
def test_tokens_of_a_prompt_do_not_depend_on_the_cache(
    make_prompts: MakePrompts, name: str, chats: list[list[Message]], more: str
) -> None:
    prompts = make_prompts(name)
    prompts.template._template.environment.globals["strftime_now"] = lambda fmt: (
        fmt
    )  # a constant date, because two prompts with different times would not be equal
    for messages in chats:
        for chat in (Chat(messages), Chat([*messages, assistant(more), user("a")])):
            tokens, branch_points, *_ = prompts.prompt(chat)
            assert tokens == prompts.tokens(chat)
            assert all(0 < point <= len(tokens) for point in branch_points)


@pytest.mark.parametrize("words", ["lorem ipsum ", "lore\u0301m ipsum "])
def test_next_turn_is_tokenized_only_from_where_it_differs(
    make_prompts: MakePrompts, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    prompts = make_prompts("DROPS_THINKING")
    tokenized = []
    tokenize = Model.tokenize

    def counting(model: Model, text: str, **keywords: Any) -> list[int]:
        tokenized.append(len(text))
        return tokenize(model, text, **keywords)

    monkeypatch.setattr(Model, "tokenize", counting)
    messages = [SYSTEM, user("Look at this: " + words * 500)]
    prompts.prompt(Chat(messages))
    assert sum(tokenized) > 6000
    tokenized.clear()
    prompts.prompt(Chat([*messages, assistant("An answer."), user("Another question.")]))
    assert sum(tokenized) < 400


def test_surrogates_are_replaced_in_the_prompt(make_prompts: MakePrompts) -> None:
    prompts = make_prompts("DROPS_THINKING")
    assert prompts.prompt(Chat([user("ls \ud83d...")])) == prompts.prompt(Chat([user("ls \ufffd...")]))
