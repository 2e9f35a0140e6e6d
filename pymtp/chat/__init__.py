"""Chats: messages become a prompt, and the output of the model becomes reasoning, content and tool calls.

To read how messages become tokens, begin with prompt.py: `ChatPrompts` renders the chat template (template.py, in the
sandbox of jinja_environment.py) and finds where later prompts will branch off. To read how the output becomes a reply,
begin with output_format.py: an `OutputFormat` has the grammar that constrains the output (output_grammar.py) and makes
the `OutputParser` that parses the output (output_parser.py). Grammar and parser use the tags of qwen_tags.py.
thinking.py implements the thinking budget.
"""

from pymtp.chat.messages import template_messages
from pymtp.chat.output_events import (
    ContentDelta,
    OutputEvent,
    ParsedOutput,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)
from pymtp.chat.output_format import OutputFormat
from pymtp.chat.output_parser import OutputParser
from pymtp.chat.template import Chat, ChatTemplate, assistant_message
from pymtp.chat.template_inputs import Message, Tools, read_template, read_variables
from pymtp.chat.tools import GivenToolChoice, NamedTool, Tool, ToolChoice, read_tool_choice, read_tools

__all__ = [
    "Chat",
    "ChatTemplate",
    "ContentDelta",
    "GivenToolChoice",
    "Message",
    "NamedTool",
    "OutputEvent",
    "OutputFormat",
    "OutputParser",
    "ParsedOutput",
    "ReasoningDelta",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallStart",
    "ToolChoice",
    "Tools",
    "assistant_message",
    "read_template",
    "read_tool_choice",
    "read_tools",
    "read_variables",
    "template_messages",
]
