# shellcheck shell=bash
# Programs and the pause image, built once into a cache whose keys are hashes of everything that goes into them.

# go_build_arguments FOLDER: flags and package of `go build`. Versions are set as in the projects' own releases, since
# charts and clients ask for them.
go_build_arguments() {
  local flags='-s -w' package=. version
  case $1 in
    kubernetes)
      version=$(module_version kubernetes k8s.io/kubernetes)
      flags+=$(version_flags k8s.io/component-base/version "$version")$(version_flags k8s.io/client-go/pkg/version "$version")
      ;;
    helm)
      package=helm.sh/helm/v4/cmd/helm
      flags+=" -X helm.sh/helm/v4/internal/version.version=$(module_version helm helm.sh/helm/v4)"
      ;;
    netpol) package=github.com/cloudnativelabs/kube-router/v2/cmd/kube-router ;;
    seaweedfs) package=github.com/seaweedfs/seaweedfs/weed ;;
  esac
  printf '%s\n' -mod=readonly -trimpath "-ldflags=$flags" "$package"
}

# module_version FOLDER MODULE: the version that the folder's go.mod asks for.
module_version() {
  local first second third
  while read -r first second third _; do
    case $first in
      "$2") printf '%s' "$second" && return ;;
      require) [[ $second == "$2" ]] && printf '%s' "$third" && return ;;
    esac
  done <"$HERE/$1/go.mod"
  return 1
}

version_flags() {
  local package=$1 version=$2 numbers
  IFS=. read -r -a numbers <<<"${version#v}"
  printf ' -X %s=%s' "$package.gitVersion" "$version" "$package.gitMajor" "${numbers[0]}" "$package.gitMinor" "${numbers[1]}" \
    "$package.gitTreeState" clean
}

# source_key FOLDER: a hash of the folder's files and of the compiler.
source_key() {
  local folder=$1
  {
    (cd "$HERE/$folder" && sha256sum -- *)
    case $folder in
      pause) gcc -dumpfullversion -dumpmachine ;;
      *) go_build_arguments "$folder" && cd "$HERE/$folder" && go env GOVERSION GOOS GOARCH ;;
    esac
  } | sha256sum | cut -c1-16
}

# shellcheck disable=SC2153  # set in common.sh
cache_path() { printf '%s/%s-%s' "$CACHE" "$1" "$(source_key "$1")"; }

# cached FOLDER TEXT COMMAND: runs COMMAND with a new folder to fill, unless the cache has the result; sets CACHED to its path.
cached() {
  local folder=$1 text=$2 build=$3 lock
  CACHED=$(cache_path "$folder")
  [[ -d $CACHED ]] && return
  mkdir -p "$CACHE" "$LOG"
  exec {lock}>"$CACHE/$folder.lock"
  if ! flock -n "$lock"; then
    say "Another clone is building $folder; waiting for it."
    flock "$lock"
  fi
  if ! [[ -d $CACHED ]]; then
    step "$text" fill_cache "$folder" "$build"
  fi
  exec {lock}>&-
}

fill_cache() {
  local folder=$1 build=$2 new
  # What an interrupted build left: the lock is ours, so nobody is filling it.
  rm -rf "$CACHE/.new-$folder-"*
  new=$(mktemp -d "$CACHE/.new-$folder-XXXXXX")
  if ! "$build" "$folder" "$new" >"$LOG/build-$folder.log" 2>&1; then
    rm -rf "$new"
    say ""
    fail "Building $folder failed; the compiler's output is in $LOG/build-$folder.log."
  fi
  chmod 755 "$new"
  mv -T "$new" "$CACHED"
}

build_go() {
  local folder=$1 new=$2 arguments
  mapfile -t arguments < <(go_build_arguments "$folder")
  (cd "$HERE/$folder" && CGO_ENABLED=0 go build -o "$new/$folder" "${arguments[@]}")
}

# The pause image as an archive: one static program, one layer, written without any image tool.
build_pause() {
  local new=$2 layer
  mkdir "$new/image" "$new/root" &&
    gcc -Os -static -s -o "$new/root/pause" "$HERE/pause/pause.c" &&
    tar --sort=name --owner=0 --group=0 --mtime=@0 -C "$new/root" -cf "$new/image/layer.tar" pause || return
  layer=$(sha256sum <"$new/image/layer.tar" | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/pause"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(go env GOARCH)" "$layer" >"$new/image/config.json" &&
    printf '[{"Config":"config.json","RepoTags":["localhost/pause:1"],"Layers":["layer.tar"]}]' >"$new/image/manifest.json" &&
    tar --sort=name --owner=0 --group=0 --mtime=@0 -C "$new/image" -cf "$new/pause.tar" config.json manifest.json layer.tar &&
    rm -r "$new/image" "$new/root"
}

link_program() { ln -sfn "$CACHED/$1" "$BIN/$2"; }

# kubectl is one of the names of the kubernetes executable.
build_kubernetes() {
  local name
  cached kubernetes "Building Kubernetes from its Go modules; the first time this takes five to ten minutes" build_go
  for name in "${KUBERNETES_PROGRAMS[@]}"; do link_program kubernetes "$name"; done
}

build_helm() {
  cached helm "Building Helm from its Go modules; the first time this takes about two minutes" build_go
  link_program helm helm
}

build_seaweedfs() {
  mkdir -p "$BIN"
  cached seaweedfs "Building SeaweedFS from its Go modules; the first time this takes about five minutes" build_go
  link_program seaweedfs weed
}

# A kubectl that is there already does: without one it is built, and Kubernetes with it.
build_tools() {
  mkdir -p "$BIN"
  [[ -e $BIN/kubectl ]] || ln -sfn "$(type -P kubectl)" "$BIN/kubectl" 2>/dev/null || build_kubernetes
  build_helm
}

build_node() {
  mkdir -p "$BIN"
  build_kubernetes
  cached provisioner "Building the volume provisioner; the first time this takes about two minutes" build_go
  link_program provisioner provisioner
  cached netpol "Building kube-router from its Go modules; the first time this takes about two minutes" build_go
  link_program netpol kube-router
  cached pause "Building the pause image" build_pause
  link_program pause.tar pause.tar
}
