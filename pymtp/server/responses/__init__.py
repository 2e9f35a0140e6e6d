"""/v1/responses: OpenAI's newer API."""
