"""The commands that begin with a slash: what each does in a chat."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from pymtp.cli.chat.files import load_chat, save_chat
from pymtp.cli.chat.reader import Reader
from pymtp.cli.chat.session import ChatSession
from pymtp.cli.chat.slash_words import COMMANDS, OTHER_NAMES
from pymtp.cli.screen import screen, show_error, show_remark
from pymtp.errors import InvalidRequestError
from pymtp.validation import is_path

KEYS = (
    ("Enter", "sends the message"),
    ("Alt-Enter", "begins a new line"),
    ("↑ ↓ Ctrl-R", "find what was typed before"),
    ("Tab", "completes commands and files"),
    ("Ctrl-C", "ends a turn, or empties the line; twice, the program"),
    ("Ctrl-D", "leaves"),
)


class SlashCommands:
    """Runs commands in a chat."""

    def __init__(self, session: ChatSession, reader: Reader) -> None:
        """reader: offers the text that /edit changes."""
        self._session, self._reader = session, reader
        self._methods: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/clear": self._clear,
            "/regen": self._regen,
            "/edit": self._edit,
            "/save": self._save,
            "/load": self._load,
            "/set": self._set,
            "/system": self._system,
            "/image": self._image,
            "/exit": self._exit,
        }
        assert self._methods.keys() == COMMANDS.keys()

    def run(self, name: str, argument: str) -> None:
        """Run a command. An error is printed, and changes nothing. Raises EOFError to leave the chat."""
        name = OTHER_NAMES.get(name, name)
        try:
            if name not in self._methods:
                raise InvalidRequestError(
                    f"there is no {name}: /help lists the commands. A space before it makes a message"
                )
            if argument and not COMMANDS[name][0]:
                raise InvalidRequestError(f"{name} takes no argument")
            self._methods[name](argument)
        except InvalidRequestError as error:
            show_error(error)

    def _help(self, _: str) -> None:
        _print_rows([(f"{name} {arguments}".rstrip(), summary) for name, (arguments, summary) in COMMANDS.items()])
        screen.print()
        _print_rows(KEYS)

    def _clear(self, _: str) -> None:
        self._session.clear()
        show_remark("a new chat")

    def _regen(self, _: str) -> None:
        self._session.regenerate()

    def _edit(self, text: str) -> None:
        if (last := self._session.last_message) is None:
            raise InvalidRequestError("there is no message to change")
        if not text and not self._reader.can_edit:
            raise InvalidRequestError("/edit TEXT: give the message that takes the place of the last one")
        if not text:
            try:
                text = self._reader.read(last)
            except (KeyboardInterrupt, EOFError):
                text = ""
        if text.strip():
            self._session.ask(text, edited=True)
        else:
            show_remark("the message is as it was")

    def _save(self, name: str) -> None:
        file = _read_file_name("/save", name)
        if not self._session.messages:
            raise InvalidRequestError("there are no messages to save")
        save_chat(file, self._session.messages)
        show_remark(f"{_count(self._session)} in {file}")

    def _load(self, name: str) -> None:
        file = _read_file_name("/load", name)
        self._session.replace_messages(load_chat(file))
        show_remark(f"{_count(self._session)} from {file}")

    def _set(self, text: str) -> None:
        name, value = (*re.split("[ =]", text, maxsplit=1), "")[:2]
        settings = self._session.settings
        if not name:
            _print_rows(settings.rows())
        elif not value.strip():
            raise InvalidRequestError(f"/set {name} VALUE: give a value; /set shows all")
        else:
            show_remark(settings.set(name, value.strip()))

    def _system(self, text: str) -> None:
        if text:
            self._session.set_system("" if text == "-" else text)
        show_remark(f"system message: {self._session.system}" if self._session.system else "no system message")

    def _image(self, name: str) -> None:
        if name == "-":
            self._session.detach()
            show_remark("the next message has no image, nor has one that /edit changes")
            return
        file = _read_file_name("/image", name)
        image = self._session.attach(file)
        show_remark(f"{file.name}, {image.width} x {image.height} pixels: the next message has it")

    def _exit(self, _: str) -> None:
        raise EOFError


def _read_file_name(command: str, name: str) -> Path:
    """Return the path of a file, with "~" expanded. Raises InvalidRequestError if there is none."""
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        name = name[1:-1]
    if not is_path(name):
        raise InvalidRequestError(f"{command} FILE: give the name of a file")
    return Path(os.path.expanduser(name))


def _count(session: ChatSession) -> str:
    n = len(session.messages)
    return f"{n} message{'s' * (n != 1)}"


def _print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Print rows whose last columns are wrapped where the terminal is narrow."""
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*map(Text, row))
    screen.print(table)
