"""Write the C source of the extension module `pymtp.native._native`.

CMakeLists.txt runs this script: build_ffi.py OUTPUT.c

The script uses cffi's API mode, in which the C compiler checks every declaration in cdef.h against the headers below.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    from cffi import FFI
except ImportError:
    sys.exit(f"cffi is needed to build pymtp. Mend it: {sys.executable} -m pip install cffi")

HEADERS = ("llama.h", "ggml.h", "ggml-backend.h", "ggml-cpu.h", "pymtp.h", "compare/pymtp_compare.h", "pymtp_depth.h")


def main(output: Path) -> None:
    """Generate `output`. A file that has the same content already is left untouched, so that it is not recompiled."""
    ffi = FFI()
    ffi.cdef(Path(__file__).with_name("cdef.h").read_text(encoding="utf-8"))
    ffi.set_source(
        "pymtp.native._native",
        "".join(f'#include "{header}"\n' for header in HEADERS),
        py_limited_api=True,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(output))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
