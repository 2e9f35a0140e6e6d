"""/v1/messages: Anthropic's messages API."""
