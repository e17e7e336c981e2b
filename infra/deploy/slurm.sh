#!/usr/bin/env bash
# Run a polypool verb on a Ray cluster on the nodes of a Slurm job:
#
#   sbatch --nodes 4 --gpus-per-node 1 infra/deploy/slurm.sh train coco_region_bigru --workers 4 --seed 0
#
# At the time limit the run writes a checkpoint, the job is requeued, and the same command resumes the run.
# Flags and environment variables of sbatch (SBATCH_TIMELIMIT, ...) override these lines:
#SBATCH --job-name=polypool
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#
# Environment variables (default in brackets):
#
# POLYPOOL_ENV            Python's virtual environment, on every node (.venv)
# POLYPOOL_HOME           folder of data and runs, shared by all nodes (the folder where sbatch was called)
# MLFLOW_TRACKING_URI     server that records runs (mlflow.db in POLYPOOL_HOME, which only the first node writes)
# POLYPOOL_INTERFACE      network interface of Ray and Gloo, such as ib0 (the interface of the node's first address)
# POLYPOOL_RAY_PORT       first of ten free ports on every node (computed from the job id, from 20000)
# POLYPOOL_START_SECONDS  timeout for Ray's start on the first node, and again for all nodes to join (300)
# POLYPOOL_REQUEUES       maximum number of requeues (100); none before the verb has started
set -euo pipefail

say() { echo "polypool: $*" >&2; }

[ $# -gt 0 ] || { say "which verb? sbatch $0 train RECIPE [--overrides]"; exit 2; }
: "${SLURM_JOB_ID:?is not set: start this script with sbatch}" "${SLURM_JOB_NODELIST:?}" "${SLURM_JOB_NUM_NODES:?}"
export POLYPOOL_HOME=${POLYPOOL_HOME:-$PWD}
env=${POLYPOOL_ENV:-.venv}
if [ -d "$env/bin" ]; then PATH=$(cd "$env/bin" && pwd):$PATH; fi
export PATH
cpus=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
seconds=${POLYPOOL_START_SECONDS:-300}
port=${POLYPOOL_RAY_PORT:-$((20000 + SLURM_JOB_ID % 1000 * 10))}

# a token per job protects Ray from others on the nodes' network
export RAY_AUTH_MODE=token
if [ -z "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" ]; then
    RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
    export RAY_AUTH_TOKEN
fi

# print the node's address; Debian resolves the node's name to 127.0.1.1
address() {
    if [ -n "${POLYPOOL_INTERFACE:-}" ]; then
        ip -4 -o addr show dev "$POLYPOOL_INTERFACE" | awk '{sub("/.*", "", $4); print $4; exit}'
    else
        hostname -I | awk '{for (i = 1; i <= NF; i++) if ($i !~ /^127\.|:/) {print $i; exit}}'
    fi
}

# run Ray on a node until SIGTERM; by default Gloo uses the interface of the address that the node's name resolves to
node() {
    local here temp=/tmp/pp-$SLURM_JOB_ID code=0
    here=$(address)
    [ -n "$here" ] || { echo "polypool: $(hostname) has no IPv4 address; set POLYPOOL_INTERFACE" >&2; exit 1; }
    case "${POLYPOOL_INTERFACE:-}:$(getent ahostsv4 "$(hostname)" | awk 'NR == 1 {print $1}')" in
        :127.* | : | ?*:*)
            GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$(ip -4 -o addr show |
                awk -v here="$here" '{sub("/.*", "", $4)} $4 == here {print $2; exit}')}
            export GLOO_SOCKET_IFNAME
            ;;
    esac
    ray start --block --disable-usage-stats --node-ip-address="$here" --temp-dir="$temp" --num-cpus="$cpus" \
        --dashboard-agent-listen-port="$((port + 3))" "$@" &
    trap 'kill $!' TERM
    wait $! || code=$?
    wait $! || true # a signal interrupts the first wait
    rm -rf "$temp"
    exit "$code"
}

