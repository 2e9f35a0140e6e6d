"""How the answer of a chat is written and read: thinking, content, and calls of tools."""

from pymtp.answers.events import Answer, Call, CallArguments, CallBegun, Event, Said, Thought
from pymtp.answers.format import AnswerFormat
from pymtp.answers.messages import template_messages
from pymtp.answers.reader import AnswerReader
from pymtp.answers.tools import NamedTool, Tool, ToolChoice, read_tools

__all__ = [
    "Answer",
    "AnswerFormat",
    "AnswerReader",
    "Call",
    "CallArguments",
    "CallBegun",
    "Event",
    "NamedTool",
    "Said",
    "Thought",
    "Tool",
    "ToolChoice",
    "read_tools",
    "template_messages",
]
