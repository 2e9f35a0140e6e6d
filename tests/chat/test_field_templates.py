"""Claims about chat templates of the field: their prompts are transformers', and what they refuse is said otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.templates import QWEN, render, render_chat, template, templates
from makers.chat_templates import DROPS_THINKING
from makers.conversations import CONVERSATIONS

from pymtp import LLM, InvalidRequestError
from pymtp.chat import ChatTemplate
from pymtp.model.model import Model

GOLDEN = json.loads((Path(__file__).parent.parent / "reference" / "prompts.json").read_text(encoding="utf-8"))
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
ANSWER, LATE = {"role": "assistant", "content": "Hello."}, {"role": "system", "content": "Only JSON."}
TAKES_ALL = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
# As Qwen3.8's: some efforts, and an exception for others.
NAMES_EFFORTS = (
    "{%- set effort = reasoning_effort | default('xhigh') %}"
    "{%- if effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('no effort ' ~ effort) }}{% endif %}"
    "[{{ effort }}{{ '' if enable_thinking | default(true) else ' off' }}]"
)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(vocab_only=True) as model:
        yield model


@pytest.fixture(scope="module")
def made(model: Model) -> Callable[..., str]:
    """Renders messages by a template's text."""

    def make(source: str, *messages: Any, variables: Any = None, tools: Any = None) -> str:
        return ChatTemplate(model, source).render(messages, tools=tools, chat_template_kwargs=variables)

    return make


def text(lines: list[int] | None) -> str | None:
    """A text of the golden file."""
    return None if lines is None else "\n".join(GOLDEN["lines"][line] for line in lines)


@pytest.mark.parametrize("about", CONVERSATIONS)
@pytest.mark.parametrize("name", QWEN)
def test_prompts_are_transformers(model: Model, name: str, about: str) -> None:
    entry, conversation = GOLDEN["prompts"][name][about], CONVERSATIONS[about]
    rendered = render(model, template(name), conversation)
    assert rendered == text(entry.get("render", entry.get("transformers")))
    chat = text(entry["chat"]) if "chat" in entry else rendered
    assert render_chat(model, template(name), conversation) == chat


def test_prompts_differ_from_transformers_only_where_it_refuses_instructions_or_no_question() -> None:
    assert all(each.keys() == CONVERSATIONS.keys() for each in GOLDEN["prompts"].values())
    entries = [(about, entry) for each in GOLDEN["prompts"].values() for about, entry in each.items()]
    ours = {about for about, entry in entries if "render" in entry}
    assert ours == {
        *("two systems first", "system in the middle", "system last", "developer in the middle"),
        *("no user", "only a system"),
    }
    assert not [about for about, entry in entries if "render" in entry and "transformers" in entry]
    # messages of OpenAI's form are read first, so that no chat is refused
    assert all(
        text(entry["chat"]) if "chat" in entry else "refused" not in entry or "render" in entry for _, entry in entries
    )


def test_templates_that_llama_cpp_carries_make_a_prompt_or_refuse(model: Model) -> None:
    refused = []
    for name, source in templates().items():
        try:
            assert ChatTemplate(model, source).render([USER])
        except InvalidRequestError:
            refused.append(name)
    assert len(templates()) > 60
    assert len(refused) <= 4  # these want tools


def test_tojson_takes_transformers_keywords(made: Callable[..., str]) -> None:
    value = {"b": ["é<", 1], "a": None}
    for keywords in ({}, {"ensure_ascii": True}, {"indent": 2}, {"separators": [",", ":"]}, {"sort_keys": True}):
        written = ", ".join(f"{name}={json.dumps(each)}" for name, each in keywords.items())
        source = "{{ x | tojson(" + written.replace("true", "True") + ") }}"
        assert made(source, USER, variables={"x": value}) == json.dumps(value, **{"ensure_ascii": False, **keywords})


def test_a_generation_block_is_its_text_and_keeps_what_is_set_within(made: Callable[..., str]) -> None:
    source = "{% set a = 1 %}a{% generation %}{% set a = 2 %}b{{ a }}{%- endgeneration %}c{{ a }}"
    assert made(source, USER) == "ab2c1"


@pytest.mark.parametrize("messages", [[USER, LATE], [SYSTEM, USER, ANSWER, LATE, USER], [LATE, SYSTEM, USER]], ids=str)
def test_instructions_stay_as_they_are_where_the_template_takes_them(made: Callable[..., str], messages: Any) -> None:
    assert made(TAKES_ALL, *messages) == "".join(f"<{each['role']}>{each['content']}" for each in messages)


@pytest.mark.parametrize(
    "refusal",
    [
        "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}" + TAKES_ALL,
        "{% for message in messages %}{% if loop.first or message.role != 'system' %}"
        "<{{ message.role }}>{{ message.content }}{% endif %}{% endfor %}",
    ],
    ids=["refused", "passed over"],
)
def test_later_instructions_are_the_users_where_the_template_takes_none(made: Callable[..., str], refusal: str) -> None:
    assert made(refusal, SYSTEM, USER, LATE, ANSWER, LATE) == (
        "<system>Be brief.<user>Hi<user>Only JSON.<assistant>Hello.<user>Only JSON."
    )


