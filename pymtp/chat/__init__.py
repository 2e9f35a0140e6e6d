"""Chats: from messages to a prompt, by the template of a model."""

from pymtp.chat.given import Message, Tools, read_template, read_variables
from pymtp.chat.template import Chat, ChatTemplate, answer_message

__all__ = ["Chat", "ChatTemplate", "Message", "Tools", "answer_message", "read_template", "read_variables"]