limit=0 ended='' driver='' begun='' started=()
stop_driver() {
    ended=143
    if [ -n "$driver" ]; then kill -TERM "$driver" 2>/dev/null || true; fi
}
trap 'limit=1; say "the time limit is near"; stop_driver' USR1
trap 'stop_driver' TERM

finish() {
    if [ ${#started[@]} -gt 0 ]; then
        kill -TERM "${started[@]}" 2>/dev/null || true
        wait "${started[@]}" || true
    fi
    if [ "$limit" = 1 ] && [ "$1" = 143 ]; then
        if [ -z "$begun" ]; then
            say "the time limit came before Ray had started on all nodes; not queued again: give it more (sbatch --time)"
            exit 1
        fi
        if [ "${SLURM_RESTART_COUNT:-0}" -ge "${POLYPOOL_REQUEUES:-100}" ]; then
            say "not queued again, after $SLURM_RESTART_COUNT times (POLYPOOL_REQUEUES)"
            exit 1
        fi
        say "queued again, to go on"
        scontrol requeue "$SLURM_JOB_ID" || { say "cannot be queued again: sbatch --requeue allows it"; exit 1; }
    fi
    exit "$1"
}

# retry a command until it succeeds; fail after the timeout, or if Ray ends on a node
until_done() {
    local until=$((SECONDS + seconds)) each
    until "$@" >/dev/null 2>&1; do
        if [ -n "$ended" ]; then finish "$ended"; fi
        for each in "${started[@]}"; do
            kill -0 "$each" 2>/dev/null || { say "Ray ended on a node; its output is above"; finish 1; }
        done
        [ "$SECONDS" -lt "$until" ] || { say "Ray did not start in $seconds seconds"; finish 1; }
        sleep 1
    done
}

# start Ray on some nodes: flags of srun in one word, then flags of ray start
on_nodes() {
    local flags=$1
    shift
    export cpus port
    # shellcheck disable=SC2086 # flags are several words
    srun $flags --cpus-per-task="$cpus" --mem=0 --overlap --wait=0 --kill-on-bad-exit=0 \
        bash -c "$(declare -f address node); node \"\$@\"" node "$@" &
    started+=("$!")
}

names=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${names%%$'\n'*} # where this script runs
here=$(address)
on_nodes "--nodes=1 --ntasks=1 --nodelist=$first" --head --port="$port" --dashboard-host=127.0.0.1 \
    --dashboard-port="$((port + 1))" --ray-client-server-port="$((port + 2))"
until_done ray health-check --address "$here:$port"
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    others=$((SLURM_JOB_NUM_NODES - 1))
    on_nodes "--nodes=$others --ntasks=$others --ntasks-per-node=1 --exclude=$first" --address="$here:$port"
fi
export RAY_ADDRESS=$here:$port

# a file with the run's id lets the same command resume the run after a requeue, unless the user names such a file
verb=$1
shift
own=''
for word in "$@"; do
    case $word in --run-id-file | --run-id-file=*) own=1 ;; esac
done
if [ "$verb" = train ] && [ "${1:-}" != resume ] && [ -z "$own" ]; then
    file=$POLYPOOL_HOME/slurm-$SLURM_JOB_ID.run
    [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || rm -f "$file" # from an older job with this id
    set -- "$@" --run-id-file "$file"
fi

# run a command, which SIGTERM and the time limit's signal stop
run() {
    local code=0
    if [ -n "$ended" ]; then finish "$ended"; fi
    "$@" &
    driver=$!
    while kill -0 "$driver" 2>/dev/null; do
        wait "$driver" || true # a signal interrupts it
    done
    wait "$driver" || code=$?
    driver=''
    return "$code"
}
code=0
run python -m polypool.infra.deploy.nodes "$SLURM_JOB_NUM_NODES" "$seconds" || finish $?
begun=1
run python -m polypool "$verb" "$@" || code=$?
finish "$code"
