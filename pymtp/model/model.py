"""The Model: the weights, metadata and vocabulary of a GGUF file."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pymtp.errors import ClosedError, ContextFullError, InvalidRequestError, ModelLoadError, NativeError
from pymtp.model.files import file_digest, read_file_info
from pymtp.model.names_elsewhere import OPTION_NAMES_ELSEWHERE
from pymtp.model.normalization import NFC_PRE_TOKENIZERS, Normalizer
from pymtp.model.options import ModelOptions, init_numa
from pymtp.native import check, ends_before_exit, ffi, last_error, lib
from pymtp.native.build_info import warn_without_gpu
from pymtp.native.process import refuse_copies, tell_of_forks
from pymtp.validation import given_options, is_hub_name, shown

_logger = logging.getLogger("pymtp.model")
_FAILED = -(2**31)  # native functions that return a number of tokens or bytes return this when llama.cpp fails
_MAX_NORMS = 16
# Normalization may shorten a text: the bytes after it are more than this share of the characters before it
MIN_NORMALIZED = 1 / 2
_MAX_BREAKERS = 8  # lists of DRY's breakers that are kept
TAPS = ("post_norm", "pre_norm")  # in the order of enum pymtp_tap


def demo_model() -> Path:
    """Return the path of the small model that ships with the package."""
    return Path(__file__).parent / "demo.gguf"


def _file(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path.

    Raises ModelLoadError if there is no such file, InvalidRequestError if `path` is not a path.
    """
    if isinstance(path, str) and not path:  # Path("") is the current folder
        raise InvalidRequestError("a model's path is empty")
    try:
        file = Path(path)
        exists, is_file = file.exists(), file.is_file()
    except TypeError as error:
        raise InvalidRequestError(f"a model must be a path or a Model, not {type(path).__name__}") from error
    except OSError as error:  # such as a name that is too long
        raise ModelLoadError(f"no such file: {os.fspath(path)!r:.200}: {error.strerror}") from error
    if not is_file:
        hint = "; from_pretrained takes names of the hub" if isinstance(path, str) and is_hub_name(path) else ""
        raise ModelLoadError(f"not a file: {file}" if exists else f"no such file: {file}{hint}")
    return file


class _Loaded(NamedTuple):
    """The C handle of a model, and pointers into it that live as long.

    A call keeps a reference to the tuple while it uses a part, so that close() in another thread frees nothing that the
    call uses.
    """

    handle: Any
    model: Any
    vocab: Any


