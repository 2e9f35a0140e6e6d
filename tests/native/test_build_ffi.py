"""Tests of build_ffi.py, which reads the C declarations for cffi from headers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from cffi import FFI

from pymtp.native import lib

NATIVE = Path(__file__).parents[2] / "pymtp" / "native"  # an installed package has neither this script nor headers
spec = importlib.util.spec_from_file_location("build_ffi", NATIVE / "build_ffi.py")
assert spec
assert spec.loader
build_ffi = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build_ffi)

HEADER = """
// A comment with "extern" and a brace {.
/* Another one, of several
   lines, with a macro: PYMTP_API } */
#pragma once
#define SEVERAL(lines) \\
    int lines;
#ifdef __cplusplus
extern "C" {
#endif
enum pymtp_color {
    PYMTP_RED  = 1 << 0, // a comment
    PYMTP_BLUE = -2,
};
struct pymtp_point { int32_t x; /* first */ int32_t y; };
typedef bool (*pymtp_callback)(void);
PYMTP_API struct pymtp_point * pymtp_make(
        int32_t x, // of several lines
        int32_t y);
LLAMA_API struct params other(void);
struct params {
    int32_t n;
    enum unknown_to_cffi kind;
    void * data;
    bool on;
};
#ifdef __cplusplus
}
#endif
"""


def test_declarations_of_a_header_are_c_that_cffi_reads() -> None:
    text = build_ffi.declarations(HEADER)
    assert not re.search(r"#|//|/\*|extern|_API", text)
    ffi = FFI()
    ffi.cdef(text.partition("LLAMA_API")[0].partition("struct params")[0])
    assert ffi.sizeof("struct pymtp_point") == 8
    assert ffi.typeof("enum pymtp_color").relements == {"PYMTP_RED": 1, "PYMTP_BLUE": -2}


def test_select_yields_whole_declarations_and_members_that_cffi_knows() -> None:
    struct, function = build_ffi.select(build_ffi.declarations(HEADER), ["params", "pymtp_make"])
    assert " ".join(struct.split()) == "struct params { int32_t n; bool on; ...; };"
    assert " ".join(function.split()) == "struct pymtp_point * pymtp_make( int32_t x, int32_t y);"


def test_select_refuses_a_name_that_the_header_lacks() -> None:
    with pytest.raises(LookupError, match="declares no pymtp_take"):
        list(build_ffi.select(build_ffi.declarations(HEADER), ["pymtp_take"]))


def test_native_module_has_every_function_of_its_headers() -> None:
    for header in build_ffi.HEADERS:
        exported = re.findall(r"^PYMTP_API [^;(]*?(\w+)\s*\(", (NATIVE / "runtime" / header).read_text(), re.MULTILINE)
        assert exported
        assert [name for name in exported if not hasattr(lib, name)] == []


def test_enum_and_function_of_one_name_are_both_declared() -> None:
    header = "enum kind { A, B };\nenum kind kind(int device);\n"
    assert len(list(build_ffi.select(header, ["kind"]))) == 2


def test_module_has_all_names_that_python_uses() -> None:
    sources = "".join(path.read_text("utf-8") for path in NATIVE.parent.rglob("*.py"))
    used = set(re.findall(r"\blib\.(\w+)", sources))
    assert len(used) > 50
    assert {name for name in used if not hasattr(lib, name)} == set()
