#!/usr/bin/env bash
# The whole thing in a minute, on a fresh root in a temporary folder: no broker, and no JVM before
# Spark's query at the end.
# `make demo` runs it with the tools of .venv first in PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d "${TMPDIR:-/tmp}/streamlog-demo.XXXXXX")
export STREAMLOG_ROOT=$work/log
followers=
tidy() {
  # Unquoted: several processes are several words.
  if [ -n "$followers" ]; then kill $followers 2>/dev/null || true; fi
  rm -rf "$work"
}
trap tidy EXIT

if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
say() { printf '\n# %s\n' "$1"; }
# Prints a command line as typed, then runs it.
run() {
  printf '%s$ %s%s\n' "$bold" "$1" "$plain"
  eval "$1"
}

say "A root is a folder (or s3://bucket/prefix). Topics have partitions, as in Kafka."
printf '%s$ export STREAMLOG_ROOT=$(mktemp -d)/log%s\n' "$bold" "$plain"
run "streamlog topic create orders --partitions 4 --config retention.ms=604800000"
run "streamlog topic list"

say "Lines from stdin; what stands before the colon is the key, and decides the partition."
run "printf '%s\n' 'ann:{\"item\": \"tea\", \"qty\": 2}' 'bob:{\"item\": \"jam\", \"qty\": 1}' 'cleo:{\"item\": \"rye\", \"qty\": 3}' 'ann:{\"item\": \"oat\", \"qty\": 5}' | streamlog produce orders --key-separator :"

say "Read it back: partition, offset, key, value. Order holds within a partition."
run "streamlog consume orders --from-beginning --exit-at-end --format '%p %o %k %s\n'"

say "A second process follows the log while the first one writes."
printf '%s$ %s%s\n' "$bold" "streamlog consume orders --from-beginning --max-messages 6 --format '%p %o %k %s\n' > followed.txt &" "$plain"
timeout 60 streamlog consume orders --from-beginning --max-messages 6 --format '%p %o %k %s\n' \
  > "$work/followed.txt" &
followers=$!
run "printf '%s\n' 'bob:{\"item\": \"fig\", \"qty\": 4}' 'dan:{\"item\": \"nut\", \"qty\": 7}' | streamlog produce orders --key-separator :"
printf '%s$ wait; cat followed.txt%s\n' "$bold" "$plain"
wait "$followers"
followers=
cat "$work/followed.txt"

say "A group: two processes share the partitions. No broker coordinates them, a Delta table does."
run "streamlog topic create payments --partitions 4"
for number in 1 2; do
  printf '%s$ %s%s\n' "$bold" "streamlog consume payments --group billing --from-beginning > till-$number.txt &" "$plain"
  streamlog consume payments --group billing --from-beginning > "$work/till-$number.txt" &
  followers="$followers $!"
done
# Until both are members and each has its share.
for _ in $(seq 100); do
  if streamlog group list --json 2>/dev/null | grep -q '"state": "stable", "members": 2'; then break; fi
  sleep 0.1
done
run "seq 1000 | sed 's/.*/user-&:payment &/' | streamlog produce payments --key-separator : --quiet"
for _ in $(seq 100); do
  if [ "$(cat "$work"/till-*.txt | wc -l)" -ge 1000 ]; then break; fi
  sleep 0.1
done
run "streamlog group members billing"
say "Ending commits, and leaves the group at once. Each record was printed once, by one of them."
printf '%s$ kill %%1 %%2; wait; wc -l till-1.txt till-2.txt%s\n' "$bold" "$plain"
kill $followers
for process in $followers; do wait "$process" || true; done
followers=
(cd "$work" && wc -l till-1.txt till-2.txt)
run "streamlog group describe billing"
run "streamlog group reset billing --to earliest --dry-run"

say "What the topic holds."
run "streamlog topic describe orders"

say "Every partition is a plain Delta table: deltalake and DuckDB read it as it is."
run "cat demo/read_tables.py"
run 'python demo/read_tables.py "$STREAMLOG_ROOT/topics/orders"'

say "And Spark: topics are tables for SQL."
java_major() {
  "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'
}
major=$(java_major 2>/dev/null || true)
if [ "${major:-0}" -ge 17 ]; then
  run "cat demo/spark_query.py"
  echo "(a JVM starts; the first time, Delta's jars are fetched from Maven)"
  run 'python demo/spark_query.py "$STREAMLOG_ROOT" 2> "$work/spark.txt" || { tail -5 "$work/spark.txt" >&2; false; }'
else
  echo "Left out: Spark needs Java 17 or later, and this machine has ${major:-none}."
  echo "Install it (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME, then run this again."
fi
