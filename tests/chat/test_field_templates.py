"""Tests of published chat templates: prompts equal those of transformers, and refused messages are rewritten."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.templates import QWEN, render, render_chat, template, templates
from makers.chat_templates import DROPS_THINKING
from makers.conversations import CONVERSATIONS

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.chat import ChatTemplate
from pymtp.model.model import Model

GOLDEN = json.loads((Path(__file__).parent.parent / "reference" / "prompts.json").read_text(encoding="utf-8"))
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
ANSWER, LATE_SYSTEM = {"role": "assistant", "content": "Hello."}, {"role": "system", "content": "Only JSON."}
ACCEPTS_ALL = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
# Like Qwen3.8's template: it knows three efforts, and raises an exception for all others.
KNOWS_EFFORTS = (
    "{%- set effort = reasoning_effort | default('xhigh') %}"
    "{%- if effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('no effort ' ~ effort) }}{% endif %}"
    "[{{ effort }}{{ '' if enable_thinking | default(true) else ' off' }}]"
)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(vocab_only=True) as model:
        yield model


@pytest.fixture(scope="module")
def render_source(model: Model) -> Callable[..., str]:
    """Return a function that renders messages with a template, which is given by its source."""

    def make(source: str, *messages: Any, variables: Any = None, tools: Any = None) -> str:
        return ChatTemplate(model, source).render(messages, tools=tools, chat_template_kwargs=variables)

    return make


def text(lines: list[int] | None) -> str | None:
    """Return a text that the golden file stores as numbers of lines."""
    return None if lines is None else "\n".join(GOLDEN["lines"][line] for line in lines)


@pytest.mark.parametrize("name", QWEN)
def test_prompts_equal_those_of_transformers(model: Model, name: str) -> None:
    for case, conversation in CONVERSATIONS.items():
        entry = GOLDEN["prompts"][name][case]
        rendered = render(model, template(name), conversation)
        assert rendered == text(entry.get("render", entry.get("transformers"))), case
        chat = text(entry["chat"]) if "chat" in entry else rendered
        assert render_chat(model, template(name), conversation) == chat, case


def test_prompts_differ_from_transformers_only_for_chats_that_transformers_refuses() -> None:
    assert all(each.keys() == CONVERSATIONS.keys() for each in GOLDEN["prompts"].values())
    entries = [(case, entry) for each in GOLDEN["prompts"].values() for case, entry in each.items()]
    ours = {case for case, entry in entries if "render" in entry}
    assert ours == {
        *("two systems first", "system in the middle", "system last", "developer in the middle"),
        *("no user", "only a system"),
    }
    assert not [case for case, entry in entries if "render" in entry and "transformers" in entry]
    # Our chat API converts messages from OpenAI's form first, so that no conversation is refused.
    assert all(
        text(entry["chat"]) if "chat" in entry else "refused" not in entry or "render" in entry for _, entry in entries
    )


def test_llama_cpps_templates_render_a_chat_or_refuse_it(model: Model) -> None:
    refused = []
    for name, source in templates().items():
        try:
            assert ChatTemplate(model, source).render([USER])
        except InvalidRequestError:
            refused.append(name)
    assert len(templates()) > 60
    assert len(refused) <= 4  # these templates need tools


def test_tojson_takes_transformers_keywords(render_source: Callable[..., str]) -> None:
    value = {"b": ["é<", 1], "a": None}
    for keywords in ({}, {"ensure_ascii": True}, {"indent": 2}, {"separators": [",", ":"]}, {"sort_keys": True}):
        written = ", ".join(f"{name}={json.dumps(each)}" for name, each in keywords.items())
        source = "{{ x | tojson(" + written.replace("true", "True") + ") }}"
        assert render_source(source, USER, variables={"x": value}) == json.dumps(
            value, **{"ensure_ascii": False, **keywords}
        )


def test_generation_block_renders_its_text_and_hides_its_variables(render_source: Callable[..., str]) -> None:
    source = "{% set a = 1 %}a{% generation %}{% set a = 2 %}b{{ a }}{%- endgeneration %}c{{ a }}"
    assert render_source(source, USER) == "ab2c1"


@pytest.mark.parametrize(
    "messages", [[USER, LATE_SYSTEM], [SYSTEM, USER, ANSWER, LATE_SYSTEM, USER], [LATE_SYSTEM, SYSTEM, USER]], ids=str
)
def test_late_instructions_are_unchanged_if_the_template_accepts_them(
    render_source: Callable[..., str], messages: Any
) -> None:
    assert render_source(ACCEPTS_ALL, *messages) == "".join(f"<{each['role']}>{each['content']}" for each in messages)


@pytest.mark.parametrize(
    "refusal",
    [
        "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}" + ACCEPTS_ALL,
        "{% for message in messages %}{% if loop.first or message.role != 'system' %}"
        "<{{ message.role }}>{{ message.content }}{% endif %}{% endfor %}",
    ],
    ids=["refused", "ignored"],
)
def test_late_instructions_become_user_messages_if_the_template_refuses_or_ignores_them(
    render_source: Callable[..., str], refusal: str
) -> None:
    assert render_source(refusal, SYSTEM, USER, LATE_SYSTEM, ANSWER, LATE_SYSTEM) == (
        "<system>Be brief.<user>Hi<user>Only JSON.<assistant>Hello.<user>Only JSON."
    )


def test_late_instructions_that_the_template_ignores_are_rewritten_in_each_chat(model: Model) -> None:
    template = ChatTemplate(model, DROPS_THINKING)
    for _ in range(2):
        assert "<|im_start|>user\nOnly JSON.<|im_end|>" in template.render([USER, ANSWER, LATE_SYSTEM])


def test_effort_is_kept_if_the_template_ignores_late_instructions_and_refuses_all_rewrites(
    render_source: Callable[..., str],
) -> None:
    source = (
        "{% set others = messages | rejectattr('role', 'equalto', 'system') | list %}"
        "{% for message in others %}{% if message.role != ('user', 'assistant')[loop.index0 % 2] %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ message.content }}{% endfor %}"
        "{{ reasoning_effort }}"
    )
    assert render_source(source, USER, LATE_SYSTEM, ANSWER, variables={"reasoning_effort": "high"}) == "HiHello.high"


@pytest.mark.parametrize(
    "messages",
    [[SYSTEM], [SYSTEM, ANSWER], [ANSWER], [SYSTEM, ANSWER, {"role": "tool", "content": "1"}]],
    ids=lambda messages: ", ".join(message["role"] for message in messages),
)
def test_chat_without_a_user_message_gets_an_empty_user_message(model: Model, messages: Any) -> None:
    rendered = ChatTemplate(model, template("Qwen3.5-4B")).render(messages)
    requested = [{"role": "user", "content": ""}]
    n = sum(message["role"] == "system" for message in messages)
    assert rendered == ChatTemplate(model, template("Qwen3.5-4B")).render([*messages[:n], *requested, *messages[n:]])


def test_chat_without_a_user_message_is_unchanged_if_the_template_accepts_it(render_source: Callable[..., str]) -> None:
    assert render_source(ACCEPTS_ALL, SYSTEM, ANSWER) == "<system>Be brief.<assistant>Hello."


def test_user_message_with_only_tool_results_does_not_count_as_a_user_message(model: Model) -> None:
    result = {"role": "user", "content": "<tool_response>\n1\n</tool_response>"}
    rendered = ChatTemplate(model, template("Qwen3.5-4B")).render([SYSTEM, ANSWER, result])
    assert "<|im_start|>user\n<|im_end|>" in rendered


def test_error_contains_the_templates_message_if_all_rewrites_and_efforts_are_refused(
    render_source: Callable[..., str],
) -> None:
    with pytest.raises(InvalidRequestError, match="not today"):
        render_source("{{ raise_exception('not today') }}", SYSTEM, LATE_SYSTEM, variables={"reasoning_effort": "high"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [("ls \ud83d...", "ls \ufffd..."), ("\ude00", "\ufffd"), ("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "\U0001f600")],
    ids=ascii,
)
def test_surrogates_become_replacement_characters(render_source: Callable[..., str], given: str, expected: str) -> None:
    messages = [{"role": "user", "content": given}]
    source = "{{ messages[0].content }} {{ tools | tojson }} {{ x }}"
    rendered = render_source(source, *messages, tools=[{"name": given}], variables={"x": given})
    assert rendered == f'{expected} [{{"name": "{expected}"}}] {expected}'


@pytest.mark.parametrize(
    ("requested", "accepted"),
    [
        *((effort, effort) for effort in ("low", "medium", "xhigh")),
        *(("minimal", "low"), ("high", "xhigh"), ("max", "xhigh"), ("none", "xhigh off")),
    ],
)
def test_effort_that_the_template_refuses_is_replaced_by_the_nearest_accepted_one(
    model: Model, requested: str, accepted: str
) -> None:
    template = ChatTemplate(model, KNOWS_EFFORTS)
    for _ in range(2):
        assert template.render([USER], chat_template_kwargs={"reasoning_effort": requested}) == f"[{accepted}]"


@pytest.mark.parametrize(
    ("named", "requested", "accepted"),
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
def test_higher_of_two_equally_near_efforts_is_tried_first_and_effort_none_last(
    render_source: Callable[..., str], named: list[str], requested: str, accepted: str
) -> None:
    source = f"{{% if reasoning_effort not in {named} %}}{{{{ raise_exception('no') }}}}{{% endif %}}"
    source += "{{ reasoning_effort }}"
    assert render_source(source, USER, variables={"reasoning_effort": requested}) == accepted


@pytest.mark.parametrize(("effort", "enabled"), [("none", False), ("high", True)])
def test_effort_of_the_request_overrides_enable_thinking_of_the_llm(
    new_llm: Callable[..., LLM], effort: str, enabled: bool
) -> None:
    source = "{{ enable_thinking | default(true) }}"
    template = new_llm(chat_template=source, chat_template_kwargs={"enable_thinking": not enabled}).chat_template
    assert template.render([USER]) == str(not enabled)
    assert template.render([USER], chat_template_kwargs={"reasoning_effort": effort}) == str(enabled)
    both = {"reasoning_effort": effort, "enable_thinking": not enabled}
    assert template.render([USER], chat_template_kwargs=both) == str(not enabled)


def test_template_that_accepts_all_efforts_gets_the_requested_one(render_source: Callable[..., str]) -> None:
    assert render_source("{{ reasoning_effort }}", USER, variables={"reasoning_effort": "max"}) == "max"


@pytest.mark.parametrize("effort", ["banana", "", "High", 3, ["low"], True], ids=str)
@pytest.mark.parametrize("source", [KNOWS_EFFORTS, "{{ reasoning_effort }}", "no effort here"])
def test_unknown_effort_word_is_refused_with_a_list_of_efforts(
    render_source: Callable[..., str], source: str, effort: Any
) -> None:
    with pytest.raises(
        InvalidRequestError, match="must be one of none, minimal, low, medium, high, xhigh, max"
    ) as refused:
        render_source(source, USER, variables={"reasoning_effort": effort})
    assert refused.value.param == "reasoning_effort"


@pytest.mark.parametrize("fallback", ["{{ raise_exception('no') }}", "plain"])
def test_effort_that_only_the_template_knows_is_accepted(render_source: Callable[..., str], fallback: str) -> None:
    source = "{% if reasoning_effort == 'deep' %}deep{% else %}" + fallback + "{% endif %}"
    assert render_source(source, USER, variables={"reasoning_effort": "deep"}) == "deep"


def test_chat_template_may_be_a_source_string_or_a_path(new_llm: Callable[..., LLM], tmp_path: Path) -> None:
    file = tmp_path / "it.jinja"
    file.write_text("{{ messages[0].content }}é", encoding="utf-8")
    with_bom = tmp_path / "with_bom.jinja"
    with_bom.write_text(
        "{{ messages[0].content }}é", encoding="utf-8-sig"
    )  # some editors of Windows write a byte order mark
    for given in (file, str(file), with_bom, "{{ messages[0].content }}é"):
        llm = new_llm(chat_template=given)
        assert llm.chat_template.render([USER]) == "Hié"
        assert llm.model.detokenize(llm.chat([USER], SamplingParams(1)).prompt_token_ids) == "Hié"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{% if %}", "broken chat template, line 1"),
        ("{{ 1 }}\n{% for %}", "broken chat template, line 2"),
        ("{{ x | nothing }}", "No filter named 'nothing'"),
        ("{% generation %}", "broken chat template"),
        ("{% for a in b %}" * 40 + "{% endfor %}" * 40, "broken chat template"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "broken chat template"),
        ("{{ " + "9" * 5000 + " }}", "broken chat template"),
        (
            "{% if a %}" + "{% elif a %}" * 9999 + "{% endif %}",
            "broken chat template: [RM]",
        ),  # RecursionError or MemoryError of Python's compiler
        ("{{ 1 }}" * 200_000, "characters"),
        ("no file", "neither a template"),
        ("", "must be a path"),
        (3, "must be a path"),
        ([], "must be a path"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_bad_template_is_refused_before_the_model_is_loaded(given: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        LLM("no such file", chat_template=given)


def test_template_file_without_jinja_tags_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(InvalidRequestError, match="it is not a template"):
        LLM("no such file", chat_template=tmp_path / "notes.txt")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
@pytest.mark.timeout(60)
def test_endless_template_file_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="it is not a template"):
        LLM("no such file", chat_template="/dev/zero")


def test_error_names_the_broken_template_as_it_was_given(tmp_path: Path) -> None:
    (file := tmp_path / "broken.jinja").write_text("{% for")
    with pytest.raises(InvalidRequestError, match=r"^chat_template='.*broken.jinja' is a broken chat template, line 1"):
        LLM("no such file", chat_template=file)
    with pytest.raises(InvalidRequestError, match=r"^chat_template is a broken chat template, line 1"):
        LLM("no such file", chat_template="{% for")


def test_request_may_override_single_template_variables_of_the_llm(new_llm: Callable[..., LLM]) -> None:
    given = {"a": 1, "b": 2}
    llm = new_llm(chat_template="{{ a }}{{ b }}{{ c }}", chat_template_kwargs=given)
    given["a"] = 9
    assert llm.chat_template.render([USER]) == "12"
    assert llm.chat_template.render([USER], chat_template_kwargs={"b": 3, "c": 4}) == "134"


@pytest.mark.parametrize("given", [3, "x", {"messages": []}, {1: 2}, []], ids=str)
def test_template_variables_are_checked_before_the_model_is_loaded(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match="chat_template_kwargs="):
        LLM("no such file", chat_template_kwargs=given)
