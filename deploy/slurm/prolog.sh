#!/usr/bin/env bash
# Slurm Prolog, on each node of a job, as root: starts a memory server that lives as long as the job, and writes the
# host file that names the servers of all its nodes. Install: Prolog=/etc/nram/slurm/prolog.sh and PrologFlags=Alloc in
# slurm.conf.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/common.sh"

# If a node's server does not start, the job has a smaller pool. (If the Prolog failed, Slurm would drain the node.)
skip() {
  # Another program answers on this node's port. (The other nodes of the job cannot know that: choose NRAM_JOB_PORT so
  # that nothing else listens there.) Without other nodes there is no host file, and tasks find the site's own pool.
  if [ -r "$job_directory/pool" ]; then
    grep -v "^${SLURMD_NODENAME:-$(hostname -s)}:" "$job_directory/pool" > "$job_directory/pool.new" || true
    mv "$job_directory/pool.new" "$job_directory/pool"
    [ -s "$job_directory/pool" ] || rm "$job_directory/pool"
  fi
  logger -t nram-slurm "job $SLURM_JOB_ID: $*" 2> /dev/null || true
  echo "nram-slurm: job $SLURM_JOB_ID: $*" >&2
  exit 0
}

if [ "$NRAM_JOB_ASKED" = yes ]; then
  asks=
  # The comment is the user's, and may have any words.
  IFS=$' \t\n,;' read -rd '' -a words <<< "${SLURM_JOB_COMMENT:-}" || true
  for word in "${words[@]}"; do
    case "$word" in
      nram) asks=yes ;;
      # At most SIZE, and no more than the node has to spare.
      nram=?*) asks=yes NRAM_JOB_DONATE=auto:-${word#nram=} ;;
    esac
  done
  [ -n "$asks" ] || exit 0
fi

mkdir -p "$job_directory"
rm -f "$job_directory/pool" # of a requeued job
nodes=$(scontrol show hostnames "${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-$(hostname -s)}}") ||
  skip "scontrol does not list its nodes"
name_servers() { # port
  for node in $nodes; do echo "$node:$1"; done > "$job_directory/pool.new"
  mv "$job_directory/pool.new" "$job_directory/pool"
}

# The address by which the other nodes reach this one.
addresses=$(getent ahostsv4 "${SLURMD_NODENAME:-$(hostname -s)}" | awk '{print $1}') || true
address=$(printf '%s\n' "$addresses" | awk '!/^127\./ {print; exit}')
# Loopback is enough for a job of one node only.
[ -n "$address" ] || [ "$(wc -w <<< "$nodes")" -gt 1 ] || address=${addresses%%$'\n'*}
[ -n "$address" ] || skip "this node's name has only a loopback address (see /etc/hosts)"

# All nodes derive the job's authority from the site's secret, since their prologs do not communicate. Only the job's
# user can read the client's files, and only root the server's.
if [ -r "$NRAM_JOB_SECRET" ]; then
  said=$(umask 077 && nram keygen "$job_directory/server-tls" --secret="$NRAM_JOB_SECRET" \
    --purpose="slurm ${SLURM_CLUSTER_NAME:-} $SLURM_JOB_ID" --host="${SLURMD_NODENAME:-$(hostname -s)}" \
    --host="$address" 2>&1) || skip "no certificates: $said"
  owner=${SLURM_JOB_UID:-0}:${SLURM_JOB_GID:-$(id -g "${SLURM_JOB_UID:-0}" 2> /dev/null || echo 65534)}
  rm -rf --one-file-system "$job_directory/tls" || skip "its user has mounted something in $job_directory/tls"
  mkdir -m 700 "$job_directory/tls"
  cp "$job_directory/server-tls/"{ca.pem,client.pem,client.key} "$job_directory/tls/"
  chmod 400 "$job_directory/tls/"*
  chown -R "$owner" "$job_directory/tls"
  rm "$job_directory/server-tls/"client.*
  admits=--tls-dir=$job_directory/server-tls
elif [ "$NRAM_JOB_UNAUTHENTICATED" = yes ]; then
  admits=--allow-unauthenticated
else
  skip "there is no $NRAM_JOB_SECRET to make certificates from (see common.sh), so there is no pool"
fi

# The job's tasks may use the servers of its other nodes, whether or not this node's server starts.
name_servers "$job_port"

# Clients' pages go to no swap of this node: in a group of its own the server has none. A node without systemd should
# have no swap, or memory.swap.max=0 in the group of slurmd.
unswapped=()
if timeout 5 systemd-run --scope --quiet --property=MemorySwapMax=0 true > /dev/null 2>&1; then
  unswapped=(systemd-run --scope --quiet --property=MemorySwapMax=0)
fi

figures=()
[ -z "$NRAM_JOB_METRICS" ] || figures=(--metrics="$address:0")
# Tells Prometheus the server's port.
tell_prometheus() {
  [ -n "$NRAM_JOB_METRICS" ] || return 0
  local port
  port=$(sed -n 's/.*"metrics_port": \([0-9]*\).*/\1/p' "$job_directory/ready")
  mkdir -p "$NRAM_JOB_METRICS" &&
    printf '[{"targets": ["%s:%s"], "labels": {"slurm_job": "%s"}}]\n' "${SLURMD_NODENAME:-$address}" "$port" \
      "$SLURM_JOB_ID" > "$job_metrics.new" &&
    mv "$job_metrics.new" "$job_metrics" || echo "nram-slurm: cannot write $job_metrics for Prometheus" >&2
}

# Starts the server on two ports, which it keeps while it lives. Returns 0 if it serves, 1 if the ports are taken.
start_on() { # port
  rm -f "$job_directory/ready"
  # The job's own processes have priority.
  # shellcheck disable=SC2086 # flags are words
  setsid nice -n 10 "${unswapped[@]}" nram-memserver --donate="$NRAM_JOB_DONATE" --listen="$address" "$admits" \
    --port="$1" --leave-within-ms="$NRAM_JOB_LEAVE_MS" --ready-file="$job_directory/ready" "${figures[@]}" \
    $NRAM_JOB_FLAGS \
    > "$job_directory/memserver.log" 2>&1 < /dev/null &
  local pid=$!
  echo "$pid" > "$job_directory/memserver.pid"
  for _ in $(seq 100); do
    [ ! -e "$job_directory/ready" ] || return 0
    if ! kill -0 "$pid" 2> /dev/null; then
      ! grep -q "Address already in use" "$job_directory/memserver.log" || return 1
      skip "the memory server ended: $(tail -1 "$job_directory/memserver.log")"
    fi
    read -rt 0.1 <> <(:) || true
  done
  skip "the memory server is not ready after 10 s; see $job_directory/memserver.log"
}

for tries in $(seq 0 63); do
  port=$((NRAM_JOB_PORT + (job_port - NRAM_JOB_PORT + 2 * tries) % 24000))
  if start_on "$port"; then
    [ "$port" = "$job_port" ] || name_servers "$port"
    tell_prometheus
    exit 0
  fi
  # The job's other nodes would ask the wrong port.
  if [ "$(wc -w <<< "$nodes")" -gt 1 ]; then
    taken="ports $port and $((port + 1)) of $(hostname -s) are taken, by another job or program: the pool is without it"
    echo "$taken" > "$job_directory/taken"
    skip "$taken; the other nodes would reach servers of another job there"
  fi
done
skip "no two ports are free: the last tried were $port and $((port + 1))"
