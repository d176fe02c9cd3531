#!/usr/bin/env bash
# Tests language models with tokenizers, burn's operations on several cores, and stages on devices of other hosts, which
# `cargo test` does not build.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_INCREMENTAL=0

# The tests start the example `finetune` and the command `stageline serve`.
cargo build --locked --features models,rayon,serve --bins --examples
cargo test --locked --features models,rayon,serve --lib --test tokens --test finetune --test remote
