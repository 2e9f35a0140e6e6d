"""Claims about the prompts of chats: their tokens, and the marks where prompts to come part from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from helpers.chats import answered, parting, user
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
    """With the text that is tokenized, and a template of its own."""

    def __init__(self, model: Model) -> None:
        self.template = ChatTemplate(model)
        super().__init__(model, self.template)

    def tokens(self, chat: Chat) -> list[int]:
        return self._model.tokenize(self.template.render(chat.messages, tools=chat.tools))


MakePrompts = Callable[[str], Prompts]


@pytest.fixture(scope="module")
def make_prompts(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> MakePrompts:
    """Prompts of the shipped model with one of the templates of makers/chat_templates.py; "+bos" after its name: a
    tokenizer that adds a token."""
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


def short_of(prompts: Prompts, messages: Sequence[Message], later: Sequence[Message], **options: Any) -> int:
    """Tokens from the last mark that a later prompt may go on from to where it parts."""
    tokens, marks, _ = prompts.prompt(Chat(messages, **options))
    place = parting(tokens, prompts.prompt(Chat(later, **options)).tokens)
    return place - max((mark for mark in marks if mark <= place), default=0)


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("name", [*TEMPLATES, "DROPS_THINKING+bos"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_next_turn_parts_at_a_mark(make_prompts: MakePrompts, name: str, answer: str, thinks: bool) -> None:
    prompts, options = make_prompts(name), {"chat_template_kwargs": {"enable_thinking": thinks}}
    thought = "One could sort it first." if thinks else ""
    messages: list[Message] = [SYSTEM, user("Write a function first.")]
    for said in ("Now a function last.", " And the length?", "2 of them."):
        later = [*messages, answered(answer, thought), user(said)]
        assert short_of(prompts, messages, later, **options) <= 2
        messages = later


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("said", ["Another one.", "a", "Write nothing.", " blank", "\nline"])
def test_another_last_user_message_parts_at_a_mark(make_prompts: MakePrompts, name: str, said: str) -> None:
    messages = [SYSTEM, user("Hello."), answered("Hello!"), user("a function first")]
    assert short_of(make_prompts(name), messages, [*messages[:-1], user(said)]) <= 3  # both may begin with a blank


@pytest.mark.parametrize("name", TEMPLATES)
def test_another_chat_with_the_system_message_parts_at_a_mark(make_prompts: MakePrompts, name: str) -> None:
    messages = [SYSTEM, user("Hello."), answered("Hello!"), user("Write a function first.")]
    assert short_of(make_prompts(name), messages, [SYSTEM, user("Something else.")]) <= 2


def test_results_of_tools_and_the_next_question_part_at_marks(make_prompts: MakePrompts) -> None:
    prompts = make_prompts("DROPS_THINKING")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    called = [SYSTEM, user("What is there?"), answered("look()"), {"role": "tool", "content": "A file."}]
    again = [*called, answered("look()"), {"role": "tool", "content": "Another."}]
    assert short_of(prompts, called, again, tools=tools) <= 2
    assert short_of(prompts, again, [*again, answered("Two."), user("Thanks.")], tools=tools) <= 2
    assert short_of(prompts, again, [SYSTEM, user("Hello.")], tools=tools) <= 2


def test_turns_that_a_template_refuses_have_no_marks(make_prompts: MakePrompts) -> None:
    prompts = make_prompts("REFUSES_MORE")
    chat = Chat([SYSTEM, user("Hello.")])
    tokens, marks, _ = prompts.prompt(chat)
    assert tokens == prompts.tokens(chat)
    assert len(marks) == 1  # of another last message
    with pytest.raises(InvalidRequestError, match="two messages"):
        prompts.prompt(Chat([user("Hello.")]))


def test_marks_rise_within_the_prompt(make_prompts: MakePrompts) -> None:
    for name in TEMPLATES:
        tokens, marks, _ = make_prompts(name).prompt(Chat([SYSTEM, user("Hello."), answered("Hi."), user("a")]))
        assert list(marks) == sorted(set(marks))
        assert 0 < marks[0] < marks[-1] <= len(tokens)


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
        lambda first, more: [user(first), *(each for a, b in more for each in (answered(a), user(b)))],
        CONTENTS,
        st.lists(st.tuples(CONTENTS, CONTENTS), max_size=4),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100)
@given(name=st.sampled_from([*TEMPLATES, "DATED", "DROPS_THINKING+bos"]), chats=CHATS, more=CONTENTS)
def test_tokens_are_those_of_the_text_whatever_prompts_came_before(
    make_prompts: MakePrompts, name: str, chats: list[list[Message]], more: str
) -> None:
    prompts = make_prompts(name)
    prompts.template._template.environment.globals["strftime_now"] = lambda fmt: fmt  # else no two texts are the same
    for messages in chats:
        for chat in (Chat(messages), Chat([*messages, answered(more), user("a")])):
            tokens, marks, _ = prompts.prompt(chat)
            assert tokens == prompts.tokens(chat)
            assert all(0 < mark <= len(tokens) for mark in marks)


@pytest.mark.parametrize("words", ["lorem ipsum ", "lore\u0301m ipsum "])
def test_the_next_turn_is_tokenized_from_where_it_differs(
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
    prompts.prompt(Chat([*messages, answered("An answer."), user("Another question.")]))
    assert sum(tokenized) < 400


def test_half_a_character_is_replaced(make_prompts: MakePrompts) -> None:
    prompts = make_prompts("DROPS_THINKING")
    assert prompts.prompt(Chat([user("ls \ud83d...")])) == prompts.prompt(Chat([user("ls \ufffd...")]))
