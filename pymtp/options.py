"""The options of an LLM: one frozen object, which checks its values when it is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, Literal, ParamSpec, cast

from pymtp.chat import read_template, read_variables
from pymtp.context.gpu_layers import projector_device
from pymtp.context.options import ContextOptions
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.model.names_elsewhere import OPTION_NAMES_ELSEWHERE
from pymtp.model.options import ModelOptions, file_size, read_file
from pymtp.sampling import SamplingParams
from pymtp.validation import names_keywords, read_bool, read_int, read_path, refuse_unknown

Keywords = ParamSpec("Keywords")
MAX_IMAGE_TOKENS = 2**16
NAMES_ELSEWHERE = {
    **dict.fromkeys((field.name for field in fields(SamplingParams)), "give it to each call, or to SamplingParams"),
    **OPTION_NAMES_ELSEWHERE,
}


@names_keywords(NAMES_ELSEWHERE)
@dataclass(frozen=True, kw_only=True)
class LLMOptions(ModelOptions, ContextOptions):
    """The options of an LLM: its keywords. Those of its model and of its context are fields of the two base classes.

    Values are checked when the object is made, on any machine; `check_machine` checks what the machine must have. Lists
    and iterators become tuples, a template's path becomes its text, and numbers become Python's.

    model: a GGUF file; a name of the Hugging Face hub ("hf:OWNER/NAME"), which `pymtp.load.load` downloads; None for
        the small model that ships with pymtp. Or a loaded Model, which several LLMs may share: close() leaves it open,
        and it has its own ModelOptions.
    draft_tokens: tokens to draft in each round, 0 for plain decoding. "auto" chooses the number for each round from
        the measured acceptance and the measured time of rounds: from 0 to 7 (fewer where n_batch or n_ubatch is
        less than 8), and 0 without a multi-token-prediction head. The first LLM of a model with "auto" times a few
        decodes.
    draft_text: the largest number of drafts per round that come from the text so far, where its end has occurred
        before: in the prompt, in the output, or in earlier outputs. It needs draft_tokens="auto"; without a head, all
        drafts come from there. "auto" for 31 (15 with more than four sequences, 0 with a fixed draft_tokens); 0 for
        none.
    cache_prompt: reuse the cached state of earlier prompts and completions for prompts that begin with the same
        tokens.
    cache_bytes: bytes of host memory for cached states that no sequence holds any more, a quarter of them at most for
        encoded images. None for a quarter of the
        machine's memory, at most 8 GiB and at most half of the memory that the model leaves free. With 0, prompts
        reuse only the states that sequences hold.
    mmproj: the file of the model's projector, "mmproj-….gguf", with which chats may have images. None or False for
        none; but for a model of the hub, None means the projector of its repository.
    mmproj_offload: run the projector on a GPU, if there is one.
    image_min_tokens, image_max_tokens: the fewest and the most tokens of an image, which is scaled to them. None for 8
        and 4,096, or for the other bound where that is beyond.
    chat_template: a chat template in place of the file's own: Jinja source, or the path of a file with it.
    chat_template_kwargs: default variables of the template, such as {"enable_thinking": False}; a chat may override
        them.

    Raises InvalidRequestError for values outside their range.
    """

    model: str | os.PathLike[str] | Model | None = field(default=None, kw_only=False)
    draft_tokens: int | Literal["auto"] = "auto"
    draft_text: int | Literal["auto"] = "auto"
    cache_prompt: bool = True
    cache_bytes: int | None = None
    mmproj: str | os.PathLike[str] | Literal[False] | None = None
    mmproj_offload: bool = True
    image_min_tokens: int | None = None
    image_max_tokens: int | None = None
    chat_template: str | os.PathLike[str] | None = None
    chat_template_kwargs: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        ContextOptions.__post_init__(self)
        ModelOptions.__post_init__(self)
        if self.draft_text and self.draft_text != "auto" and self.draft_tokens != "auto":
            raise InvalidRequestError(f'draft_text={self.draft_text} needs draft_tokens="auto"', "draft_text")
        cache_bytes = None if self.cache_bytes is None else read_int("cache_bytes", self.cache_bytes, 0, 2**63 - 1)
        self._read_image_tokens()
        for name, value in (
            ("model", _read_model(self.model)),
            ("cache_prompt", read_bool("cache_prompt", self.cache_prompt)),
            ("cache_bytes", cache_bytes),
            (
                "mmproj",
                self.mmproj if self.mmproj is None or self.mmproj is False else str(read_path("mmproj", self.mmproj)),
            ),
            ("mmproj_offload", read_bool("mmproj_offload", self.mmproj_offload)),
            ("chat_template", read_template(self.chat_template)),
            ("chat_template_kwargs", read_variables(self.chat_template_kwargs)),
        ):
            object.__setattr__(self, name, value)

    def _read_image_tokens(self) -> None:
        for name in ("image_min_tokens", "image_max_tokens"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_int(name, value, 1, MAX_IMAGE_TOKENS))
        least, most = self.image_min_tokens, self.image_max_tokens
        if least is not None and most is not None and least > most:
            raise InvalidRequestError(
                f"image_min_tokens={least} is more than image_max_tokens={most}", "image_min_tokens"
            )

    def check_machine(self) -> None:
        """Extend ModelOptions.check_machine: the projector's file must be there, too."""
        super().check_machine()
        self.mmproj_bytes()

    def mmproj_bytes(self) -> int:
        """Return the bytes of the projector's file, 0 without one. Raises ModelLoadError if it cannot be read."""
        return read_file("projector", str(self.mmproj), file_size) if self.mmproj else 0

    def projector_memory(self) -> dict[str | None, int]:
        """Return the bytes of the projector's weights by the GPU that holds them, None for the host; {} without one.

        Raises ModelLoadError if the file cannot be read.
        """
        return {projector_device(offload=self.mmproj_offload): self.mmproj_bytes()} if self.mmproj else {}

    @property
    def template_source(self) -> str | None:
        """Return the source of `chat_template`."""
        return cast("str | None", self.chat_template)  # __post_init__ has read a path's file

    @property
    def takes_head(self) -> bool:
        """Return whether the head must be loaded: for drafts, and for adapters, which may have tensors of the head."""
        return self.draft_tokens != 0 or bool(self.adapters)


