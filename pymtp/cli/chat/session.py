"""A chat: its messages, and the turns that add to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

from pymtp.chat import Chat, Message, assistant_message
from pymtp.chat.images import NO_PROJECTOR
from pymtp.chat.prompt import ChatPrompt
from pymtp.cli.chat.answer import AnswerPrinter
from pymtp.cli.chat.images import Part, images_of, read_image, text_of, with_images
from pymtp.cli.chat.interrupts import Interrupts
from pymtp.cli.chat.reader import Reader
from pymtp.cli.chat.settings import ChatSettings
from pymtp.cli.completion import note_unused_prefix, print_figures
from pymtp.cli.model_file import show_note
from pymtp.cli.screen import screen, show_error, show_remark
from pymtp.engine.prepare import apply_thinking_budget
from pymtp.engine.request import Completion
from pymtp.engine.stream import Stream
from pymtp.errors import ClosedError, ContextFullError, InvalidRequestError, PymtpError
from pymtp.images import Image
from pymtp.llm import LLM
from pymtp.sampling import SamplingParams

MAKE_ROOM = "/clear or /edit makes room"
MAX_COUNTED = 2**20  # characters of a refused message whose tokens are counted: 0.2 to 1.3 seconds


class ChatSession:
    """A chat with a model. A turn that fails leaves the messages as they were.

    messages: the messages so far, in OpenAI's form. settings: sampling and thinking.
    """

    def __init__(
        self,
        llm: LLM,
        settings: ChatSettings,
        interrupts: Interrupts,
        reader: Reader,
        prefix: Path | None = None,
    ) -> None:
        """prefix: a prefix file, for a note if the first prompt does not begin with it."""
        self.settings = settings
        self.messages: list[Message] = []
        self._llm, self._interrupts, self._reader = llm, interrupts, reader
        self._prefix = prefix
        self._n_regenerated = 0  # how often the last message was answered again
        self._images: list[Part] = []  # those that the next message gets
        self._keeps_images = True  # whether a message that takes the place of the last one gets those of that one

    @property
    def system(self) -> str | None:
        """Return the text of the system message; None if there is none."""
        first = self.messages[0] if self.messages else {}
        return _text(first) if first.get("role") in ("system", "developer") else None

    @property
    def last_message(self) -> str | None:
        """Return the text of the user's last message; None if there is none."""
        at = self._last_user()
        return None if at is None else _text(self.messages[at])

    def clear(self) -> None:
        """Drop all messages but the system message, and the images that no message has yet."""
        self.messages = self.messages[: self.system is not None]
        self._images, self._keeps_images = [], True

    def replace_messages(self, messages: list[Message]) -> None:
        """Continue another chat.

        Raises InvalidRequestError, and keeps the messages, if the template refuses the new ones or they are too long.
        """
        if messages:
            n_tokens, n_ctx = len(self._prompt(messages).tokens), self._llm.context.n_ctx
            if n_tokens > n_ctx:
                raise ContextFullError(f"the chat would have {n_tokens} tokens, n_ctx is {n_ctx}")
        self.messages = messages

    def set_system(self, text: str) -> None:
        """Set the system message; "" removes it. Raises the errors of `replace_messages`."""
        rest = self.messages[self.system is not None :]
        self.replace_messages([{"role": "system", "content": text}, *rest] if text else rest)

    def attach(self, path: Path) -> Image:
        """Read an image, which the next message gets.

        Raises InvalidRequestError for a file that is no image, and for a model that cannot see.
        """
        if not self._llm.sees_images:
            raise InvalidRequestError(NO_PROJECTOR)
        image, part = read_image(path)
        images = self._llm.chat_prompts.collect_images()
        assert images is not None
        images.add(part)  # refuses what the model cannot see now, and not with each message
        self._images.append(part)
        return image

    def detach(self) -> None:
        """Drop the images that no message has yet; a message that takes the place of the last one gets none of it."""
        self._images, self._keeps_images = [], False

    def ask(self, text: str, *, edited: bool = False) -> None:
        """Answer a message of the user, which gets the attached images. If there is no answer, they stay attached.

        edited: whether the message takes the place of the last one. It has the images of that one, too, unless
            `detach` was called.
        """
        at = self._last_user() if edited else None
        kept = images_of(self.messages[at].get("content")) if at is not None and self._keeps_images else []
        images = [*kept, *self._images]
        message = {"role": "user", "content": with_images(images, text)}
        if self._answer([*self.messages[:at], message], self.settings.params):
            self._n_regenerated, self._images, self._keeps_images = 0, [], True

    def regenerate(self) -> None:
        """Answer the user's last message again: with a given seed, with the seed that follows it.

        Raises InvalidRequestError if there is no message.
        """
        if (at := self._last_user()) is None:
            raise InvalidRequestError("there is no message to answer")
        params, n = self.settings.params, self._n_regenerated + 1
        if params.seed is not None:
            params = replace(params, seed=(params.seed + n) % 2**64)
        if self._answer(self.messages[: at + 1], params):
            self._n_regenerated = n

    def _last_user(self) -> int | None:
        users = (i for i, message in enumerate(self.messages) if message["role"] == "user")
        return max(users, default=None)

    def _prompt(self, messages: list[Message]) -> ChatPrompt:
        chat = Chat(messages, None, self.settings.template_kwargs)
        return self._llm.chat_prompts.prompt(apply_thinking_budget(chat, self.settings.params))

    def _answer(self, conversation: list[Message], params: SamplingParams) -> bool:
        """Print an answer to a conversation, and make both the chat.

        Returns whether there is an answer. There is none if the prompt is refused, or if the turn ends before its first
        text.
        """
        before = self._interrupts.in_a_row

        def interrupted() -> bool:
            return self._interrupts.in_a_row > before

        with self._interrupts.turn(), self._reader.turn():
            try:
                prompt = self._prompt(conversation)
                stream = self._llm.stream(prompt, params)
            except InvalidRequestError as error:
                show_error(self._refusal(error, conversation))
                return False
            printer = AnswerPrinter(self._llm.template_source, prompt)
            with stream:
                text, failure = _print_answer(stream, printer, interrupted)
            if failure is not None:
                show_error(failure)
            if not text and (failure is not None or interrupted()):
                show_remark("ended before the first word; the chat is as it was")
                return False
            self.messages = [*conversation, assistant_message(text, prompt.end)]
            if failure is None:
                self._print_end(stream.completion, interrupted=interrupted())
            return True

    def _print_end(self, completion: Completion, *, interrupted: bool) -> None:
        """Print the figures of an answer, and notes about its end."""
        print_figures(completion)
        if interrupted:
            show_remark("ended by Ctrl-C; the chat keeps what is written. Ctrl-C again leaves")
        n_ctx = self._llm.context.n_ctx
        if completion.finish_reason == "length" and completion.stats.prompt_tokens + len(completion.token_ids) >= n_ctx:
            show_note(f"the context of {n_ctx} tokens is full: {MAKE_ROOM}")
        note_unused_prefix(self._prefix, completion)
        self._prefix = None  # one note is enough: later prompts continue from this turn, not from the file

    def _refusal(self, error: InvalidRequestError, conversation: list[Message]) -> str:
        """Return the message about a conversation that cannot be answered."""
        if not isinstance(error, ContextFullError):
            return f"{error}; the message is not in the chat"
        text = _text(conversation[-1])
        if len(text) <= MAX_COUNTED:
            size = f"{len(self._llm.model.tokenize(text))} tokens"
        else:
            size = f"{len(text)} characters"
        return f"{error}. Your message has {size}; it is not in the chat, where {MAKE_ROOM}"


def _print_answer(
    stream: Stream, printer: AnswerPrinter, interrupted: Callable[[], bool]
) -> tuple[str, PymtpError | None]:
    """Print an answer until it ends or is interrupted.

    Returns the printed text, and the error that ended it. Raises ClosedError, since no turn can follow.
    """
    pieces: list[str] = []
    try:
        with screen.status("reading the prompt …"):
            first = next(stream, None)
        for piece in chain([] if first is None else [first], stream):
            if interrupted():  # the stream is some pieces ahead
                break
            pieces.append(piece.text)
            printer.print(piece.text)
    except ClosedError:
        raise
    except PymtpError as error:
        printer.finish()
        print()
        return "".join(pieces), error
    printer.finish()
    return "".join(pieces), None


def _text(message: Message) -> str:
    return text_of(message.get("content"))
