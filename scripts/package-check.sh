#!/usr/bin/env bash
# Packages all crates, and trains with them from a crate outside the workspace.
#
#     scripts/package-check.sh
#
# The crate gets the packaged archives in place of the registry's, so it sees what a user of a published version would. It is the
# program of the README's "Your own model", which prints a loss that falls.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}

cargo package --workspace --no-verify --locked --allow-dirty

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/outside" "$work/outside/src" "$work/packages"
patches=""
for archive in "$target"/package/*.crate; do
    name=$(basename "$archive" .crate)
    test -d "crates/${name%-[0-9]*}" || continue # tests, examples and tools are not published
    tar -xzf "$archive" -C "$work/packages"
    for file in LICENSE-MIT LICENSE-APACHE README.md; do
        test -s "$work/packages/$name/$file" || { echo "$name lacks $file"; exit 1; }
    done
    patches+="${name%-[0-9]*} = { path = \"$work/packages/$name\" }"$'\n'
done

# The README's Cargo.toml and program, word for word.
python3 scripts/readme_blocks.py "$work/outside"
printf '\n[patch.crates-io]\n%s' "$patches" >>"$work/outside/Cargo.toml"
# As in the workspace, so that burn need not be built a second time.
sed -n '/^\[profile\.dev\]/,$p' Cargo.toml | grep -v '^stageline-\(cli\|report\|data\|workspace\)' >>"$work/outside/Cargo.toml"
cp Cargo.lock "$work/outside/Cargo.lock"

cd "$work/outside"
CARGO_TARGET_DIR=$target/outside cargo run | tee output
python3 - output <<'PY'
import re, sys
losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", open(sys.argv[1]).read())]
if len(losses) < 2 or not losses[-1] < losses[0] / 2:
    sys.exit(f"the loss does not fall: {losses}")
print(f"the packaged crates train: the loss falls from {losses[0]} to {losses[-1]}")
PY
