#!/usr/bin/env bash
# Packages all crates, and trains with them from crates outside the workspace.
#
#     scripts/package-check.sh
#
# The crates outside get the packaged archives in place of the registry's, so they see what a user of a published version would:
#
# - the program of the README's "Your own model", which prints a loss that falls;
# - the examples `gpt` and `finetune`, which use all libraries that train; each trains two steps;
# - the command `stageline`, which prints a plan.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}

cargo package --workspace --no-verify --locked --allow-dirty

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/.cargo" "$work/outside" "$work/packages"
# Cargo reads this file in all folders below.
echo "[patch.crates-io]" >"$work/.cargo/config.toml"
for archive in "$target"/package/*.crate; do
    name=$(basename "$archive" .crate)
    tar -xzf "$archive" -C "$work/packages"
    test -d "crates/${name%-[0-9]*}" || continue # tests, examples and tools are not published
    for file in LICENSE-MIT LICENSE-APACHE README.md; do
        test -s "$work/packages/$name/$file" || { echo "$name lacks $file"; exit 1; }
    done
    echo "${name%-[0-9]*} = { path = \"$work/packages/$name\" }" >>"$work/.cargo/config.toml"
done
# As in the workspace, so that training is not slow.
sed -n '/^\[profile\.dev\]/,$p' Cargo.toml >>"$work/.cargo/config.toml"
export CARGO_TARGET_DIR=$target/outside

# The README's Cargo.toml and program, word for word.
python3 scripts/readme_blocks.py "$work/outside"
cp Cargo.lock "$work/outside/Cargo.lock"
cd "$work/outside"
cargo run | tee output
python3 - output <<'PY'
import re, sys
losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", open(sys.argv[1]).read())]
if len(losses) < 2 or not losses[-1] < losses[0] / 2:
    sys.exit(f"the loss does not fall: {losses}")
print(f"the packaged crates train: the loss falls from {losses[0]} to {losses[-1]}")
PY

cp "$root/Cargo.lock" "$work"/packages/stageline-examples-*/Cargo.lock
cd "$work"/packages/stageline-examples-*/
cargo build --features models --example gpt --example finetune
small="--steps 2 --micro-batches 2 --data $root/docs --context 32"
"$CARGO_TARGET_DIR/debug/examples/gpt" $small --layers 2 --width 32 --sample 0
cat >"$work/config.json" <<'JSON'
{ "model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32 }
JSON
"$CARGO_TARGET_DIR/debug/examples/finetune" $small --init "$work/config.json"

cp "$root/Cargo.lock" "$work"/packages/stageline-cli-*/Cargo.lock
cd "$work"/packages/stageline-cli-*/
cargo run -- plan --stages 4 --micro-batches 8
