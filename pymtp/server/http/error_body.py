"""The error object of OpenAI's API as a pydantic model, for the OpenAPI schema."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Error(BaseModel):
    model_config = ConfigDict(extra="forbid")

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    error: Error
