"""The command `pymtp chat`: command.py has its options and its loop.

The loop reads a line (reader.py; terminal.py with prompt_toolkit), and has a slash command run (slash_commands.py) or a
message answered (session.py, which prints with answer.py). interrupts.py decides what Ctrl-C does.
"""

from pymtp.cli.chat.command import chat

__all__ = ["chat"]
