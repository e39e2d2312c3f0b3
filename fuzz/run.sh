#!/bin/sh
# Fuzzes one target with libFuzzer on the stable toolchain: fuzz/run.sh TARGET SECONDS [libFuzzer options]
#
# With 0 seconds it runs only the given options and files: fuzz/run.sh TARGET 0 FILE
#
# New inputs are added to $CARGO_TARGET_DIR/corpus/TARGET (by default fuzz/target), crashes to
# $CARGO_TARGET_DIR/crashes. It needs a C++ compiler, for libFuzzer.
set -eu
target=$1
seconds=$2
shift 2
home=$(cd "$(dirname "$0")" && pwd)
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$home/target}"
host=$(rustc -vV | sed -n 's/^host: //p')

# The passes of cargo-fuzz, spelled out: coverage counters and compared values for libFuzzer. Naming the host as the
# target keeps them out of build scripts. Overflows and broken assertions count as crashes.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing"
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
export CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
nice -n 19 cargo build --manifest-path "$home/Cargo.toml" --release --features libfuzzer --target "$host" \
    --bin "fuzz-$target"

fuzzer="$CARGO_TARGET_DIR/$host/release/fuzz-$target"
if [ "$seconds" = 0 ]; then
    exec nice -n 19 "$fuzzer" "$@"
fi
mkdir -p "$CARGO_TARGET_DIR/corpus/$target" "$CARGO_TARGET_DIR/crashes"
exec nice -n 19 "$fuzzer" \
    "$CARGO_TARGET_DIR/corpus/$target" "$home/corpus/$target" \
    -max_total_time="$seconds" -max_len=65536 -timeout=100 -rss_limit_mb=2048 \
    -artifact_prefix="$CARGO_TARGET_DIR/crashes/$target-" "$@"
