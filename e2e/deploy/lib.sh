# shellcheck shell=bash disable=SC2034
# What the commands of this folder share. Sourced, never run; HERE is this folder.

ROOT=${HERE%/e2e/deploy}
CACHE=${CODEEXEC_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/codeexec}/images
LOG=$ROOT/target/deploy
IMAGES_ENV=${IMAGES_ENV:-$ROOT/target/images.env}
RELEASE=${RELEASE:-codeexec}
NAMESPACE=${NAMESPACE:-codeexec-system}
NAMES=(operator api-server sandboxd sandbox-slim sandbox)

# image NAME: its reference, as e2e/deploy/images left it.
image() { sed -n "s/^$1=//p" "$IMAGES_ENV"; }

# helm_upgrade RELEASE NAMESPACE ARGUMENTS...: installs or upgrades the chart with the built images, and takes over resource
# types that somebody applied by hand. Helm 3 applies on the client and so knows no conflicts.
helm_upgrade() {
  local release=$1 namespace=$2 force=(--force-conflicts)
  shift 2
  if [[ $(helm version --short) == v3* ]]; then force=(); fi
  helm upgrade --install "$release" "$ROOT/charts/codeexec" --namespace "$namespace" --create-namespace --take-ownership "${force[@]}" \
    --set-string "images.operator=$(image operator)" --set-string "images.apiServer=$(image api-server)" \
    --set-string "images.sandboxd=$(image sandboxd)" --set-string "images.sandbox=$(image sandbox)" \
    --set-string "images.sandboxSlim=$(image sandbox-slim)" "$@"
}

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

# step TEXT COMMAND...: one line that says what is done, completed by the time it took. The command's output goes to a log.
step() {
  local text=$1 start=$SECONDS log=$LOG/${2//[^a-z_]/}.log
  shift
  mkdir -p "$LOG"
  printf '%s ... ' "$text" >&2
  if ! "$@" >"$log" 2>&1; then
    say "failed"
    tail -n 20 "$log" >&2
    fail "The whole output is in $log."
  fi
  printf '%s s\n' $((SECONDS - start)) >&2
}

# The cluster of $KUBECONFIG, or this clone's; sets KUBECONFIG, IMAGE_REGISTRY and IMAGE_REGISTRY_PLAIN, and puts kubectl and helm on the PATH.
use_cluster() {
  local places
  if [[ -n ${KUBECONFIG:-} ]]; then
    [[ -n ${IMAGE_REGISTRY:-} ]] ||
      fail "KUBECONFIG is set: set IMAGE_REGISTRY too, to a registry (host[:port][/path]) that this machine may push to and that cluster pulls from."
    if ! command -v helm >/dev/null || ! command -v kubectl >/dev/null; then
      "$ROOT/e2e/cluster/tools"
      PATH=$ROOT/target/cluster/bin:$PATH
    fi
    return
  fi
  places=$("$ROOT/e2e/cluster/env") || exit 1
  eval "$places"
  export KUBECONFIG
  PATH=$CLUSTER_BIN:$PATH
  if [[ -z ${IMAGE_REGISTRY:-} ]]; then
    IMAGE_REGISTRY=$CLUSTER_REGISTRY
    IMAGE_REGISTRY_PLAIN=1
  fi
}

need() {
  local missing=()
  local name
  for name; do command -v "$name" >/dev/null || missing+=("$name"); done
  ((${#missing[@]} == 0)) || fail "Missing: ${missing[*]}. Type: apt-get install --no-install-recommends ${missing[*]}"
}
