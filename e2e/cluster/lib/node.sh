# shellcheck shell=bash
# The node's life: start, readiness, end, and removing what a dead one left.

# A living node gets some time to answer: its API server may be busy, or just be starting again.
is_running() {
  local deadline=$((SECONDS + 20))
  while holder_pid >/dev/null; do
    node_ready && return 0
    ((SECONDS < deadline)) || return 1
    sleep 0.2
  done
  return 1
}

has_remains() { [[ -e $RUN ]] || holder_pid >/dev/null || [[ -n $(own_links) ]]; }

node_ready() {
  [[ $(kubectl get node node --request-timeout=5s -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null) == True ]] &&
    kubectl get storageclass standard --request-timeout=5s >/dev/null 2>&1
}

# Every hierarchy of version 1, or the only one of version 2.
cgroup_hierarchies() {
  if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
    printf '/sys/fs/cgroup\n'
  else
    # Links, as cpu -> cpu,cpuacct on many machines, would name a hierarchy twice.
    find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d
  fi
}

# shellcheck disable=SC2153  # NUMBER is set by claim_number
make_cgroups() {
  local hierarchy own
  while read -r hierarchy; do
    own=$hierarchy/codeexec-$NUMBER
    hand_down_controllers "$hierarchy"
    mkdir -p "$own"
    # A cpuset of version 1 starts empty, and takes no process so.
    if [[ -e $own/cpuset.cpus && -e $hierarchy/cpuset.cpus ]]; then
      cat "$hierarchy/cpuset.cpus" >"$own/cpuset.cpus"
      cat "$hierarchy/cpuset.mems" >"$own/cpuset.mems"
    fi
  done < <(cgroup_hierarchies)
}

# Version 2 only: the kubelet accepts a cgroup that has every controller it knows.
hand_down_controllers() {
  local root=$1 controller
  [[ $root == /sys/fs/cgroup ]] || return 0
  for controller in cpuset cpu io memory pids hugetlb; do
    grep -qw "$controller" "$root/cgroup.controllers" || continue
    grep -qw "$controller" "$root/cgroup.subtree_control" && continue
    echo "+$controller" 2>/dev/null >"$root/cgroup.subtree_control" ||
      fail "The cgroup controller $controller cannot be handed down from $root: move the processes that are directly in it to a cgroup below, as systemd does."
  done
}

# The deepest first; a cgroup refuses while its last process is still ending.
remove_cgroups() {
  local number=$1 hierarchy
  while read -r hierarchy; do
    [[ -d $hierarchy/codeexec-$number ]] || continue
    wait_for 20 "Removing the cgroup $hierarchy/codeexec-$number" remove_cgroup_tree "$hierarchy/codeexec-$number"
  done < <(cgroup_hierarchies)
}

remove_cgroup_tree() {
  find "$1" -depth -type d -exec rmdir {} + 2>/dev/null
  [[ ! -d $1 ]]
}

# A new cluster gets new logs, the audit log above all; those of the one before stay for who asks why it ended.
set_logs_aside() {
  rm -rf "$LOG/previous"
  mkdir -p "$LOG/previous"
  find "$LOG" -maxdepth 1 -name '*.log' ! -name 'build-*' -exec mv -t "$LOG/previous" {} +
}

launch_node() {
  local holder child=''
  mkdir -p "$LOG" "$RUN" "$DATA"
  if [[ -e $DATA/kept ]]; then rm "$DATA/kept"; else set_logs_aside; fi
  claim_number
  make_credentials
  write_config
  make_cgroups
  setsid unshare --net --mount --uts --ipc --pid --fork --mount-proc --kill-child \
    "$HERE/node/init" "$STATE" "$NODE_IP" "$HOST_IP" >"$LOG/node.log" 2>&1 </dev/null 9>&- &
  holder=$!
  until child=$(pgrep -P "$holder"); do
    kill -0 "$holder" 2>/dev/null || fail "The node did not start: see $LOG/node.log."
    sleep 0.02
  done
  ip link set "cxn$NUMBER" netns "$child" name eth0
}

await_api() { wait_for 120 "The API server's answer" api_answers; }

api_answers() {
  holder_pid || return 3
  kubectl get --raw /readyz --request-timeout=5s
}

await_ready() {
  wait_for 60 "Creating the storage classes" kubectl apply -f "$HERE/manifests/storage.yaml"
  wait_for 120 "The node's Ready" node_ready
  # Pods are refused until their namespace has its service account.
  wait_for 60 "The default service account" kubectl get serviceaccount default --request-timeout=5s
}

# Ends the node and removes all that is outside of the clone's folder; safe when nothing is there.
end_node() {
  local holder child link number numbers=()
  mapfile -t numbers < <(own_links | sed 's/^cxe//')
  if holder=$(holder_pid); then
    # Only SIGKILL ends the first process of a namespace; the holder returns when the kernel has ended all the others.
    child=$(pgrep -P "$holder") && kill -KILL "$child"
    wait_for 30 "The end of the node's processes" process_gone "$holder"
  fi
  for link in $(own_links); do
    # The kernel may have removed it meanwhile, with the node's namespace.
    ip link delete "$link" 2>/dev/null || true
  done
  if [[ -r $STATE/number ]]; then numbers+=("$(<"$STATE/number")"); fi
  for number in "${numbers[@]}"; do
    if number_free "$number"; then remove_cgroups "$number"; fi
  done
  rm -rf "$RUN" "$KUBECONFIG_FILE" "$STATE/kubectl-cache"
}

# Gone, or only waiting for its parent to read its status.
process_gone() { ! grep -q '^State:[[:space:]]*[^ZX]' "/proc/$1/status"; }

# The number may have gone to another clone while this one was down, and the cgroup with it.
number_free() { ! ip link show "cxe$1" >/dev/null 2>&1; }

remove_data() { rm -rf "$DATA"; }
