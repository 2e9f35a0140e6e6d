"""The GPU for tests marked `gpu`. Import this module before pymtp, which looks for devices when it is imported.

PYMTP_TEST_DEVICE=lavapipe selects Mesa's software device, with a build for Vulkan. If it is unset, the GPU is the one
that pymtp finds, if any. PYMTP_GPU_TESTS_ON_CPU=1 runs the GPU tests on the CPU, to check the tests themselves.
"""

from __future__ import annotations

import os

NAME = os.environ.get("PYMTP_TEST_DEVICE")
LAVAPIPE = NAME == "lavapipe"
ON_CPU = "PYMTP_GPU_TESTS_ON_CPU" in os.environ

if LAVAPIPE:
    # ggml uses a software device only by its number; float16 is emulated there, and slower than float32
    os.environ |= {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_VK_DISABLE_F16": "1", "GGML_VK_DISABLE_COOPMAT": "1"}
    # a spinning host thread and threads of the device would compete for the processor
    os.environ |= {"GGML_VK_SERIALIZE_SUBMISSIONS": "1", "LP_NUM_THREADS": "0"}
elif NAME is not None:
    raise ValueError(f"PYMTP_TEST_DEVICE={NAME} must be lavapipe, or unset")

from pymtp import build_info  # noqa: E402 — after the environment is set

GPUS = [device for device in build_info()["devices"] if not device["name"].startswith(("CPU", "BLAS"))]

if LAVAPIPE and not any("llvmpipe" in gpu["description"] for gpu in GPUS):
    raise RuntimeError("PYMTP_TEST_DEVICE=lavapipe, but there is none: install mesa-vulkan-drivers, build for Vulkan")
