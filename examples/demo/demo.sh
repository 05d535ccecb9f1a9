#!/usr/bin/env bash
# The demo: a server and a worker of its own, a run with a verified artifact, a run that survives the death of
# its worker, and a model that is trained by examples and then by reward. Everything is kept under .cache/demo,
# and everything is stopped at the end.
set -euo pipefail
cd "$(dirname "$0")"

export CORRAL_HOME="${DEMO_HOME:-$PWD/../../.cache/demo}"
export CORRAL_PORT=0
# Short, so that progress shows every two seconds even in runs as small as these.
export CORRAL_LEASE_S=6
unset CORRAL_URL CORRAL_TOKEN CORRAL_DATABASE CORRAL_PROJECT

bold='' green='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\033[1m' green=$'\033[32m' plain=$'\033[0m'
fi
say() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
type_in() { printf '\n%s$%s %s\n' "$green" "$plain" "$*"; }
try() {
    type_in "$@"
    "$@"
}
stop_all() {
    status=$?
    trap - EXIT
    if [ "$status" != 0 ]; then
        printf '\nthe demo failed; the logs are in %s\n' "$CORRAL_HOME/logs" >&2
    fi
    corral down >/dev/null 2>&1 || true
    exit "$status"
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

corral down >/dev/null 2>&1 || true
rm -rf "$CORRAL_HOME"
mkdir -p "$CORRAL_HOME"
CORRAL_HOME="$(cd "$CORRAL_HOME" && pwd)"

say "A server and a worker on this machine."
try corral up --detach

say "A run: it ships this folder, and is followed until it ends."
try corral submit run.toml --follow
first="$(corral ls --json --limit 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])')"

say "What it measured, and what it made."
try corral metrics "$first"
try corral artifacts ls --run "$first"
try corral artifacts verify "$first"
try corral artifacts get "$first" "$CORRAL_HOME/fetched/first"
try cat "$CORRAL_HOME/fetched/first/model.json"
try sha256sum "$CORRAL_HOME/fetched/first/model.json"

say "The same run again, but its worker is killed half-way."
worker="$(corral status | sed -n 's/^worker *pid \([0-9]*\),.*/\1/p')"
type_in corral submit run.toml --set name=interrupted
second="$(corral submit run.toml --set name=interrupted)"
echo "$second"
# Until the first checkpoint is behind it: there is one every 30 epochs.
step=0
until [ "${step:-0}" -ge 60 ]; do
    sleep 0.2
    shown="$(corral show "$second")"
    if grep -qE '^state +(succeeded|failed|cancelled)' <<<"$shown"; then
        echo "it ended before its worker could be killed" >&2
        exit 1
    fi
    step="$(sed -n 's/^progress.*step=\([0-9]*\).*/\1/p' <<<"$shown")"
done
type_in "corral show $second | grep -E 'state|progress|metrics'"
grep -E 'state|progress|metrics' <<<"$shown"
try kill -9 "$worker"

say "The next worker goes on from the last checkpoint."
try corral up --detach
try corral logs --follow "$second"
try corral show "$second"
corral artifacts get "$second" "$CORRAL_HOME/fetched/second" >/dev/null
try cmp "$CORRAL_HOME/fetched/first/model.json" "$CORRAL_HOME/fetched/second/model.json"
echo "the model is the same, byte for byte"
# Read to the end: a reader that goes away early would be an error of the writer.
corral logs "$second" | grep "going on after epoch" >/dev/null

say "Training: what it will take, then a few examples of sums for a model of a million parameters."
try corral estimate sft.toml
try corral submit sft.toml --follow

say "Then all sums, by reward alone, from what it has learned."
try corral submit grpo.toml --follow

say "The same question before and after."
try corral sample latest -m "4+3="
try corral forecast report

say "Everything that is stored, hashed again and compared."
try corral fsck

say "The end."
try corral down
