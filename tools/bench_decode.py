"""The decode bench, from a checkout.

    python tools/models/make_model.py 7m build/7m.gguf
    python tools/bench_decode.py -m build/7m.gguf --depths none,1,3,auto

It is `pymtp bench decode`, with the same options.
"""

import sys

from pymtp.cli import app_main

if __name__ == "__main__":
    app_main(["bench", "decode", *sys.argv[1:]])
