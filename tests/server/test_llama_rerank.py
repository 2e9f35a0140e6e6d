"""Tests of /rerank in Jina's and TEI's forms."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp.sampling import TokenLogprobs
from pymtp.server.llama import rerank
from pymtp.server.llama.rerank import rank_request, yes_probability

TEXTS = ["a machine", "Paris", "machine learning"]


def post(server: Server, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/rerank", json={"query": "learning", **body}, timeout=LONG)


def first_logprobs(server: Server, text: str) -> dict[str, float]:
    """Return the log-probabilities of the first token of a chat's answer about a document, by texts of tokens."""
    request = rank_request("learning", text)
    chat = {"model": "m", "messages": request.prompt.messages, "enable_thinking": False}  # type: ignore[union-attr]
    limits = {"max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=chat | limits, timeout=LONG).json()
    (token,) = answer["choices"][0]["logprobs"]["content"]
    return {one["token"]: one["logprob"] for one in token["top_logprobs"]}


def test_rank_is_the_probability_of_yes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    logprobs = [first_logprobs(server, text) for text in TEXTS]
    word = next(one for one in logprobs[0] if one.strip() and one.isascii())  # the shipped model never says yes
    monkeypatch.setattr(rerank, "YES", word.strip().lower().encode())
    expected = [
        sum(math.exp(p) for one, p in each.items() if one.strip().lower() == word.strip().lower()) for each in logprobs
    ]
    answer = post(server, documents=[TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]], return_documents=True).json()
    order = [one["index"] for one in answer["results"]]
    assert order == sorted(range(3), key=lambda i: -expected[i])
    assert [one["relevance_score"] for one in answer["results"]] == pytest.approx(
        [expected[i] for i in order], abs=1e-4
    )
    assert [one["document"]["text"] for one in answer["results"]] == [TEXTS[i] for i in order]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    ranked = post(server, texts=TEXTS, return_text=True).json()
    assert ranked == [
        {"index": one["index"], "score": one["relevance_score"], "text": one["document"]["text"]}
        for one in answer["results"]
    ]
    assert post(server, texts=TEXTS, top_n=1).json() == [{k: ranked[0][k] for k in ("index", "score")}]


def test_query_is_not_copied_for_each_document() -> None:
    query = "a long query " * 1000
    chats: Any = [rank_request(query, text).prompt for text in TEXTS]
    assert all(any(part["text"] is query for part in chat.messages[1]["content"]) for chat in chats)


def test_yes_counts_in_any_case(server: Server) -> None:
    model = server.llm.model
    spellings = [token for token in range(model.n_vocab) if model.token_bytes(token).strip().lower() == b"yes"][:2]
    top = (*((token, math.log(0.25)) for token in spellings), (0, math.log(0.125)))
    assert yes_probability([TokenLogprobs(0, -1.0, top)], model) == pytest.approx(0.25 * len(spellings))
    assert yes_probability([], model) == 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": [1]}, "documents"),
        ({"texts": 5}, "texts"),
        ({"documents": ["a"], "texts": ["b"]}, "not both"),
        ({"documents": ["a", "b " * 5000]}, "documents[1]"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
    ],
)
def test_wrong_documents_are_refused_by_name(server: Server, body: dict[str, Any], named: str) -> None:
    answer = post(server, **body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
