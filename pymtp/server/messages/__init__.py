"""The routes of /v1/messages: Anthropic's messages API."""