def test_instructions_that_a_template_passes_over_are_found_by_each_chat(model: Model) -> None:
    template = ChatTemplate(model, DROPS_THINKING)
    for _ in range(2):
        assert "<|im_start|>user\nOnly JSON.<|im_end|>" in template.render([USER, ANSWER, LATE])


def test_an_effort_stays_where_instructions_are_passed_over_and_taken_in_no_other_way(made: Callable[..., str]) -> None:
    source = (
        "{% set others = messages | rejectattr('role', 'equalto', 'system') | list %}"
        "{% for message in others %}{% if message.role != ('user', 'assistant')[loop.index0 % 2] %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ message.content }}{% endfor %}"
        "{{ reasoning_effort }}"
    )
    assert made(source, USER, LATE, ANSWER, variables={"reasoning_effort": "high"}) == "HiHello.high"


@pytest.mark.parametrize(
    "messages",
    [[SYSTEM], [SYSTEM, ANSWER], [ANSWER], [SYSTEM, ANSWER, {"role": "tool", "content": "1"}]],
    ids=lambda messages: ", ".join(message["role"] for message in messages),
)
def test_a_chat_without_a_question_gets_an_empty_one_before_other_messages(model: Model, messages: Any) -> None:
    rendered = ChatTemplate(model, template("Qwen3.5-4B")).render(messages)
    asked = [{"role": "user", "content": ""}]
    n = sum(message["role"] == "system" for message in messages)
    assert rendered == ChatTemplate(model, template("Qwen3.5-4B")).render([*messages[:n], *asked, *messages[n:]])


def test_a_chat_without_a_question_stays_as_it_is_where_the_template_takes_it(made: Callable[..., str]) -> None:
    assert made(TAKES_ALL, SYSTEM, ANSWER) == "<system>Be brief.<assistant>Hello."


def test_a_question_with_results_of_tools_alone_is_none(model: Model) -> None:
    result = {"role": "user", "content": "<tool_response>\n1\n</tool_response>"}
    rendered = ChatTemplate(model, template("Qwen3.5-4B")).render([SYSTEM, ANSWER, result])
    assert "<|im_start|>user\n<|im_end|>" in rendered


def test_a_template_s_own_refusal_is_told(made: Callable[..., str]) -> None:
    with pytest.raises(InvalidRequestError, match="not today"):
        made("{{ raise_exception('not today') }}", SYSTEM, LATE, variables={"reasoning_effort": "high"})


@pytest.mark.parametrize(
    ("given", "whole"),
    [("ls \ud83d...", "ls \ufffd..."), ("\ude00", "\ufffd"), ("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "\U0001f600")],
    ids=ascii,
)
def test_half_a_character_becomes_one_that_says_so(made: Callable[..., str], given: str, whole: str) -> None:
    said = [{"role": "user", "content": given}]
    source = "{{ messages[0].content }} {{ tools | tojson }} {{ x }}"
    rendered = made(source, *said, tools=[{"name": given}], variables={"x": given})
    assert rendered == f'{whole} [{{"name": "{whole}"}}] {whole}'


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        *((effort, effort) for effort in ("low", "medium", "xhigh")),
        *(("minimal", "low"), ("high", "xhigh"), ("max", "xhigh"), ("none", "xhigh off")),
    ],
)
def test_an_effort_that_the_template_does_not_name_is_the_nearest(model: Model, asked: str, taken: str) -> None:
    template = ChatTemplate(model, NAMES_EFFORTS)
    for _ in range(2):
        assert template.render([USER], chat_template_kwargs={"reasoning_effort": asked}) == f"[{taken}]"


@pytest.mark.parametrize(
    ("named", "asked", "taken"),
    [
        (["high", "max"], "low", "high"),
        (["high", "max"], "minimal", "high"),
        (["high", "max"], "xhigh", "max"),
        (["none", "low"], "max", "low"),
        (["none", "low"], "none", "none"),
        (["none", "high"], "minimal", "high"),
        (["low", "high"], "medium", "high"),
        (["low"], "none", "low"),
    ],
)
def test_of_two_efforts_as_near_the_higher_is_taken_and_none_is_the_last(
    made: Callable[..., str], named: list[str], asked: str, taken: str
) -> None:
    source = f"{{% if reasoning_effort not in {named} %}}{{{{ raise_exception('no') }}}}{{% endif %}}"
    source += "{{ reasoning_effort }}"
    assert made(source, USER, variables={"reasoning_effort": asked}) == taken


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("high", True)])
def test_an_effort_that_is_asked_for_goes_before_whether_the_llm_thinks(
    new_llm: Callable[..., LLM], effort: str, thinks: bool
) -> None:
    source = "{{ enable_thinking | default(true) }}"
    template = new_llm(chat_template=source, chat_template_kwargs={"enable_thinking": not thinks}).chat_template
    assert template.render([USER]) == str(not thinks)
    assert template.render([USER], chat_template_kwargs={"reasoning_effort": effort}) == str(thinks)
    both = {"reasoning_effort": effort, "enable_thinking": not thinks}
    assert template.render([USER], chat_template_kwargs=both) == str(not thinks)


