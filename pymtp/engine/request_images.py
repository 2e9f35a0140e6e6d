"""The images of the requests that are prefilled: they are asked for when a prompt comes to them, and left behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pymtp.engine.context import EngineContext
from pymtp.engine.image_encoder import ImageEncoder, Rows
from pymtp.engine.request import Request
from pymtp.errors import copied


class RequestImages:
    """Asks an encoder for the images of requests. A request without images may be passed to each method.

    encoder: the encoder; None for a model that sees no images.
    """

    def __init__(self, encoder: ImageEncoder | None) -> None:
        """Begin without images. encoder: None for a model that sees none; then no request has any."""
        self.encoder = encoder

    def make_known(self, request: Request, context: EngineContext) -> None:
        """Make the images of a prompt known to the context, before any of their tokens are in a sequence."""
        if self.encoder is not None:
            for token, image in request.images.by_token.items():
                context.add_image(token, *self.encoder.grid(image))

    def ask(self, request: Request, n_computed: int, chunk: Sequence[int]) -> bool:
        """Ask for the images of the next chunk of a prompt, and leave those before it.

        Returns whether all images of the chunk are encoded. Raises the error of one that cannot be.
        """
        jobs = request.image_jobs
        # not those of a later chunk: they may be half encoded when a chunk becomes shorter
        self.leave(request, [token for token in jobs if request.image_ends[token] <= n_computed])
        needed = dict.fromkeys(token for token in chunk if token < 0)
        for token in needed:
            if token not in jobs:
                assert self.encoder is not None
                image = request.images.by_token[token]
                jobs[token] = self.encoder.request(image, request.images.key, request.priority)
        for token in needed:
            if (error := jobs[token].error) is not None:
                raise copied(error)
        return all(jobs[token].done for token in needed)

    def rows(self, request: Request, chunk: Sequence[int]) -> dict[int, Rows]:
        """Return the rows of the images of a chunk, which are encoded, by their tokens."""
        jobs = request.image_jobs
        return {token: rows for token in set(chunk) if token < 0 and (rows := jobs[token].rows) is not None}

    def leave(self, request: Request, tokens: Iterable[int] | None = None) -> None:
        """Leave images that the request does not need any more; None for all."""
        for token in list(request.image_jobs if tokens is None else tokens):
            assert self.encoder is not None
            self.encoder.leave(request.image_jobs.pop(token))