class Model:
    """A loaded GGUF model of the architectures qwen35, qwen35moe or qwen3next.

    Several threads may use it at the same time, and several LLMs and contexts may share it. close() does not wait: the
    memory is freed with the last LLM, context or call that uses it. Methods raise ClosedError after close().

    options: the ModelOptions that the model was loaded with.
    path: the path of the model's file; for a split model, of its first part.
    head: the path of the head's file, or None if the head has no file of its own.
    architecture, n_layer, n_embd, n_ctx_train, n_vocab, n_params, weight_type: properties of the model, read from its
        file.
    has_head: whether the files hold a multi-token-prediction head.
    mtp: whether the head is loaded.
    head_absent: the reason why a head that the file announces is missing, or "".
    tap: the hidden states that the head was trained on, one of TAPS.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        mtp: bool = True,
        vocab_only: bool = False,
        options: ModelOptions | None = None,
        **keywords: Any,
    ) -> None:
        """
        Load the model. A build for CUDA logs one warning if it finds no GPU.

        path: the file, for a split model its first part; None for the model that ships with pymtp.
        mtp: load the multi-token-prediction head, if the file has one. If the file announces a head that it does not
            have, a warning is logged.
        vocab_only: load only the metadata and the vocabulary, to inspect a file.
        options: the options of the load; None for those of `keywords`.
        keywords: fields of ModelOptions, such as n_gpu_layers.

        Raises ModelLoadError for a file that is missing, truncated, not a GGUF, not a model that pymtp runs, or
        replaced during the load; InvalidRequestError for an invalid path and invalid options.
        """
        self.options = given_options("Model()", ModelOptions, options, keywords, OPTION_NAMES_ELSEWHERE)
        layers = self.options.layers
        self.path = _file(demo_model() if path is None else path)
        self.options.check_machine()
        self.head = str(self.options.head) if mtp and self.options.head is not None else None
        # computed before the load and again after it, to detect files that are replaced in between
        digests = None if vocab_only else self._read_digests()
        info = read_file_info(self.path, self.head)
        self.architecture: str = ffi.string(info.architecture).decode()
        self.n_layer: int = info.n_layer
        self.n_embd: int = info.n_embd
        self.n_ctx_train: int = info.n_ctx_train
        self.weight_type: str = ffi.string(info.weight_type).decode()
        self.has_head: bool = info.n_layer_mtp > 0
        self.head_absent: str = ffi.string(info.head_absent).decode("utf-8", "replace")
        self.mtp: bool = self.has_head and mtp
        # post-norm if the file does not name the tap: the heads of Qwen3-Next, 3.5 and 3.6 were trained on it
        self.tap: str = TAPS[max(0, info.tap)]
        if layers != 0 and not vocab_only:
            warn_without_gpu()
        self.lora_digest = "" if vocab_only else self.options.lora_digest()
        if not vocab_only:
            init_numa(self.options.numa)
        options, _kept = self.options.model_params(mtp=self.mtp, vocab_only=vocab_only, layers=layers)
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
            _logger.warning("%s: %s. The model is decoded without a head's drafts", self.path.name, self.head_absent)
        model = lib.pymtp_model_get(handle)
        vocab = lib.llama_model_get_vocab(model)
        self._loaded: _Loaded | None = _Loaded(handle, model, vocab)
        self.n_vocab: int = lib.llama_vocab_n_tokens(vocab)
        self.n_params: int = lib.llama_model_n_params(model)
        self._pieces: dict[int, bytes] = {}
        self._breakers: dict[tuple[str, ...], Any] = {}  # guarded by _breakers_lock, see dry_breakers
        self._breakers_lock = threading.Lock()
        self.measuring_lock = threading.Lock()
        self.measured_costs: dict[Hashable, Any] = {}  # guarded by measuring_lock, see drafting/warm_up.py
        tell_of_forks(self)

    def _after_fork_in_child(self) -> None:
        """Replace the locks in a forked child, because another thread may have held them at the fork."""
        self.measuring_lock = threading.Lock()
        self._breakers_lock = threading.Lock()

    @property
    def handle(self) -> Any:
        """Return the C handle, for pymtp.context. Raises ClosedError after close()."""
        return self._open().handle

    def _open(self) -> _Loaded:
        loaded = self._loaded
        if loaded is None:
            raise ClosedError("the model is closed")
        return loaded

    def close(self) -> None:
        """Release this object's hold on the weights. Safe to call twice.

        The memory of the weights is freed when the last LLM, context or call that uses them has ended.
        """
        self._loaded = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)

    @cached_property
    def metadata(self) -> dict[str, str]:
        """Return the scalar metadata of the GGUF file, with values as text."""
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
        """Return the Jinja source of the file's chat template, None if the file has no template."""
        loaded = self._open()
        text = lib.llama_model_chat_template(loaded.model, ffi.NULL)
        return None if text == ffi.NULL else str(ffi.string(text).decode("utf-8", "replace"))

    @property
    def digest(self) -> str:
        """Return a SHA-256 in hexadecimal that identifies the model.

        It covers the headers of all parts (metadata, vocabulary, names, types and shapes of tensors) and samples of the
        weights. It was computed directly before the model was loaded. With vocab_only, each call computes it from the
        files that exist at that moment, which reads a few MiB.

        With vocab_only, raises ModelLoadError if a file is missing.
        """
        return (self._digests or self._read_digests())[0]

    @property
    def file_names(self) -> str:
        """Return the model's file name for messages, "m.gguf + mtp-m.gguf" if the head has a file of its own."""
        return self.path.name if self.head is None else f"{self.path.name} + {Path(self.head).name}"

    @property
    def head_digest(self) -> str:
        """Return the digest of the head's own file, see `digest`; "" if the head has no file of its own."""
        return (self._digests or self._read_digests())[1]

    def _read_digests(self) -> tuple[str, str]:
        return file_digest(self.path), "" if self.head is None else file_digest(Path(self.head))

    @cached_property
    def head_norms(self) -> dict[str, float]:
        """Return the mean weight of each norm of the loaded head, by the names of the tensors."""
        norms = ffi.new("struct pymtp_head_norm[]", _MAX_NORMS)
        n = lib.pymtp_head_norms(self._open().handle, norms, _MAX_NORMS)
        if n < 0:
            raise NativeError(last_error())
        return {ffi.string(norm.name).decode(): float(norm.mean) for norm in norms[0:n]}

    @property
    def eos_token(self) -> str:
        """Return the text of the end-of-sequence token, "" if the vocabulary has none."""
        return self._special_text(lib.llama_vocab_eos)

    @property
    def bos_token(self) -> str:
        """Return the text of the begin-of-sequence token, "" if the vocabulary has none."""
        return self._special_text(lib.llama_vocab_bos)

    def _special_text(self, which: Any) -> str:
        token = which(self._open().vocab)
        return "" if token < 0 else self.token_text(token)

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Normalize `text`, and return its token ids.

        A special token that is written out in the text, such as "<|im_end|>", becomes that token.

        add_special: add the tokens that the model's vocabulary puts around a text, such as BOS.

        Raises InvalidRequestError for text that UTF-8 cannot encode.
        """
        loaded = self._open()
        data = _utf8(self.normalized(text))
        capacity = len(data) + 16
        tokens = ffi.new("llama_token[]", capacity)
        n = lib.pymtp_tokenize(loaded.handle, data, len(data), tokens, capacity, add_special)
        if n == _FAILED:
            raise NativeError(last_error())
        if n < 0:
            raise InvalidRequestError(f"the text cannot be tokenized: it has {-n} tokens for {len(data)} bytes")
        return list(ffi.unpack(tokens, n))

    @cached_property
    def max_token_bytes(self) -> int:
        """Return the number of bytes of the longest token, special tokens by the names that stand for them in texts."""
        vocab, longest = self._open().vocab, 1
        for token in range(self.n_vocab):
            text = ffi.string(lib.llama_vocab_get_text(vocab, token))
            # the vocabulary writes each byte of a token as one character, which may have two bytes itself
            if len(text) > longest:
                longest = max(longest, len(self.token_bytes(token, special=True)))
        return longest

    def check_fits(self, text: str, n_ctx: int) -> None:
        """Raise ContextFullError for a text that has more bytes than n_ctx tokens can have, without tokenizing it."""
        if len(text) > n_ctx:
            self.check_characters(len(text), n_ctx)
            n_bytes = len(text) if text.isascii() else len(self.normalized(text).encode(errors="replace"))
            self.check_bytes(n_bytes, n_ctx)

    def check_characters(self, n: int, n_ctx: int) -> None:
        """Raise ContextFullError if n characters, after normalization, surely have more bytes than n_ctx tokens."""
        if n * MIN_NORMALIZED > n_ctx:
            self._check_bytes(int(n * MIN_NORMALIZED), n_ctx, f"{n} characters")

    def check_bytes(self, n_bytes: int, n_ctx: int) -> None:
        """Raise ContextFullError for a normalized text of more bytes than n_ctx tokens can have."""
        if n_bytes > n_ctx:  # a token has at least one byte
            self._check_bytes(n_bytes, n_ctx, f"{n_bytes} bytes")

    def _check_bytes(self, n_bytes: int, n_ctx: int, length: str) -> None:
        if n_bytes > (limit := n_ctx * self.max_token_bytes):
            raise ContextFullError(f"the prompt has {length}, but the n_ctx={n_ctx} tokens have at most {limit} bytes")

    def normalized(self, text: str) -> str:
        """Return `text` in the form that the model's original tokenizer normalizes it to.

        For Qwen's vocabularies this is NFC between the special tokens in the text. For other vocabularies the text is
        returned unchanged.
        """
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
        """Return the bytes that a token adds to a generated text. A character may be split into several tokens.

        A control token adds no bytes, except the tags in answers, such as <think>.

        special: return the names of control tokens, too, as text.

        Raises InvalidRequestError for an id outside the vocabulary.
        """
        piece = self._pieces.get(token)
        if piece is None:
            self.check_tokens([token])
            self._pieces[token] = piece = self._read_piece(token)
        return self.token_text(token).encode() if special and not piece else piece

    def token_text(self, token: int) -> str:
        """Return the vocabulary's entry for a token. For a control token, this is the name that stands for it in texts.

        Raises InvalidRequestError for an id outside the vocabulary.
        """
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
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD.

        special: include the names of control tokens.

        Raises InvalidRequestError for an id outside the vocabulary.
        """
        return b"".join(self.token_bytes(token, special=special) for token in tokens).decode("utf-8", "replace")

    def grammar(self, text: str) -> Any:
        """Compile a grammar in GBNF and return its C handle, a context manager that frees it.

        Raises InvalidRequestError, with the reason, for an invalid grammar.
        """
        handle = lib.pymtp_grammar_init(self.handle, _utf8(text))
        if handle == ffi.NULL:
            raise InvalidRequestError(last_error())
        return ffi.gc(handle, lib.pymtp_grammar_free)

    def dry_breakers(self, strings: tuple[str, ...]) -> Any:
        """Return the C handle of the strings at which DRY ends repetitions, as tokens of the vocabulary.

        The handles of the last few lists are kept. One of four short strings takes 0.05 s with 248,320 tokens.
        """
        with self._breakers_lock:
            handle = self._breakers.pop(strings, None)
            if handle is None:
                texts = [ffi.new("char[]", _utf8(string)) for string in strings]
                handle = lib.pymtp_dry_breakers_init(self.handle, ffi.new("char *[]", texts), len(texts))
                check(lib.PYMTP_OK if handle != ffi.NULL else lib.PYMTP_FAILED)
                handle = ffi.gc(handle, lib.pymtp_dry_breakers_free)
            self._breakers[strings] = handle  # the last one, so that the first one has not been used for the longest
            while len(self._breakers) > _MAX_BREAKERS:
                del self._breakers[next(iter(self._breakers))]
            return handle

    def ends_generation(self, token: int) -> bool:
        """Return whether a token ends the text (EOS, end of turn). False for ids outside the vocabulary."""
        loaded = self._open()
        try:
            return bool(lib.llama_vocab_is_eog(loaded.vocab, token))
        except OverflowError:
            return False

    def check_tokens(self, tokens: list[int]) -> None:
        """Raise InvalidRequestError unless every id is in the vocabulary."""
        self._open()
        for token in tokens:
            if not 0 <= token < self.n_vocab:
                raise InvalidRequestError(f"token id {shown(token)} is outside the vocabulary of {self.n_vocab}")


def _utf8(text: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidRequestError(f"a text must be a str, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is not valid Unicode: {error}") from error
