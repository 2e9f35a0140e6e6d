"""Input from a terminal with prompt_toolkit: line editing, history, texts of several lines, completion."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from pymtp.cli.chat.history import ChatHistory, history_file
from pymtp.cli.chat.interrupts import Interrupts
from pymtp.cli.chat.settings import NAMES
from pymtp.cli.chat.slash_words import COMMANDS, FILE_COMMANDS
from pymtp.cli.model_file import show_note
from pymtp.validation import replace_surrogates

PASTE_IS_BRACKETED = "\x1b[?2004h"


class TerminalReader:
    """Reads messages that the user edits: Enter sends, Alt-Enter begins a line, pasted lines are one text."""

    can_edit = True

    def __init__(self, interrupts: Interrupts, output: TextIO) -> None:
        """output: the terminal."""
        self._interrupts, self._output = interrupts, output
        self._changes_text = False
        file = history_file()
        self._history = None if file is None else ChatHistory(file)
        self._notes_problem = True
        self._session: PromptSession[str] = PromptSession(
            [("bold", "> ")],
            multiline=True,
            prompt_continuation="  ",
            key_bindings=self._bindings(),
            history=self._history,
            completer=CommandCompleter(),
            complete_while_typing=Condition(self._types_command),
            enable_suspend=True,
            output=create_output(output),
        )
        self._session.default_buffer.on_text_changed += self._typed

    def read(self, text: str = "") -> str:
        """Read a message or a command; see `Reader`."""
        self._changes_text = bool(text)
        # a terminal that sends no UTF-8 gives surrogates for its bytes
        line = replace_surrogates(self._session.prompt(default=text))
        self._interrupts.in_a_row = 0
        if self._notes_problem and self._history is not None and self._history.problem is not None:
            self._notes_problem = False
            show_note(f"what you type is not remembered in later chats: {self._history.problem}")
        return line

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep what is typed while the block runs from the screen, for the next call of `read`.

        Ctrl-C still sends SIGINT.
        """
        if sys.platform == "win32":
            yield
            return
        import termios

        before = termios.tcgetattr(sys.stdin)
        held = termios.tcgetattr(sys.stdin)
        held[0] &= ~termios.ICRNL  # Enter stays another key than Ctrl-J
        held[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        held[3] |= termios.NOFLSH  # Ctrl-C drops neither what was typed nor what is being printed
        termios.tcsetattr(sys.stdin, termios.TCSANOW, held)
        try:
            self._output.write(PASTE_IS_BRACKETED)
            self._output.flush()
            yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)

    def _typed(self, buffer: Buffer) -> None:
        if buffer.text:
            self._interrupts.in_a_row = 0

    def _types_command(self) -> bool:
        return self._session.default_buffer.text.startswith("/")

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        edits = has_focus(DEFAULT_BUFFER)  # and does not search the history

        @bindings.add("enter", filter=edits)
        def send(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @bindings.add("escape", "enter", filter=edits)
        def begin_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @bindings.add("c-c", filter=edits)
        @bindings.add("<sigint>")
        def interrupt(event: KeyPressEvent) -> None:
            buffer = event.app.current_buffer
            if buffer.text and not self._changes_text:
                buffer.reset(append_to_history=True)  # the text is dropped, and ↑ brings it back
                self._interrupts.in_a_row = 1
            else:
                self._interrupts.in_a_row += 1
                event.app.exit(exception=KeyboardInterrupt())

        return bindings


class CommandCompleter(Completer):
    """Completes the names of commands, of files for them, and of settings."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield the completions of the text before the cursor."""
        command, space, rest = document.text_before_cursor.partition(" ")
        if not space:
            for name, (_, summary) in COMMANDS.items():
                if command.startswith("/") and name.startswith(command):
                    yield Completion(name, -len(command), display_meta=summary)
        elif command in FILE_COMMANDS:
            yield from self._paths.get_completions(Document(rest), complete_event)
        elif command == "/set":
            yield from (Completion(name, -len(rest)) for name in NAMES if name.startswith(rest))
