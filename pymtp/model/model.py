"""A GGUF model: weights, metadata, vocabulary."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pymtp.errors import ClosedError, InvalidRequestError, ModelLoadError, NativeError
from pymtp.model.files import digest_of, inspect
from pymtp.model.normalization import NFC_PRE_TOKENIZERS, Normalizer
from pymtp.model.options import NAMES, ModelOptions, use_numa
from pymtp.native import check, ends_before_exit, ffi, last_error, lib
from pymtp.native.build_info import warn_without_gpu
from pymtp.native.locking import refuse_copies, tell_of_forks
from pymtp.validation import is_hub_name, shown

_logger = logging.getLogger("pymtp.model")
_FAILED = -(2**31)  # what native functions that return a number of tokens or bytes say when llama.cpp fails
_MOST_NORMS = 16
TAPS = ("post_norm", "pre_norm")  # in the order of enum pymtp_tap


def demo_model() -> Path:
    """The small model that ships inside the package."""
    return Path(__file__).parent / "demo.gguf"


def _file(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there."""
    if isinstance(path, str) and not path:  # as a Path it would be the folder that the process is in
        raise InvalidRequestError("a model's path is empty")
    try:
        file = Path(path)
        found, is_file = file.exists(), file.is_file()
    except TypeError as error:
        raise InvalidRequestError(f"a model is a path or a Model, not {type(path).__name__}") from error
    except OSError as error:  # such as a name that is too long
        raise ModelLoadError(f"no such file: {os.fspath(path)!r:.200}: {error.strerror}") from error
    if not is_file:
        meant = "; from_pretrained takes names of the hub" if isinstance(path, str) and is_hub_name(path) else ""
        raise ModelLoadError(f"not a file: {file}" if found else f"no such file: {file}{meant}")
    return file


class _Loaded(NamedTuple):
    """A C handle, and pointers to what lives as long as it does. Calls keep a reference to the whole while they use a
    part, so that close() in another thread frees nothing under them."""

    handle: Any
    model: Any
    vocab: Any


