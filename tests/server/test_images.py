"""Tests of images through all APIs, with a projector of random weights: an image is the same prompt in each."""

from __future__ import annotations

import base64
import json
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import ollama
import pytest
from helpers.image_requests import BASE64, BLOCK, CHAT, LIMITS, MESSAGES, RED, RESPONSES, TEXT, image, post, user
from helpers.late import anthropic, openai
from helpers.picture_files import data_url, picture
from helpers.servers import LONG, Server

from pymtp.engine.preparers import Preparers
from pymtp.engine.request import current_caller
from pymtp.images import Image
from pymtp.server import service


@pytest.fixture(scope="module")
def http(seeing_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=seeing_server.url, timeout=LONG) as client:
        yield client


def refusal(http: httpx.Client, path: str, **body: Any) -> str:
    response = http.post(path, json=body)
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


def n_tokens(http: httpx.Client, *parts: Any) -> int:
    counted: int = post(http, f"{CHAT}/input_tokens", messages=user(*parts))["input_tokens"]
    return counted


def png(width: int, height: int) -> bytes:
    """Return a PNG file whose header tells a size, without the data for it."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT5\xaf\x06\x1e"


# Whatever it sees, the model writes one greedy text; a text of this temperature depends on the picture.
SAMPLED: dict[str, Any] = {"temperature": 2, "seed": 2, "top_k": 0, "top_p": 1, "min_p": 0}
N_TOKENS = 12


def red_file(i: int) -> bytes:
    """Return a file of the red picture. Files with other numbers have other bytes, so each is encoded by itself."""
    return picture(dpi=(i + 1, i + 1))


def test_image_is_the_same_prompt_in_all_apis(http: httpx.Client, seeing_server: Server) -> None:
    files = [red_file(i) for i in range(8)]
    urls, codes = [data_url(file) for file in files], [base64.b64encode(file).decode() for file in files]
    limits = {"max_tokens": N_TOKENS, "enable_thinking": False, **SAMPLED}

    def chat(part: Any) -> tuple[str, int]:
        told = post(http, CHAT, messages=user(part, TEXT), **limits)
        return told["choices"][0]["message"]["content"], told["usage"]["prompt_tokens"]

    encoder = seeing_server.llm._images
    assert encoder is not None
    text, n = chat(image("file://red.png"))
    before = encoder.n_encoded
    assert text not in [chat(image(data_url(picture(colour))))[0] for colour in ("blue", "cyan")]
    for part in (
        image(urls[0]),
        {"type": "input_image", "image_url": urls[1]},
        image(codes[2]),
        {"type": "image_url", "image_url": codes[3]},
    ):
        assert chat(part) == (text, n)
    block = BLOCK | {"source": {"type": "base64", "media_type": "image/png", "data": codes[4]}}
    found = post(http, MESSAGES, model="m", messages=user(block, TEXT), **limits)
    usage = found["usage"]
    assert found["content"][0]["text"] == text
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == n
    question = user({"type": "input_image", "image_url": urls[5]}, {"type": "input_text", "text": TEXT["text"]})
    response = post(http, RESPONSES, input=question, max_output_tokens=N_TOKENS, enable_thinking=False, **SAMPLED)
    assert (response["output"][0]["content"][0]["text"], response["usage"]["input_tokens"]) == (text, n)
    quiet = {"stream": False, "think": False, "options": {"num_predict": N_TOKENS, **SAMPLED}}
    messages = [{"role": "user", "content": TEXT["text"], "images": [codes[6]]}]
    told = post(http, "/api/chat", messages=messages, **quiet)
    assert (told["message"]["content"], told["prompt_eval_count"]) == (text, n)
    told = post(http, "/api/generate", prompt=TEXT["text"], images=[codes[7]], **quiet)
    assert (told["response"], told["prompt_eval_count"]) == (text, n)
    prompt = post(http, "/apply-template", messages=user(image(), TEXT), enable_thinking=False)["prompt"]
    assert prompt.count("<__media__>") == 1
    whole = {"prompt_string": prompt, "multimodal_data": [base64.b64encode(red_file(8)).decode()]}
    native = post(http, "/completion", prompt=whole, n_predict=N_TOKENS, **SAMPLED)
    assert (native["content"], native["tokens_evaluated"]) == (text, n)
    assert native["prompt"].count("<__media__>") == 1
    assert encoder.n_encoded == before + 2 + 9


def test_tokens_of_images_are_counted(http: httpx.Client) -> None:
    line = {"type": "text", "text": "What is it?\n"}  # no token goes on beyond a line
    without, two = n_tokens(http, line, line, line), n_tokens(http, line, image(), line, image(), line)
    assert two - without == 2 * (n_tokens(http, line, image(), line, line) - without) > 2
    one, large = n_tokens(http, image(), TEXT), image(data_url(picture(size=(320, 240))))
    assert n_tokens(http, large, TEXT) > one
    thinks = {"thinking": {"type": "adaptive"}}  # as the default of the other APIs
    counted = post(http, f"{MESSAGES}/count_tokens", model="m", messages=user(BLOCK, TEXT), **thinks)
    assert counted["input_tokens"] == one


def test_model_sees_what_is_in_an_image(http: httpx.Client) -> None:
    def embedding(*colours: str) -> list[float]:
        data = [base64.b64encode(picture(colour)).decode() for colour in colours]
        (found,) = post(http, "/embedding", content={"prompt_string": "<__media__> a", "multimodal_data": data})
        (vector,) = found["embedding"]
        return list(vector)

    assert embedding("red") == embedding("red")
    assert embedding("red") != embedding("blue")


def test_content_and_marker_have_the_same_embedding(http: httpx.Client) -> None:
    content = {"content": [{"type": "text", "text": "a "}, image(), {"type": "text", "text": "\n"}]}
    marked = {"prompt_string": "a <__media__>\n", "multimodal_data": [BASE64]}
    first, second, third = post(http, "/v1/embeddings", input=[content, marked, "a \n"])["data"]
    assert first["embedding"] == second["embedding"]
    assert first["embedding"] != third["embedding"]


@pytest.mark.parametrize("stream", [False, True])
def test_image_in_the_result_of_a_tool_is_seen(http: httpx.Client, stream: bool) -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {}}]}

    def ask(content: Any) -> tuple[str, int]:
        result = {"type": "tool_result", "tool_use_id": "t", "content": content}
        messages = [*user(TEXT), use, *user(result)]
        body = {"model": "m", "messages": messages, "stream": stream, "max_tokens": N_TOKENS, **SAMPLED, "seed": 4}
        response = http.post(MESSAGES, json=body)
        assert response.status_code == 200
        if stream:
            events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
            parts = [event["delta"] for event in events if event["type"] == "content_block_delta"]
            usage = [event["usage"] for event in events if "usage" in event][-1]
        else:
            parts, usage = response.json()["content"], response.json()["usage"]
        text = "".join(part["text"] for part in parts)
        return text, usage["input_tokens"] + usage["cache_read_input_tokens"]

    def block(data: bytes) -> dict[str, Any]:
        return BLOCK | {"source": BLOCK["source"] | {"data": base64.b64encode(data).decode()}}

    text, n = ask([block(red_file(20 + stream)), TEXT])
    assert n - ask([TEXT])[1] == n_tokens(http, image(), TEXT) - n_tokens(http, TEXT)
    assert ask([block(red_file(22 + stream)), TEXT]) == (text, n)
    assert text not in [ask([block(picture(colour)), TEXT])[0] for colour in ("blue", "cyan")]


def test_image_of_a_tool_that_is_refused_is_a_text(http: httpx.Client) -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": [image("http://a.example/a.png"), image("data:,x")]}
    prompt = post(http, "/apply-template", messages=[*user(TEXT), result])["prompt"]
    assert "[image: the image 'http://a.example/a.png' is not fetched" in prompt
    assert "[image: an image's URL must be" in prompt


def test_later_turn_about_an_image_runs_no_projector(http: httpx.Client, seeing_server: Server) -> None:
    green = user(image(data_url(picture("green"))), TEXT)
    post(http, CHAT, messages=green, **LIMITS)
    encoder = seeing_server.llm._images
    assert encoder is not None
    before = encoder.n_encoded
    post(http, CHAT, messages=[*green, {"role": "assistant", "content": "a"}, *user(TEXT)], **LIMITS)
    assert encoder.n_encoded == before


def test_stored_response_keeps_its_images(http: httpx.Client) -> None:
    question = user({"type": "input_image", "image_url": data_url(RED)})
    first = post(http, RESPONSES, input=question, max_output_tokens=4, temperature=0)
    more = {"max_output_tokens": 4, "previous_response_id": first["id"]}
    second = post(http, RESPONSES, input="and?", **more)
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("malformed", "not base64"),
        ("data:text/html;base64,aGVsbG8=", "none of PNG, JPEG, GIF, WebP and BMP"),
        ("data:image/png,a", 'must be "data:image/'),
        ("data:video/mp4;base64,AAAA", "video is not supported"),
        ("https://a.example/a.png", "--allow-image-urls HOST"),
        ("file:///etc/passwd", "no file within the folder of --media-path"),
        ("file://../a.png", "no file within the folder of --media-path"),
        (data_url(b"\x89PNG\r\n\x1a\nx"), "cannot be decoded"),
        (data_url(png(10_000, 10_000)), "10000 x 10000 = 100000000 pixels; at most 50000000"),
        (data_url(picture() + b"x" * 20 * 2**20), f"bytes; at most {20 * 2**20}"),
        (data_url(picture(size=(6400, 8))), ""),
    ],
)
def test_refused_image_is_named_with_its_reason(http: httpx.Client, url: str, words: str) -> None:
    for path, body in (
        (CHAT, {"messages": user(TEXT, image(url))}),
        (MESSAGES, {"model": "m", "messages": user({"type": "image", "source": {"type": "url", "url": url}})}),
        (RESPONSES, {"input": user({"type": "input_image", "image_url": url}), "max_output_tokens": 1}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": [url]}]}),
    ):
        response = http.post(path, json={"max_tokens": 1, **body})
        assert response.status_code == 400, response.text
        assert words in response.json()["error"]["message" if path != "/api/chat" else slice(None)]


def test_number_of_images_is_limited(http: httpx.Client) -> None:
    assert "65 images; at most 64" in refusal(http, CHAT, messages=user(*[image()] * 65))
    prompt = {"prompt_string": "<__media__>" * 65, "multimodal_data": [BASE64] * 65}
    assert "65 images; at most 64" in refusal(http, "/completion", prompt=prompt)


def test_inputs_of_embeddings_have_no_more_images_than_a_chat(http: httpx.Client) -> None:
    one = {"prompt_string": "<__media__>" * 33 + " a", "multimodal_data": [BASE64] * 33}
    assert "has 66 images; at most 64" in refusal(http, "/embedding", content=[one, one])


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"prompt_string": "a", "multimodal_data": [BASE64]}, "0 times <__media__>, and multimodal_data has 1 images"),
        ({"prompt_string": "<__media__>" * 2, "multimodal_data": [BASE64]}, "2 times <__media__>"),
        ({"prompt_string": "<__media__>", "multimodal_data": ["malformed"]}, "not base64"),
        ({"prompt_string": ["<__media__>", 1], "multimodal_data": [BASE64]}, "prompt_string must be a text"),
    ],
)
def test_prompt_needs_a_marker_for_each_image(http: httpx.Client, prompt: Any, words: str) -> None:
    assert words in refusal(http, "/completion", prompt=prompt)
    assert words in refusal(http, "/embedding", content=prompt)


def test_marker_is_plain_text_without_images(http: httpx.Client) -> None:
    for prompt in ("<__media__>", {"prompt_string": "<__media__>"}, {"prompt_string": "a", "multimodal_data": []}):
        assert post(http, "/completion", prompt=prompt, n_predict=1)["tokens_evaluated"] > 0


def test_limit_of_text_does_not_count_images(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_TEXT_BYTES", 3000)
    large = picture(kind="BMP")
    assert len(large) > 3000
    post(http, CHAT, messages=user(image(data_url(large, "bmp")), TEXT), **LIMITS)
    block = BLOCK | {"source": {"type": "base64", "data": base64.b64encode(large).decode()}}
    post(http, MESSAGES, model="m", messages=user(block, TEXT), **LIMITS)
    message = {"role": "user", "content": "a", "images": [base64.b64encode(large).decode()]}
    post(http, "/api/chat", messages=[message], stream=False, options={"num_predict": 1})
    long = {"type": "text", "text": "a " * 1600}
    assert "bytes of text; at most 3000" in refusal(http, CHAT, messages=user(image(), long))
    assert "3200 bytes of text; at most 3000" in refusal(http, "/v1/completions", prompt="a " * 1600)


def test_images_are_read_off_the_event_loop(
    http: httpx.Client, seeing_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, gate, read = threading.Event(), threading.Event(), Image.read

    def wait(*arguments: Any) -> Image:
        began.set()
        assert gate.wait(LONG)
        return read(*arguments)

    monkeypatch.setattr(Image, "read", wait)
    with ThreadPoolExecutor() as pool:
        for url in (data_url(RED), "file://red.png"):
            asked = pool.submit(post, http, CHAT, messages=user(image(url)), **LIMITS)
            assert began.wait(LONG)
            assert httpx.get(f"{seeing_server.url}/health", timeout=LONG).status_code == 200
            gate.set()
            asked.result()
            began.clear()
            gate.clear()


def test_server_tells_that_its_model_sees(http: httpx.Client, server: Server) -> None:
    def told(client: httpx.Client) -> list[Any]:
        card, props = client.get("/v1/models").json(), client.get("/props").json()
        show = client.post("/api/show", json={}).json()
        return [
            card["models"][0]["capabilities"],
            card["data"][0]["meta"]["vision"],
            props["modalities"],
            "vision" in show["capabilities"],
        ]

    vision = {"vision": True, "video": False, "audio": False}
    assert told(http) == [["completion", "multimodal"], True, vision, True]
    with httpx.Client(base_url=server.url) as client:
        assert told(client) == [["completion"], False, vision | {"vision": False}, False]


@pytest.mark.parametrize("detail", ["auto", "low"])
def test_detail_of_an_image_is_named_as_ignored(http: httpx.Client, detail: str) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(RED), "detail": detail}}
    answer = http.post(CHAT, json={"messages": user(TEXT, part), **LIMITS})
    assert answer.headers.get("x-pymtp-ignored") == {"auto": None, "low": "messages.0.content.1.detail"}[detail]
    items = user({"type": "input_image", "image_url": data_url(RED), "detail": detail})
    answer = http.post(RESPONSES, json={"input": items, "max_output_tokens": 1})
    assert answer.headers.get("x-pymtp-ignored") == {"auto": None, "low": "input.0.content.0.detail"}[detail]


def test_official_clients_send_images(seeing_server: Server) -> None:
    url = seeing_server.url
    chat = openai.OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions.create(
        model="m", messages=user(image(), TEXT), max_tokens=2
    )
    assert chat.usage is not None
    claude = anthropic.Anthropic(base_url=url, api_key="none")
    block: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
    message = claude.messages.create(model="m", messages=user(block, TEXT), max_tokens=2, thinking={"type": "adaptive"})
    usage = message.usage
    told = ollama.Client(url).generate("m", "What is it?", images=[RED], options={"num_predict": 2})
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert chat.usage.prompt_tokens == total == told.prompt_eval_count


def test_logged_prompt_has_no_data_of_images(
    new_server: Callable[..., Server], seeing_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server(llm={"mmproj": seeing_server.llm.mmproj, "n_ctx": 512}, log_prompts=True).ready()
    caplog.set_level("INFO", "pymtp.server")
    body = {"messages": user(image(data_url(picture(kind="BMP"), "bmp")), TEXT), **LIMITS}
    assert httpx.post(server.url + CHAT, json=body, timeout=LONG).status_code == 200
    (prompt,) = (one.fields["prompt"] for one in caplog.records if "prompt" in getattr(one, "fields", {}))
    (message,) = prompt
    assert message["content"][1] == TEXT
    assert len(message["content"][0]["image_url"]["url"]) == 201


@pytest.mark.parametrize(
    ("path", "body", "has_images"),
    [
        ("/v1/chat/completions", {"messages": user(image(), TEXT)}, True),
        ("/completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [BASE64]}}, True),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": [BASE64]}]}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "an image, and images"}]}, False),
        ("/v1/completions", {"prompt": "ä"}, False),
    ],
)
def test_requests_with_images_are_prepared_as_long_ones(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], has_images: bool
) -> None:
    callers: list[Any] = []
    submit = Preparers.submit
    monkeypatch.setattr(
        Preparers, "submit", lambda self, *call: callers.append(current_caller.get()) or submit(self, *call)
    )
    http.post(path, json={"model": "m", "max_tokens": 1} | body)
    assert {caller.has_images for caller in callers} == {has_images}