def test_a_template_that_takes_all_efforts_gets_the_one_asked_for(made: Callable[..., str]) -> None:
    assert made("{{ reasoning_effort }}", USER, variables={"reasoning_effort": "max"}) == "max"


@pytest.mark.parametrize("effort", ["banana", "", "High", 3, ["low"], True], ids=str)
@pytest.mark.parametrize("source", [NAMES_EFFORTS, "{{ reasoning_effort }}", "no effort here"])
def test_a_word_that_is_no_effort_is_refused_with_those_that_are(
    made: Callable[..., str], source: str, effort: Any
) -> None:
    with pytest.raises(
        InvalidRequestError, match="must be one of none, minimal, low, medium, high, xhigh, max"
    ) as refused:
        made(source, USER, variables={"reasoning_effort": effort})
    assert refused.value.param == "reasoning_effort"


@pytest.mark.parametrize("otherwise", ["{{ raise_exception('no') }}", "plain"])
def test_a_word_that_the_template_itself_knows_is_taken(made: Callable[..., str], otherwise: str) -> None:
    source = "{% if reasoning_effort == 'deep' %}deep{% else %}" + otherwise + "{% endif %}"
    assert made(source, USER, variables={"reasoning_effort": "deep"}) == "deep"


def test_a_template_is_a_text_or_a_path(new_llm: Callable[..., LLM], tmp_path: Path) -> None:
    file = tmp_path / "it.jinja"
    file.write_text("{{ messages[0].content }}é", encoding="utf-8")
    marked = tmp_path / "marked.jinja"
    marked.write_text("{{ messages[0].content }}é", encoding="utf-8-sig")  # as editors of Windows write it
    for given in (file, str(file), marked, "{{ messages[0].content }}é"):
        llm = new_llm(chat_template=given)
        assert llm.chat_template.render([USER]) == "Hié"
        assert llm.model.detokenize(llm.chat([USER]).prompt_token_ids) == "Hié"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("{% if %}", "broken chat template, line 1"),
        ("{{ 1 }}\n{% for %}", "broken chat template, line 2"),
        ("{{ x | nothing }}", "No filter named 'nothing'"),
        ("{% generation %}", "broken chat template"),
        ("{% for a in b %}" * 40 + "{% endfor %}" * 40, "broken chat template"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "broken chat template"),
        ("{{ " + "9" * 5000 + " }}", "broken chat template"),
        ("{% if a %}" + "{% elif a %}" * 9999 + "{% endif %}", "broken chat template: [RM]"),  # Python's, out of memory
        ("{{ 1 }}" * 200_000, "characters"),
        ("no file", "neither a template"),
        ("", "must be a path"),
        (3, "must be a path"),
        ([], "must be a path"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_template_is_refused_before_a_model_is_loaded(given: Any, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        LLM("no such file", chat_template=given)


def test_a_file_without_tags_is_no_template(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(InvalidRequestError, match="it is no template"):
        LLM("no such file", chat_template=tmp_path / "notes.txt")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
@pytest.mark.timeout(60)
def test_a_file_without_end_is_no_template() -> None:
    with pytest.raises(InvalidRequestError, match="it is no template"):
        LLM("no such file", chat_template="/dev/zero")


def test_a_broken_template_is_named_as_it_was_given(tmp_path: Path) -> None:
    (file := tmp_path / "broken.jinja").write_text("{% for")
    with pytest.raises(InvalidRequestError, match=r"^chat_template='.*broken.jinja' is a broken chat template, line 1"):
        LLM("no such file", chat_template=file)
    with pytest.raises(InvalidRequestError, match=r"^chat_template is a broken chat template, line 1"):
        LLM("no such file", chat_template="{% for")


def test_variables_of_the_llm_are_defaults_one_by_one(new_llm: Callable[..., LLM]) -> None:
    given = {"a": 1, "b": 2}
    llm = new_llm(chat_template="{{ a }}{{ b }}{{ c }}", chat_template_kwargs=given)
    given["a"] = 9
    assert llm.chat_template.render([USER]) == "12"
    assert llm.chat_template.render([USER], chat_template_kwargs={"b": 3, "c": 4}) == "134"


@pytest.mark.parametrize("given", [3, "x", {"messages": []}, {1: 2}, []], ids=str)
def test_variables_of_the_llm_are_looked_at_before_a_model_is_loaded(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match="chat_template_kwargs="):
        LLM("no such file", chat_template_kwargs=given)
