# shellcheck shell=bash
# What must be on the machine: checked by command, installed by package, named when it cannot be installed.

# command or file -> Debian package
IMAGE_TOOLS=(
  buildah buildah
  mmdebstrap mmdebstrap
)
NODE_TOOLS=(
  etcd etcd-server
  containerd containerd
  ctr containerd
  runc runc
  /usr/lib/cni/bridge containernetworking-plugins
  iptables iptables
  ipset ipset
  docker-registry docker-registry
  ip iproute2
  unshare util-linux
  openssl openssl
  mkfs.ext4 e2fsprogs
  gcc gcc
  /usr/include/stdio.h libc6-dev
  pgrep procps
)

# missing_packages COMMAND PACKAGE ...: the packages whose command or file is not there, one a line.
missing_packages() {
  local listed=' '
  while (($#)); do
    if ! [[ -e $1 ]] && ! command -v "$1" >/dev/null && [[ $listed != *" $2 "* ]]; then
      listed+="$2 "
      printf '%s\n' "$2"
    fi
    shift 2
  done
}

# explain_missing PACKAGES...: one sentence for each thing that stands in the way of installing them.
explain_missing() {
  local line="apt-get install --no-install-recommends $*" found=1
  if ! command -v apt-get >/dev/null; then
    say "apt-get is missing: this needs Debian or Ubuntu, or these packages installed in another way: $*."
    found=0
  elif ((EUID != 0)); then
    say "Packages are missing; as root, type: $line"
    found=0
  fi
  return $found
}

install_packages() {
  mkdir -p "$LOG"
  if ! (apt_get_quietly "$@") >"$LOG/apt.log" 2>&1; then
    say ""
    fail "apt-get could not install $*; its output is in $LOG/apt.log."
  fi
}

# Debian starts a service with its package, unless this policy says no: the node starts its own, in its own namespaces.
# Called in a subshell, whose end takes the policy away.
apt_get_quietly() {
  local policy=/usr/sbin/policy-rc.d
  if ! [[ -e $policy ]]; then
    # shellcheck disable=SC2064  # the value of now
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update && apt-get install -y --no-install-recommends "$@"
}

# require_packages COMMAND PACKAGE ...
require_packages() {
  local packages
  mapfile -t packages < <(missing_packages "$@")
  ((${#packages[@]})) || return 0
  if explain_missing "${packages[@]}"; then exit 1; fi
  step "Installing ${packages[*]} with apt-get" install_packages "${packages[@]}"
}

# check_go [FOLDER]: whether Go can build that module. It is not taken from Debian, whose version is too old.
check_go() {
  local folder=${1:-kubernetes} wanted
  wanted=$(go_wanted)
  if ! command -v go >/dev/null; then
    say "Go is missing: install Go $wanted or newer and put its bin folder on the PATH."
    return 1
  fi
  if ! (cd "$HERE/$folder" && go version) >/dev/null 2>&1; then
    say "Go is too old: $(GOTOOLCHAIN=local go env GOVERSION) is installed, install Go $wanted or newer."
    return 1
  fi
}

# The newest Go version that one of the modules asks for.
go_wanted() {
  local module key value newest=0
  for module in kubernetes provisioner netpol helm seaweedfs; do
    while read -r key value; do
      if [[ $key == go && ${value//./} -gt ${newest//./} ]]; then newest=$value; fi
    done <"$HERE/$module/go.mod"
  done
  printf '%s' "$newest"
}

# Everything that no package can mend; every problem is named before the command ends.
check_machine() {
  local problems=0 packages
  if [[ $OSTYPE != linux* ]]; then
    say "This is no Linux: the node needs Linux namespaces; run it in a Debian or Ubuntu virtual machine."
    problems=1
  fi
  if ((EUID != 0)); then
    say "This is not root: the node makes namespaces, links and mounts; run the same command as root."
    problems=1
  fi
  check_go || problems=1
  mapfile -t packages < <(missing_packages "${NODE_TOOLS[@]}" "${IMAGE_TOOLS[@]}")
  if ((${#packages[@]})) && explain_missing "${packages[@]}"; then problems=1; fi
  if ((problems)); then exit 1; fi
}

# Asks the kernel in a network namespace that ends at once.
check_kernel() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --net bash -c 'iptables -t nat -A POSTROUTING -m comment --comment probe -j MASQUERADE &&
    iptables -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT && ipset create probe hash:ip' >/dev/null 2>&1 ||
    fail "The kernel refuses iptables or ipset rules: load its modules (nf_tables or ip_tables, nf_nat, nf_conntrack, ip_set) or use another kernel."
  [[ -e /sys/fs/cgroup/cgroup.controllers || -e /sys/fs/cgroup/memory ]] ||
    fail "No cgroups are mounted at /sys/fs/cgroup: mount them there."
}
