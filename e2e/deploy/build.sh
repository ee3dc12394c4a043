# shellcheck shell=bash
# How images are built, without a registry. Sourced, never run, after lib.sh; BINARY names the binaries of those that have one.

VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n1)
# Beside what every Debian has: roots for TLS, Python and time zones, used by the API server and the sandbox. The full sandbox image
# installs its own packages.
declare -A BASE_PACKAGES=([base]='ca-certificates,python3,tzdata' [apt-base]='ca-certificates,python3,tzdata,apt')

# An overlay does not go on top of another, and needs the right to mount; without it each layer is a whole copy.
storage_driver() {
  local trial
  trial=$(mktemp -d "$CACHE/.new-XXXXXX")
  mkdir "$trial"/{lower,upper,work,merged}
  if unshare --mount mount -t overlay overlay -o "lowerdir=$trial/lower,upperdir=$trial/upper,workdir=$trial/work" "$trial/merged" 2>/dev/null; then
    printf overlay
  else
    printf vfs
  fi
  rm -rf "$trial"
}

in_storage() {
  DRIVER=${DRIVER:-$(storage_driver)}
  buildah --storage-driver "$DRIVER" --root "$CACHE/storage" --runroot "$CACHE/run" "$@"
}

is_stored() { in_storage inspect --type image "$1" >/dev/null 2>&1; }

# The base has to be of this machine's release: the binaries were linked against its C library.
base_release() {
  local VERSION_CODENAME=
  # shellcheck disable=SC1091
  . /etc/os-release
  printf '%s' "${VERSION_CODENAME:-bookworm}"
}

# base_recipe PACKAGES OUTPUT: what makes a base; the hash of its definition names the result. This machine's resolver and name stay out.
base_recipe() {
  # shellcheck disable=SC2016
  SOURCE_DATE_EPOCH=1 mmdebstrap --variant=essential --mode=root --include="$1" \
    --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    "$(base_release)" "$2"
}

# base_of NAME: which base an image is made from.
base_of() { if [[ $1 == sandbox ]]; then printf apt-base; else printf base; fi; }

# base_image BASE: its name in the storage; the user's own where there is one.
base_image() {
  if [[ -n ${BASE_IMAGE:-} ]]; then
    printf '%s' "$BASE_IMAGE"
    return
  fi
  { declare -f base_recipe base_release import_base; base_release; uname -m; printf '%s' "${BASE_PACKAGES[$1]}"; } |
    sha256sum | cut -c1-16 | sed "s|^|localhost/codeexec-$1:|"
}

# make_base PACKAGES FILE
make_base() {
  local new
  new=$(mktemp -d "$CACHE/.new-XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$new'" EXIT
  base_recipe "$1" "$new/base.tar"
  chmod 644 "$new/base.tar"
  mv "$new/base.tar" "$2"
  rm -rf "$new"
}

# import_base FILE IMAGE
import_base() {
  local container
  container=$(in_storage from scratch)
  in_storage add "$container" "$1" /
  in_storage commit --rm --timestamp 0 "$container" "$2"
}

# require_base BASE: has it in the storage, unless it is the user's.
require_base() {
  [[ -z ${BASE_IMAGE:-} ]] || return 0
  local image lock file
  image=$(base_image "$1")
  file=$CACHE/$1-${image##*:}.tar
  exec {lock}>"$CACHE/lock"
  flock "$lock"
  [[ -e $file ]] || step "Making the $1 image from Debian packages" make_base "${BASE_PACKAGES[$1]}" "$file"
  is_stored "$image" || step "Importing the $1 image" import_base "$file" "$image"
  exec {lock}>&-
}

# containerfile NAME
containerfile() { printf '%s' "$ROOT/images/${1%-slim}/Containerfile"; }

# tag NAME: a hash over everything that the image is made of.
tag() {
  {
    if [[ $1 == sandbox ]]; then cat "$ROOT"/images/sandbox/*; else cat "$(containerfile "$1")"; fi
    if [[ -n ${BINARY[$1]:-} ]]; then sha256sum <"${BINARY[$1]}"; fi
    if [[ $1 != sandboxd ]]; then base_image "$(base_of "$1")"; fi
    printf '%s\n' "$VERSION"
  } | sha256sum | cut -c1-20
}

# local_image NAME: its name in the storage.
local_image() { printf 'localhost/codeexec/%s:%s' "$1" "$(tag "$1")"; }

# build_image NAME IMAGE
build_image() {
  local name=$1 image=$2 context=$ROOT args=()
  if [[ $name != sandboxd ]]; then args+=(--build-arg "BASE_IMAGE=$(base_image "$(base_of "$name")")"); fi
  if [[ -n ${BINARY[$name]:-} ]]; then
    context=${BINARY[$name]%/*}
    args+=(--build-arg "BINARY=${BINARY[$name]##*/}")
  fi
  case $name in
    sandbox-slim) args+=(--target slim) ;;
    sandbox)
      context=$ROOT/images/sandbox
      # The build trusts over TLS whom this machine trusts.
      args+=(--target full --volume /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro)
      if [[ $DRIVER == overlay ]]; then args+=(--layers); fi
      ;;
  esac
  in_storage build --isolation chroot --pull-never --timestamp 0 --format oci --build-arg "VERSION=$VERSION" "${args[@]}" \
    --tag "$image" --file "$(containerfile "$name")" "$context"
}

# former_images NAME IMAGE: others of this name in the storage.
former_images() { in_storage images --format '{{.Name}}:{{.Tag}}' | grep "^localhost/codeexec/$1:" | grep -vxF "$2" || true; }

# require_image NAME: has it in the storage, and no former one.
require_image() {
  local name=$1 image former lock
  image=$(local_image "$name")
  DRIVER=${DRIVER:-$(storage_driver)}
  if [[ $name != sandboxd ]]; then require_base "$(base_of "$name")"; fi
  # One build at a time: two of the large image would do the same work.
  exec {lock}>"$CACHE/lock"
  flock "$lock"
  if ! is_stored "$image"; then
    step "Building the image $name" build_image "$name" "$image"
    for former in $(former_images "$name" "$image"); do in_storage rmi "$former" >/dev/null 2>&1 || true; done
  fi
  exec {lock}>&-
}
