#!/usr/bin/env bash
# Runs tests under Miri, and those of threads under ThreadSanitizer. A plain build does neither.
#
#     rustup toolchain install nightly --component miri,rust-src
#     scripts/sanitize.sh miri [SECONDS]     # the crates without burn, and the allocator: every test by itself, for so long at most
#     scripts/sanitize.sh threads [TESTS]    # the writer of checkpoints, and the pipeline
#
# Miri is some hundred times slower, so a test that takes longer than its seconds [20] is counted, and not a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests that start programs, which Miri cannot, or that are seeds and mutations by the thousand.
beyond_miri='seeds|child|kills|disk_full|unreadable'

each_under_miri() {
    local limit=$1 passed=0 failed=0 slow=0
    shift
    local names
    names=$(cargo +nightly miri test "$@" -- --list 2>/dev/null | sed -n 's/: test$//p')
    for name in $names; do
        if [[ $name =~ $beyond_miri ]]; then continue; fi
        local status=0 said
        said=$(timeout "$limit" cargo +nightly miri test "$@" -- --exact "$name" 2>&1) || status=$?
        case $status in
            0) passed=$((passed + $(grep -c "result: ok. 1 passed" <<< "$said" || true))) ;;
            124) slow=$((slow + 1)) && echo "too slow: $name" ;;
            *) failed=$((failed + 1)) && echo "$said" ;;
        esac
    done
    echo "miri $*: $passed passed, $failed failed, $slow took longer than $limit s"
    [[ $failed == 0 ]]
}

# The allocator has no need of burn but for its crate.
allocator_alone() {
    local folder=$1
    mkdir -p "$folder/src"
    cat > "$folder/Cargo.toml" <<END
[package]
name = "allocator"
version = "0.0.0"
edition = "2024"
[dev-dependencies]
proptest = { version = "1", default-features = false, features = ["std"] }
[workspace]
END
    cat > "$folder/src/lib.rs" <<END
#![allow(dead_code)]
#[path = "$PWD/crates/stageline/src/allocator.rs"]
mod allocator;
mod events {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Held { pub end: u64, pub peak: u64, pub kept: i64 }
}
END
}

miri() {
    local limit=${1:-20} status=0
    export PROPTEST_CASES=2 MIRIFLAGS=-Zmiri-disable-isolation
    local allocator=${CARGO_TARGET_DIR:-target}/allocator
    allocator_alone "$allocator"
    each_under_miri 120 --manifest-path "$allocator/Cargo.toml" --lib || status=1
    for package in data checkpoint schedule report; do
        each_under_miri "$limit" -p "stageline-$package" --lib || status=1
    done
    each_under_miri "$limit" -p stageline-data --test corpus || status=1
    each_under_miri "$limit" -p stageline-checkpoint --test checkpoint || status=1
    each_under_miri "$limit" -p stageline-schedule --test schedule || status=1
    return "$status"
}

threads() {
    # Words that test names have, of the tests in which threads meet.
    local words=(${*:-parity failure transfers watchdog})
    export RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS="suppressions=$PWD/scripts/thread-sanitizer.supp"
    local with_std=(-Zbuild-std --target x86_64-unknown-linux-gnu)
    cargo +nightly test "${with_std[@]}" -p stageline-checkpoint --lib --test checkpoint -- --skip with_little_memory --skip take_little_memory
    cargo +nightly test "${with_std[@]}" --test pipeline -- "${words[@]}"
}

"$@"
