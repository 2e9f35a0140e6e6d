"""The prefill bench, from a checkout.

    python tools/models/make_model.py 7m build/7m.gguf
    python tools/bench_prefill.py -m build/7m.gguf --quick

It is `pymtp bench prefill`, with the same options.
"""

import sys

from pymtp.cli import app_main

if __name__ == "__main__":
    app_main(["bench", "prefill", *sys.argv[1:]])