OPTION_NAMES = frozenset(field.name for field in fields(LLMOptions)) - {"model"}


def read_options(caller: str, model: Any, keywords: Mapping[str, Any]) -> LLMOptions:
    """Make the options of an LLM from the arguments of a call.

    caller: the called function, for the message about an unknown keyword.

    Raises TypeError for an unknown keyword; InvalidRequestError for values outside their range, and for options of
    loading a model where `model` is a Model that is loaded already.
    """
    refuse_unknown(caller, keywords, OPTION_NAMES, NAMES_ELSEWHERE, also=("model",))
    options = LLMOptions(model, **keywords)
    if isinstance(model, Model):
        loading = {field.name for field in fields(ModelOptions)}
        if late := [name for name, value in keywords.items() if name in loading and value is not None]:
            raise InvalidRequestError(f"the Model is loaded already: give {', '.join(late)} to Model(…)")
    return options


def takes_keywords(
    options: Callable[Keywords, LLMOptions],
) -> Callable[[Callable[[Any, LLMOptions], None]], Callable[Concatenate[Any, Keywords], None]]:
    """Decorate a constructor that takes LLMOptions: it then takes their fields as keywords, also for type checkers."""

    def decorate(init: Callable[[Any, LLMOptions], None]) -> Callable[Concatenate[Any, Keywords], None]:
        caller = f"{init.__qualname__.partition('.')[0]}()"

        @wraps(init)
        def construct(self: Any, model: Any = None, **keywords: Any) -> None:
            init(self, read_options(caller, model, keywords))

        of_self, of_options = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), signature(options)
        construct.__signature__ = of_options.replace(  # type: ignore[attr-defined]
            parameters=[of_self, *of_options.parameters.values()]
        )
        return cast(Callable[Concatenate[Any, Keywords], None], construct)

    return decorate


def _read_model(model: object) -> str | Model | None:
    """Return the model's path as a string; a Model and None unchanged. Raises InvalidRequestError for other values."""
    if model is None or isinstance(model, (str, Model)):
        return model
    with suppress(TypeError):  # __fspath__ may raise it
        if isinstance(model, os.PathLike) and isinstance(path := os.fspath(model), str):
            return path
    raise InvalidRequestError(f"a model must be a path or a Model, not {type(model).__name__}")
