"""Tests of images in chats: which parts are images, how their tokens stand in a prompt, and what is refused."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from helpers.images import ScriptedProjector, image, picture

from pymtp import LLM, ContextFullError, InvalidRequestError
from pymtp.chat import Chat, images, template_messages
from pymtp.chat.images import LEFT_OUT_AT_ONCE, VISION_END, VISION_START, ChatImages, with_image_paths
from pymtp.chat.prompt import ChatPrompts
from pymtp.engine import image_encoder
from pymtp.engine.image_encoder import ImageEncoder
from pymtp.images import Image, ImageLimits

N_TOKENS = 20  # of a picture of 40 x 32 pixels


@pytest.fixture
def encoder() -> ImageEncoder:
    return ImageEncoder(ScriptedProjector(), 0)


@pytest.fixture
def prompts(llm: LLM, encoder: ImageEncoder) -> ChatPrompts:
    return ChatPrompts(llm.model, llm.chat_template, 4096, encoder)


def png(seed: int = 0) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(picture(seed)).save(file, "PNG")
    return file.getvalue()


def data_url(seed: int = 0) -> str:
    return "data:image/png;base64," + base64.b64encode(png(seed)).decode()


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def part(seed: int = 0) -> dict[str, Any]:
    return {"type": "image", "image": image(seed)}


def content(images: ChatImages | None, message: dict[str, Any]) -> str:
    text: str = template_messages([message], images)[0]["content"]
    return text


def test_image_is_a_run_of_its_token_between_texts_that_are_tokenized_apart(llm: LLM, prompts: ChatPrompts) -> None:
    prompt = prompts.prompt(Chat([user("Look: ", part(), "what?")]))
    text = llm.chat_template.render([{"role": "user", "content": f"Look: {VISION_START}|{VISION_END}what?"}])
    before, after = text.split(f"{VISION_START}|{VISION_END}")
    tokens = [*llm.model.tokenize(before + VISION_START), *[-1] * N_TOKENS]
    assert prompt.tokens == [*tokens, *llm.model.tokenize(VISION_END + after, add_special=False)]
    assert prompt.images == {-1: image()}


@pytest.mark.parametrize(
    "form",
    [
        {"type": "image", "image": png()},
        {"type": "image", "image": data_url()},
        {"type": "image_url", "image_url": {"url": data_url(), "detail": "high"}},
        {"type": "image_url", "image_url": data_url()},
        {"type": "input_image", "image_url": data_url()},
    ],
    ids=["bytes", "data URL", "image_url", "image_url as text", "input_image"],
)
def test_images_have_these_forms(prompts: ChatPrompts, form: dict[str, Any]) -> None:
    assert prompts.prompt(Chat([user(form)])).tokens.count(-1) == N_TOKENS


def test_next_turn_has_the_tokens_of_a_whole_prompt(llm: LLM, prompts: ChatPrompts, encoder: ImageEncoder) -> None:
    chat = [user("a", part(0))]
    prompts.prompt(Chat(chat))
    for turn in ([user(part(1), part(0), "b")], [user("c")], [user("d", part(2))]):
        chat = [*chat, {"role": "assistant", "content": "yes"}, *turn]
        prompt = prompts.prompt(Chat(chat))
        assert prompt == ChatPrompts(llm.model, llm.chat_template, 4096, encoder).prompt(Chat(chat))
    assert [token for token in dict.fromkeys(prompt.tokens) if token < 0] == [-1, -2, -3]


def test_image_with_a_new_token_replaces_the_cached_one(prompts: ChatPrompts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_encoder, "MAX_TOKENS", 1)
    chat = Chat([user("a", part(0), "b")])
    assert prompts.prompt(chat).images == {-1: image(0)}
    prompts.prompt(Chat([user(part(1))]))
    again = prompts.prompt(chat)
    assert again.images == {-3: image(0)}
    assert again.tokens.count(-3) == N_TOKENS


def test_vocabulary_that_adds_a_token_adds_it_once(
    llm: LLM, prompts: ChatPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat([user("a", part(0), "b", part(1))])
    wanted, tokenize = prompts.prompt(chat).tokens, llm.model.tokenize

    def with_begin(text: str, *, add_special: bool = True) -> list[int]:
        return [7] * add_special + tokenize(text, add_special=add_special)

    monkeypatch.setattr(llm.model, "tokenize", with_begin)
    for _ in range(2):  # the second time, nothing is reused: no cut is safe
        assert prompts.prompt(chat, ("another key", "")).tokens == [7, *wanted]


def test_marker_in_a_text_is_no_image_unless_the_chat_has_it(prompts: ChatPrompts) -> None:
    images = prompts.collect_images()
    marker = content(images, user(part()))
    assert not [token for token in prompts.prompt(Chat([user(marker)])).tokens if token < 0]
    prompts.prompt(Chat([user(marker, part(1))]))
    assert prompts.prompt(Chat([user(marker, part())])).tokens.count(-1) == 2 * N_TOKENS


def test_images_of_tool_results_are_seen_and_those_of_answers_are_placeholders(prompts: ChatPrompts) -> None:
    result = {"role": "tool", "content": [{"type": "text", "text": "a"}, part(), {"type": "image", "image": b"x"}]}
    text = content(prompts.collect_images(), result)
    assert text.startswith(f"a{VISION_START}")
    assert text.endswith("[image: an image is none of PNG, JPEG, GIF, WebP and BMP: it begins with b'x']")
    assert content(None, result) == "a[image][image]"
    assert content(prompts.collect_images(), {"role": "assistant", "content": [part()]}) == "[image]"


@pytest.mark.parametrize("role", ["system", "developer"])
def test_image_of_a_system_message_is_refused_by_its_place(prompts: ChatPrompts, role: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.content\[1\]: a system message has no images"):
        prompts.prompt(Chat([user("a"), user("b", part()) | {"role": role}]))


def test_damaged_image_of_a_tool_result_is_a_placeholder_and_others_are_decoded_once(
    prompts: ChatPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    pixels = Image.pixels
    monkeypatch.setattr(Image, "pixels", lambda self: decoded.append(self.digest) or pixels(self))
    damaged = {"type": "image", "image": png()[:-200]}
    result = {"role": "tool", "content": [damaged, part()]}
    for _ in range(2):
        text = content(prompts.collect_images(), result)
        assert text.startswith("[image: a PNG image cannot be decoded")
        assert text.count(VISION_START) == 1
    assert len(decoded) == 3  # the damaged one twice
    with pytest.raises(InvalidRequestError, match=r"messages\[0\].content\[0\]: a PNG image cannot be decoded"):
        content(prompts.collect_images(), user(damaged))


def test_string_is_never_the_path_of_a_file_but_for_a_chat_from_python(prompts: ChatPrompts, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    messages = [user({"type": "image", "image": str(tmp_path / "a.png")}, {"type": "image", "image": data_url()})]
    with pytest.raises(
        InvalidRequestError, match=r"messages\[0\].content\[0\]: an image must be bytes, a Path or a URL"
    ):
        template_messages(messages, prompts.collect_images())
    assert prompts.prompt(Chat(with_image_paths(messages))).tokens.count(-1) == 2 * N_TOKENS
    assert with_image_paths([{"role": "user", "content": "a"}]) == [{"role": "user", "content": "a"}]
    address = [user({"type": "image", "image": "https://example.com/a.png"})]
    assert with_image_paths(address) == address


def test_images_of_messages_as_ollamas_client_has_them_become_parts_for_a_chat_from_python(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    long = png() + bytes(4000)
    for source in (str(tmp_path / "a.png"), tmp_path / "a.png", png(), base64.b64encode(long).decode()):
        given = {"role": "user", "content": "What?", "images": [source]}
        (read,) = with_image_paths([given])
        assert read["content"][1] == {"type": "text", "text": "What?"}
        expected = Image.read(long if isinstance(source, str) and len(source) > 4096 else png())
        assert Image.read(read["content"][0]["image"]) == expected
        assert "images" not in read
    assert with_image_paths([{"role": "user", "content": "a", "images": None}])[0]["content"] == "a"
    with pytest.raises(InvalidRequestError, match="images of a message must be a list"):
        with_image_paths([{"role": "user", "content": "a", "images": "a.png"}])


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "not 'https://example.com/a.png'"),
        ({"type": "image", "image": b"GIF89a"}, "a GIF image cannot be decoded"),
        ({"type": "image", "image": picture(0, 8, 1600)}, "too narrow"),
        ({"type": "image"}, "must be text or images, not 'image'"),
        ({"type": "image", "image": {}}, "a path|bytes"),
        ({"type": "video", "video": "a.mp4"}, "must be text or images, not 'video'"),
        ({"type": "input_audio", "input_audio": {}}, "must be text or images, not 'input_audio'"),
    ],
)
def test_other_parts_are_refused_by_name(prompts: ChatPrompts, form: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        prompts.prompt(Chat([user("a"), user(form)]))


def test_markers_in_a_text_are_counted_before_they_become_tokens(prompts: ChatPrompts) -> None:
    marker = next(iter(marker_of(prompts)))
    with pytest.raises(ContextFullError, match=f"the images of the prompt have {301 * N_TOKENS} tokens, n_ctx is 4096"):
        prompts.prompt(Chat([user(part(), marker * 300)]))


def marker_of(prompts: ChatPrompts) -> dict[str, Any]:
    images = prompts.collect_images()
    assert images is not None
    template_messages([user(part())], images)
    return dict(images.by_marker)


def test_too_many_images_are_refused_with_the_number(prompts: ChatPrompts, encoder: ImageEncoder) -> None:
    encoder.limits = ImageLimits(max_images=2)
    prompts.prompt(Chat([user(part(), part())]))
    with pytest.raises(InvalidRequestError, match="has 3 images; at most 2"):
        prompts.prompt(Chat([user(part()), {"role": "assistant", "content": ""}, user(part(), part())]))


def test_oldest_images_of_tools_are_left_out_of_a_chat_with_too_many_once_in_many_turns(
    prompts: ChatPrompts, encoder: ImageEncoder
) -> None:
    encoder.limits = ImageLimits(max_images=20)

    def left_out(n_of_tools: int) -> str:
        chat = [user(part()), *[{"role": "tool", "content": [part(), part()]}] * (n_of_tools // 2), user(part())]
        texts = [message["content"] for message in template_messages(chat, prompts.collect_images())]
        assert texts[0].count(VISION_START) == texts[-1].count(VISION_START) == 1
        found = "".join(texts[1:-1]).replace("[image: left out, as a request may have 20 images]", "-")
        return re.sub(r"[^-<]+", "", found.replace(VISION_START, "<").replace(VISION_END, ""))

    assert left_out(18) == "<" * 18
    for n in range(20, 34, 2):
        assert left_out(n) == "-" * LEFT_OUT_AT_ONCE + "<" * (n - LEFT_OUT_AT_ONCE)
    assert left_out(36) == "-" * 2 * LEFT_OUT_AT_ONCE + "<" * 4
    with pytest.raises(InvalidRequestError, match="has 21 images; at most 20"):
        template_messages([user(*[part()] * 21), {"role": "tool", "content": [part()]}], prompts.collect_images())


def test_images_in_parts_of_results_count_too(prompts: ChatPrompts, encoder: ImageEncoder) -> None:
    encoder.limits = ImageLimits(max_images=4)
    result = {"role": "tool", "content": ({"type": "search_result", "content": [part(), part(), part()]}, part())}
    texts = template_messages([result, user(part())], prompts.collect_images())
    assert texts[0]["content"].count("[image: left out") == 4
    assert texts[1]["content"].count(VISION_START) == 1


def test_no_more_pixels_of_a_chat_are_decoded_than_takes_seconds(
    prompts: ChatPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(Image, "pixels", lambda self: decoded.append(self.digest))
    monkeypatch.setattr(images, "MAX_DECODED", 3 * 40 * 32)
    for n in (3, 5, 5):  # those that were decoded for an earlier turn do not count
        prompts.prompt(Chat([user(*[{"type": "image", "image": picture(seed)} for seed in range(5)])]))
        assert len(decoded) == n


def test_message_has_no_say_in_the_place_of_its_image() -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages\[0\]\.content\[0\]: ") as caught:
        template_messages([user(part() | {"where": {"x": [1]}})])
    assert caught.value.param == "messages[0].content[0]"


def test_model_without_a_projector_says_how_to_get_one(llm: LLM) -> None:
    assert not llm.sees_images
    for form in (part(), {"type": "image_url", "image_url": {"url": data_url()}}):
        with pytest.raises(InvalidRequestError, match=r"without a projector.*give mmproj=… \(--mmproj\)"):
            llm.chat([user(form)])
    prompt = llm.chat_prompts.prompt(Chat([user("a")]))
    with pytest.raises(InvalidRequestError, match="without a projector"):
        llm.generate(prompt._replace(tokens=[*prompt.tokens, -1, 5], images={-1: image()}))
