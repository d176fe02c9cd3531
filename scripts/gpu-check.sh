#!/usr/bin/env bash
# Checks and measures stageline on the NVIDIA GPUs of this machine, and writes gpu-check.json and gpu-check.md.
#
#     cargo build --release --features cuda --example gpt
#     scripts/gpu-check.sh [--device cuda:0] [--program target/release/examples/gpt] [--out .] [--quick] [--only throughput]
#
# Needs Python 3; if torch is installed, the same model is timed in PyTorch on the same GPU. `--device cpu --quick` tests
# this script on a machine without a GPU.
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname "$0")/gpu_check.py" "$@"
