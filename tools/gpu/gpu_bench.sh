#!/usr/bin/env bash
# All measurements on a machine with a GPU, in one command that ends in time and continues where the last one
# ended. Here, with a network:     tools/gpu/gpu_bench.sh pack
# There, with a GPU and without:   tools/gpu/gpu_bench.sh all --minutes 9 --out results
# Here, when it came back:         tools/gpu/gpu_bench.sh home results
# build/gpu/ travels along with the checkout, the files in --out come back. See --help, and docs/gpu-suite.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" tools/gpu/gpu_bench.py "$@"