class Model:
    """A qwen35, qwen35moe or qwen3next GGUF, loaded. Split files: name the first part.

    Threads may use it at the same time, and LLMs and contexts may share it. close() does not wait: the last of them, or
    the last call, frees the memory. Methods raise ClosedError after it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        n_gpu_layers: int = -1,
        mtp: bool = True,
        vocab_only: bool = False,
        **placing: Any,
    ) -> None:
        """
        path: the file; None for the model that ships with pymtp.
        n_gpu_layers: layers to keep on a GPU, -1 for all. Where a build with CUDA finds no GPU, a warning says so once.
        mtp: load the multi-token-prediction head, where the file has one. Where the file announces one that it has not,
            a warning says so.
        vocab_only: metadata and vocabulary only, for looking at a file.
        placing: other fields of ModelOptions.

        Raises ModelLoadError for a file that is missing, truncated, not a GGUF, or not a model that pymtp runs, and for
        one that is replaced meanwhile; InvalidRequestError for a path that is none and for options that are refused.
        """
        if unknown := placing.keys() - NAMES:
            raise TypeError(f"Model() got an unexpected keyword argument {min(unknown)!r}")
        self.options = ModelOptions(n_gpu_layers=n_gpu_layers, **placing)
        layers = self.options.layers
        self.path = _file(demo_model() if path is None else path)
        self.options.find_files()
        self.head = str(self.options.head) if mtp and self.options.head is not None else None
        # before all else: later the paths may be other files'
        digests = None if vocab_only else self._read_digests()
        info = inspect(self.path, self.head)
        self.architecture: str = ffi.string(info.architecture).decode()
        self.n_layer: int = info.n_layer
        self.n_embd: int = info.n_embd
        self.n_ctx_train: int = info.n_ctx_train
        self.weight_type: str = ffi.string(info.weight_type).decode()
        self.has_head: bool = info.n_layer_mtp > 0
        # why a head that the file announces is not there, "" where it is or none is announced
        self.head_absent: str = ffi.string(info.head_absent).decode("utf-8", "replace")
        self.mtp: bool = self.has_head and mtp
        # heads of Qwen3-Next, 3.5 and 3.6 were trained on post-norm rows
        self.tap: str = TAPS[max(0, info.tap)]
        if layers != 0 and not vocab_only:
            warn_without_gpu()
        self.lora_digest = "" if vocab_only else self.options.lora_digest()
        if not vocab_only:
            use_numa(self.options.numa)
        options, _kept = self.options.native(mtp=self.mtp, vocab_only=vocab_only, layers=layers)
        loading = threading.RLock()
        ends_before_exit(loading)
        with loading:
            handle = lib.pymtp_model_load(os.fsencode(self.path), options)
        if handle == ffi.NULL:
            raise ModelLoadError(f"{self.path}: {last_error()}")
        handle = ffi.gc(handle, lib.pymtp_model_free)
        check(lib.PYMTP_OK)
        if digests is not None:
            for file, before, after in zip((self.path, self.head), digests, self._read_digests(), strict=True):
                if before != after:
                    raise ModelLoadError(f"{file}: the file was replaced while it was loaded")
        self._digests = digests
        if self.head_absent and mtp and not vocab_only:
            _logger.warning("%s: %s. It is decoded without drafts", self.path.name, self.head_absent)
        model = lib.pymtp_model_get(handle)
        vocab = lib.llama_model_get_vocab(model)
        self._loaded: _Loaded | None = _Loaded(handle, model, vocab)
        self.n_vocab: int = lib.llama_vocab_n_tokens(vocab)
        self.n_params: int = lib.llama_model_n_params(model)
        self._pieces: dict[int, bytes] = {}
        self.measuring = threading.RLock()  # a signal handler may open an LLM meanwhile
        self.first_costs: dict[Hashable, Any] = {}  # under that lock, see first_costs.py
        tell_of_forks(self)

    def leave_behind(self) -> None:
        """Of forks.Left."""
        self.measuring = threading.RLock()

    @property
    def handle(self) -> Any:
        """The C handle, for context.py. Raises ClosedError after close()."""
        return self._open().handle

    def _open(self) -> _Loaded:
        loaded = self._loaded
        if loaded is None:
            raise ClosedError("the model is closed")
        return loaded

    def close(self) -> None:
        """Lets go of the weights. Harmless when called twice."""
        self._loaded = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The GGUF's scalar metadata, values as text."""
        loaded = self._open()

        def read(function: Any, i: int) -> str:
            size = function(loaded.model, i, ffi.NULL, 0) + 1
            text = ffi.new("char[]", size)
            function(loaded.model, i, text, size)
            return str(ffi.string(text).decode("utf-8", "replace"))

        return {
            read(lib.llama_model_meta_key_by_index, i): read(lib.llama_model_meta_val_str_by_index, i)
            for i in range(lib.llama_model_meta_count(loaded.model))
        }

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja source of the file's chat template."""
        loaded = self._open()
        text = lib.llama_model_chat_template(loaded.model, ffi.NULL)
        return None if text == ffi.NULL else str(ffi.string(text).decode("utf-8", "replace"))

    @property
    def digest(self) -> str:
        """A hash that tells models apart: of what the file says of itself (metadata, vocabulary, names, types and
        shapes of tensors) and of samples of its weights; of all parts of a split model. Of the file as it was
        just before it was loaded, whatever its path means by now; with vocab_only, of the one that is there. Reads a
        few MiB.

        Raises ModelLoadError where the file is not there any more.
        """
        return (self._digests or self._read_digests())[0]

    @property
    def file_names(self) -> str:
        """The model's file for messages and reports, "m.gguf + mtp-m.gguf" where the head has a file of its own."""
        return self.path.name if self.head is None else f"{self.path.name} + {Path(self.head).name}"

    @property
    def head_digest(self) -> str:
        """The same of the head's file, "" where the head is none of a file of its own."""
        return (self._digests or self._read_digests())[1]

    def _read_digests(self) -> tuple[str, str]:
        return digest_of(self.path), "" if self.head is None else digest_of(Path(self.head))

    @cached_property
    def head_norms(self) -> dict[str, float]:
        """Of a head that is loaded: the means of its norms' weights, by the names of their tensors."""
        norms = ffi.new("struct pymtp_head_norm[]", _MOST_NORMS)
        n = lib.pymtp_head_norms(self._open().handle, norms, _MOST_NORMS)
        if n < 0:
            raise NativeError(last_error())
        return {ffi.string(norm.name).decode(): float(norm.mean) for norm in norms[0:n]}

    @property
    def eos_token(self) -> str:
        """The text of the end-of-sequence token, "" if the vocabulary has none."""
        return self._special_text(lib.llama_vocab_eos)

    @property
    def bos_token(self) -> str:
        """The text of the begin-of-sequence token, "" if the vocabulary has none."""
        return self._special_text(lib.llama_vocab_bos)

    def _special_text(self, which: Any) -> str:
        token = which(self._open().vocab)
        return "" if token < 0 else self.token_text(token)

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of `text`, in the form that normalized() gives it. Special tokens written out in it are taken as
        such. add_special: what the model wants around a text (BOS), if anything. Raises InvalidRequestError for text
        that UTF-8 cannot hold."""
        loaded = self._open()
        data = _utf8(self.normalized(text))
        capacity = len(data) + 16
        tokens = ffi.new("llama_token[]", capacity)
        n = lib.pymtp_tokenize(loaded.handle, data, len(data), tokens, capacity, add_special)
        if n == _FAILED:
            raise NativeError(last_error())
        if n < 0:
            raise InvalidRequestError(f"the text cannot be tokenized, {-n} tokens for {len(data)} bytes")
        return list(ffi.unpack(tokens, n))

    def normalized(self, text: str) -> str:
        """Bring `text` to the form that the tokenizer of the model's makers brings it to: NFC, between the special
        tokens written out in it, for vocabularies of Qwen; as it is for others. Texts that are NFC cost no copy."""
        if not isinstance(text, str) or text.isascii() or self._normalizer is None:
            return text
        return self._normalizer.normalized(text)

    @cached_property
    def _normalizer(self) -> Normalizer | None:
        if self.metadata.get("tokenizer.ggml.pre") not in NFC_PRE_TOKENIZERS:
            return None
        vocab = self._open().vocab
        special = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_USER_DEFINED | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        named = (token for token in range(self.n_vocab) if lib.llama_vocab_get_attr(vocab, token) & special)
        return Normalizer(map(self.token_text, named))

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token stands for in text. Control tokens other than the marks of answers, such as <think>,
        stand for none; with special, for the text that becomes them. Raises InvalidRequestError for an id outside the
        vocabulary. A character may be spread over several tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            self.check_tokens([token])
            self._pieces[token] = piece = self._read_piece(token)
        return self.token_text(token).encode() if special and not piece else piece

    def token_text(self, token: int) -> str:
        """How the vocabulary writes a token: text that becomes a control token is this. Raises InvalidRequestError for
        an id outside the vocabulary."""
        self.check_tokens([token])
        return str(ffi.string(lib.llama_vocab_get_text(self._open().vocab, token)).decode("utf-8", "replace"))

    def _read_piece(self, token: int) -> bytes:
        loaded = self._open()
        capacity = 64
        while True:
            piece = ffi.new("char[]", capacity)
            n = lib.pymtp_token_piece(loaded.handle, token, piece, capacity)
            if n >= 0:
                return bytes(ffi.buffer(piece, n))
            if n == _FAILED:
                raise NativeError(last_error())
            capacity = -n

    def detokenize(self, tokens: list[int], *, special: bool = False) -> str:
        """The text of `tokens`; bytes that are no UTF-8 become U+FFFD. special: with the control tokens among them, as
        they are written. Raises InvalidRequestError for an id outside the vocabulary."""
        return b"".join(self.token_bytes(token, special=special) for token in tokens).decode("utf-8", "replace")

    def grammar(self, text: str) -> Any:
        """The C handle of a grammar in GBNF, a context manager that frees it. Raises InvalidRequestError, with
        the reason, for one that is refused."""
        handle = lib.pymtp_grammar_init(self.handle, _utf8(text))
        if handle == ffi.NULL:
            raise InvalidRequestError(last_error())
        return ffi.gc(handle, lib.pymtp_grammar_free)

    def ends_generation(self, token: int) -> bool:
        """Whether the model says with this token that it is done (EOS, end of turn). False for ids outside the
        vocabulary."""
        loaded = self._open()
        try:
            return bool(lib.llama_vocab_is_eog(loaded.vocab, token))
        except OverflowError:
            return False

    def check_tokens(self, tokens: list[int]) -> None:
        """Raises InvalidRequestError unless every id is in the vocabulary."""
        self._open()
        for token in tokens:
            if not 0 <= token < self.n_vocab:
                raise InvalidRequestError(f"token id {shown(token)} is outside the vocabulary of {self.n_vocab}")


def _utf8(text: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidRequestError(f"a text is a str, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is no valid Unicode: {error}") from error
