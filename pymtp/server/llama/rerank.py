"""The route of /rerank, in the forms of Jina's API and of Hugging Face's text-embeddings-inference (TEI)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from pymtp.chat import Chat, Message
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.model.model import Model
from pymtp.openai.generate_request import GenerateRequest
from pymtp.sampling import MAX_LOGPROBS, SamplingParams, TokenLogprobs
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import error_responses, ignored_header, unknown_names
from pymtp.server.http.sse import run_until_disconnect
from pymtp.server.llama.embeddings import EmbeddingUsage
from pymtp.server.llama.types import Text
from pymtp.server.openai.routes import OpenPrompt, run_prompts
from pymtp.server.openai.types import FLOAT_AS_INT, MAX_PROMPTS, FailFastList, RequestModel
from pymtp.server.service import Service

router = APIRouter(tags=["llama.cpp"])
QUESTION = (
    "You judge whether a document helps to answer a query. Answer yes if it helps, and no if it does not. Answer with "
    "that one word."
)
YES = b"yes"


class DocumentObject(RequestModel):
    text: Text


Documents = Annotated[FailFastList[Text | DocumentObject], Field(min_length=1, max_length=MAX_PROMPTS)]


class RerankRequest(RequestModel):
    """Documents that are ranked by how much they help to answer a query."""

    model: str | None = None
    query: Text
    documents: Documents | None = Field(None, description="The documents; the answer has Jina's form.")
    texts: Documents | None = Field(None, description="The documents; the answer has TEI's form.")
    top_n: Annotated[int, Field(ge=1, lt=2**31), FLOAT_AS_INT] | None = Field(
        None, description="Number of the documents that the answer has; all by default."
    )
    return_documents: bool | None = Field(None, description="Whether the answer has the documents.")
    return_text: bool | None = Field(None, description="TEI's name of return_documents.")


class RankedDocument(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[dict[str, str]]


class RerankResponse(TypedDict):
    object: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage


class RankedText(TypedDict):
    """A document in TEI's form."""

    index: int
    score: float
    text: NotRequired[str]


_ANSWER: Any = RerankResponse | list[RankedText]


@router.post("/reranking", include_in_schema=False, response_model=None)
@router.post("/rerank", response_model=None, responses={200: {"model": _ANSWER}, **error_responses()})
async def rerank(request: Request, body: RerankRequest, service: ServiceDep) -> Response:
    """Rank documents by the probability that the model answers yes to whether they help to answer a query."""
    service.check_model(body.model)
    if body.documents is not None and body.texts is not None:
        raise InvalidRequestError('give the list of texts as either "documents" or "texts", not both', "texts")
    name = "texts" if body.documents is None else "documents"
    given: Sequence[str | DocumentObject] | None = getattr(body, name)
    if given is None:
        raise InvalidRequestError('give a list of texts as "documents" or "texts"', "documents")
    texts = [one if isinstance(one, str) else one.text for one in given]
    requests = [rank_request(body.query, text) for text in texts]
    scores, n_tokens = await run_until_disconnect(request.receive, _scores(service, requests, name))
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: body.top_n]
    headers, has_text = ignored_header(unknown_names(body)), body.return_documents or body.return_text
    if name == "texts":
        ranked = [RankedText(index=i, score=scores[i]) | ({"text": texts[i]} if has_text else {}) for i in order]
        return AsciiJSONResponse(ranked, headers=headers)
    results = [
        RankedDocument(index=i, relevance_score=scores[i]) | ({"document": {"text": texts[i]}} if has_text else {})
        for i in order
    ]
    usage = EmbeddingUsage(prompt_tokens=n_tokens, total_tokens=n_tokens)
    answer = RerankResponse(object="list", model=body.model or service.model_name, results=results, usage=usage)
    return AsciiJSONResponse(answer, headers=headers)


def rank_request(query: str, text: str) -> GenerateRequest:
    """Return the request that asks the model about a document. The query comes first: its tokens are computed once."""
    # parts, which are joined when the request runs: copies of a long query for all documents could take gigabytes
    parts = [{"type": "text", "text": part} for part in ("Query: ", query, "\n\nDocument: ", text)]
    messages: list[Message] = [{"role": "system", "content": QUESTION}, {"role": "user", "content": parts}]
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=MAX_LOGPROBS)
    return GenerateRequest(Chat(messages, chat_template_kwargs={"enable_thinking": False}), params)


async def _scores(service: Service, requests: Sequence[GenerateRequest], name: str) -> tuple[list[float], int]:
    """Return the scores of documents, and the number of tokens of all prompts."""
    model = service.llm.llm.model

    async def follow(i: int, prompt: OpenPrompt) -> tuple[float, int]:
        try:
            async with prompt as running:
                (output,) = await running.outputs()
        except ContextFullError as error:
            raise ContextFullError(f"{name}[{i}] is too large: {error}", name) from error
        assert output.completion.logprobs is not None
        return yes_probability(output.completion.logprobs, model), running.prompt_tokens

    async with run_prompts(service, requests, follow) as tasks:
        scored = await asyncio.gather(*tasks)
    return [score for score, _ in scored], sum(n for _, n in scored)


def yes_probability(logprobs: Sequence[TokenLogprobs], model: Model) -> float:
    """Return the probability of all tokens that say yes, among the most likely ones, as the first of an answer.

    Tokens that are not among the MAX_LOGPROBS most likely ones count as impossible.
    """
    if not logprobs:
        return 0.0
    return math.fsum(
        math.exp(logprob) for token, logprob in logprobs[0].top if model.token_bytes(token).strip().lower() == YES
    )
