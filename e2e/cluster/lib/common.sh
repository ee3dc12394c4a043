# shellcheck shell=bash disable=SC2034  # the names are read by the files that are sourced with this one
# Names, places and small functions that every command of this folder uses. Sourced, never run.

# The user's own cluster is never meant here.
unset KUBECONFIG

# A root shell opened with plain `su` has no sbin folders, where ip and iptables are.
case ":$PATH:" in
  *:/usr/sbin:*) ;;
  *:/usr/bin:*) PATH=$PATH:/usr/sbin:/sbin ;;
esac

CLONE=${HERE%/e2e/cluster}
# Tests keep a cluster of their own beside that of the clone.
STATE=${CLUSTER_STATE:-$CLONE/target/cluster}
BIN=$STATE/bin
LOG=$STATE/log
DATA=$STATE/data
RUN=$STATE/run
KUBECONFIG_FILE=$STATE/kubeconfig
CACHE=${CODEEXEC_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/codeexec}/cluster

REGISTRY_PORT=5000
API_PORT=6443
KUBERNETES_PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

# step TEXT COMMAND...: one line that says what is done, completed by the time it took.
step() {
  local text=$1 start=$EPOCHREALTIME
  shift
  printf '%s ... ' "$text" >&2
  "$@"
  printf '%s s\n' "$(seconds_since "$start")" >&2
}

seconds_since() {
  local tenths=$((($(microseconds "$EPOCHREALTIME") - $(microseconds "$1")) / 100000))
  printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# EPOCHREALTIME uses the locale's decimal sign.
microseconds() { printf '%s' "${1/[.,]/}"; }

# wait_for SECONDS WHAT COMMAND...: repeats a quiet command until it succeeds, or fails with the logs' place: in time, or at
# once when the command ends with 3, which says that waiting is in vain.
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2 status
  shift 2
  while true; do
    status=0
    "$@" >/dev/null 2>&1 || status=$?
    ((status)) || return 0
    if ((status == 3 || SECONDS >= deadline)); then
      say ""
      fail "$what did not happen; the logs are in $LOG."
    fi
    sleep 0.05
  done
}

# One command at a time works on a clone's cluster. The lock is on descriptor 9, which the node must not inherit.
lock_clone() {
  mkdir -p "$STATE"
  exec 9>"$STATE/lock"
  flock -n 9 && return
  say "Another cluster command is working on this clone; waiting for it."
  flock -w 1800 9 || fail "Another cluster command has been working on this clone for half an hour; end it and try again."
}

kubectl() { "$BIN/kubectl" --kubeconfig="$KUBECONFIG_FILE" --cache-dir="$STATE/kubectl-cache" "$@"; }

# The process id of the `unshare` that holds the node; fails when it does not run. Looked up by its command line, which
# names the clone, so that a node is found even after the clone's target folder was deleted.
holder_pid() {
  local places="$HERE/node/init $STATE "
  pgrep -f -- "^unshare --net .*${places//[^a-zA-Z0-9\/ _-]/.}"
}

# The process id, as the machine sees it, of the node's first process.
node_pid() {
  local holder
  holder=$(holder_pid) && pgrep -P "$holder"
}
