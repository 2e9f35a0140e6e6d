"""The GPU that tests marked `gpu` run on. Import it before pymtp, which looks for devices when it is imported.

PYMTP_TEST_DEVICE=lavapipe asks for Mesa's software device, with a build for Vulkan. Unset, it is the GPU that pymtp
finds, if any. PYMTP_GPU_TESTS_ON_CPU=1 has the tests that need a GPU run on the CPU, which shows that they can run.
"""

from __future__ import annotations

import os

NAME = os.environ.get("PYMTP_TEST_DEVICE")
LAVAPIPE = NAME == "lavapipe"
ON_CPU = "PYMTP_GPU_TESTS_ON_CPU" in os.environ

if LAVAPIPE:
    # ggml takes a software device only by its number; halves are converted there, which takes longer than floats
    os.environ |= {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_VK_DISABLE_F16": "1", "GGML_VK_DISABLE_COOPMAT": "1"}
    # a thread that spins until the device is done, and threads of the device's own, take the processor from it
    os.environ |= {"GGML_VK_SERIALIZE_SUBMISSIONS": "1", "LP_NUM_THREADS": "0"}
elif NAME is not None:
    raise ValueError(f"PYMTP_TEST_DEVICE={NAME} must be lavapipe, or unset")

from pymtp import build_info  # noqa: E402 — after what it reads

GPUS = [device for device in build_info()["devices"] if not device["name"].startswith(("CPU", "BLAS"))]

if LAVAPIPE and not any("llvmpipe" in gpu["description"] for gpu in GPUS):
    raise RuntimeError("PYMTP_TEST_DEVICE=lavapipe, but there is none: install mesa-vulkan-drivers, build for Vulkan")
