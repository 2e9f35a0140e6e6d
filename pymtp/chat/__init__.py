"""Chats: messages as prompts by the template, and the text of the model as reasoning, content and tool calls."""

from pymtp.chat.events import Answer, Call, CallArguments, CallBegun, Event, Said, Thought
from pymtp.chat.given import Message, Tools, read_template, read_variables
from pymtp.chat.messages import template_messages
from pymtp.chat.output_format import AnswerFormat
from pymtp.chat.output_parser import AnswerReader
from pymtp.chat.template import Chat, ChatTemplate, answer_message
from pymtp.chat.tools import NamedTool, Tool, ToolChoice, read_tools

__all__ = [
    "Answer",
    "AnswerFormat",
    "AnswerReader",
    "Call",
    "CallArguments",
    "CallBegun",
    "Chat",
    "ChatTemplate",
    "Event",
    "Message",
    "NamedTool",
    "Said",
    "Thought",
    "Tool",
    "ToolChoice",
    "Tools",
    "answer_message",
    "read_template",
    "read_tools",
    "read_variables",
    "template_messages",
]
