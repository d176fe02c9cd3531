#!/usr/bin/env bash
# Checks what the README's first commands compile, without compiling it: no burn for the planner; for the example at most
# 215 packages, and no networks, GPUs or tokenizers.
#
#     scripts/build-size.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Reads trees, and prints the name and version of each package once.
packages() { sed -nE 's/^([^ ]+ [^ ]+).*/\1/p' | sort -u; }
trees() { cargo tree --locked --prefix none "$@"; }

planner=$(trees -p stageline-cli -e normal | packages)
grep -q '^stageline-schedule ' <<<"$planner"
if grep '^burn' <<<"$planner"; then echo "the planner compiles burn"; exit 1; fi
echo "the planner compiles no burn"

# The features are those with the workspace's own package, as in `cargo run --example gpt`; the tree is that of the examples,
# which comes first.
example=$(trees -p stageline-examples -p stageline-workspace -e normal,build | awk -v RS= '/^stageline-examples /' | packages)
grep -q '^burn ' <<<"$example"
count=$(wc -l <<<"$example")
echo "the example compiles $count packages"
if ((count > 215)); then echo "these are more than 215"; exit 1; fi
# burn always has three small crates named cubecl-*; these are the ones with kernels.
if grep -E '^(iroh|wgpu|tokenizers|cubecl|cubecl-core|cubecl-runtime) ' <<<"$example"; then
    echo "the example compiles what only features need"
    exit 1
fi
