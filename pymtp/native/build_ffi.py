"""Write the C source of the extension module `pymtp.native._native`.

CMakeLists.txt runs this script: build_ffi.py OUTPUT.c

The script uses cffi's API mode: the C compiler checks every declaration against the headers. The declarations are read
from the headers themselves: all of our own headers, and the names in LLAMA_CPP of llama.cpp's headers. cffi has no
preprocessor, so these headers may use it only for includes, guards and the macros in MACROS.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
VENDORED = NATIVE.parents[1] / "vendor" / "llama.cpp"

HEADERS = (  # in runtime/, read whole
    "pymtp.h",
    "compare/pymtp_compare.h",
    "pymtp_depth.h",
    "pymtp_projector.h",
    "pymtp_text.h",
    "pymtp_text_drafts.h",
)
LLAMA_CPP = {  # header: names of its types and functions that Python uses
    "ggml/include/ggml.h": ("ggml_type",),
    "ggml/include/ggml-cpu.h": ("ggml_numa_strategy",),
    "ggml/include/ggml-backend.h": (
        "ggml_backend_dev_t",
        "ggml_backend_dev_type",
        "ggml_backend_dev_count",
        "ggml_backend_dev_get",
        "ggml_backend_dev_name",
        "ggml_backend_dev_description",
        "ggml_backend_dev_memory",
    ),
    "include/llama.h": (
        "llama_token",
        "llama_flash_attn_type",
        "llama_rope_scaling_type",
        "llama_split_mode",
        "llama_token_attr",
        "llama_context_params",
        "llama_backend_init",
        "llama_max_devices",
        "llama_numa_init",
        "llama_supports_gpu_offload",
        "llama_print_system_info",
        "llama_context_default_params",
        "llama_model_n_params",
        "llama_model_meta_count",
        "llama_model_meta_key_by_index",
        "llama_model_meta_val_str_by_index",
        "llama_model_chat_template",
        "llama_model_get_vocab",
        "llama_vocab_n_tokens",
        "llama_vocab_get_text",
        "llama_vocab_get_attr",
        "llama_vocab_is_eog",
        "llama_vocab_bos",
        "llama_vocab_eos",
    ),
}
MACROS = re.compile(r"\b(?:PYMTP|LLAMA|GGML|GGML_BACKEND)_API\b")
ENUMS = "|".join(name for names in LLAMA_CPP.values() for name in names)
MEMBER_TYPES = rf"u?int\d+_t|float|double|bool|enum (?:{ENUMS})"
CALLBACKS = """
extern "Python" void pymtp_on_log(int level, const char * text);
extern "Python" bool pymtp_on_poll(void);
extern "Python" bool pymtp_on_logits(
    void * data, float * logits, int32_t n_vocab, const llama_token * prefix, int32_t n);
"""


def declarations(header: str) -> str:
    """Return the C declarations of a header's text, without comments, preprocessor lines and macros."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", text, flags=re.MULTILINE)
    text, n_blocks = re.subn(r'extern\s+"C"\s*\{', "", MACROS.sub("", text))
    return text.rpartition("}")[0] if n_blocks else text


def select(text: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the declarations of types and functions from `declarations` text. Raises LookupError for an absent name.

    A struct is declared without the members whose types cffi does not know; the C compiler knows the others.
    """
    for name in names:
        forms = (
            rf"enum {name}\s*\{{[^}}]*\}};",
            rf"struct {name}\s*\{{[^}}]*\}};",
            rf"typedef [^;{{}}]*\b{name};",
            rf"[^;{{}}]*\b{name}\s*\([^;{{}}]*\);",
        )
        found = [match[0] for form in forms if (match := re.search(form, text))]  # an enum and a function, perhaps
        if not found:
            raise LookupError(f"the header declares no {name}")
        for declaration in found:
            if declaration.startswith("struct"):
                members = re.findall(rf"^\s*(?:{MEMBER_TYPES})\s+\w+;", declaration, re.MULTILINE)
                yield f"struct {name} {{{''.join(members)} ...; }};"
            else:
                yield declaration


def cdef() -> str:
    """Return all declarations that Python uses."""
    parts: list[str] = []
    for header, names in LLAMA_CPP.items():
        parts += select(declarations((VENDORED / header).read_text(encoding="utf-8")), names)
    parts += [declarations((NATIVE / "runtime" / header).read_text(encoding="utf-8")) for header in HEADERS]
    return "\n".join(parts) + CALLBACKS


def main(output: Path) -> None:
    """Generate `output`. A file that has the same content already is left untouched, so that it is not recompiled."""
    try:
        from cffi import FFI
    except ImportError:
        sys.exit(f"cffi is needed to build pymtp. Mend it: {sys.executable} -m pip install cffi")
    ffi = FFI()
    ffi.cdef(cdef())
    included = [*(Path(header).name for header in LLAMA_CPP), *HEADERS]
    ffi.set_source(
        "pymtp.native._native",
        "".join(f'#include "{header}"\n' for header in included),
        py_limited_api=True,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(output))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
