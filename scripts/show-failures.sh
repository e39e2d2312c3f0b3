#!/usr/bin/env bash
# Runs the tests with the given command. If some fail, prints what they said again at the end, where it is found in a
# log of many thousand lines, or in one that was cut in its middle.
set -uo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
if [ "$status" -ne 0 ]; then
    echo
    echo "What the failed tests said:"
    awk '/^---- .* stdout ----$/ { shown = 1 } /^failures:$/ { shown = 0 } shown' "$log" | cut -c 1-2000 | tail -n 300
fi
exit "$status"
