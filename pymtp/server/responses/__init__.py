"""The routes of /v1/responses: OpenAI's responses API."""
