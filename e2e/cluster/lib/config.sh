# shellcheck shell=bash
# Configuration files of the node's programs. Paths in them are those inside the node, where the clone's data
# folder is /run/node/data and its lib folder is /var/lib.

CONFIG=$DATA/config

write_config() {
  rm -rf "$CONFIG"
  mkdir -p "$CONFIG/cni" "$CONFIG/hosts/$NODE_IP:$REGISTRY_PORT"
  write_kubelet >"$CONFIG/kubelet.yaml"
  write_containerd >"$CONFIG/containerd.toml"
  write_pod_network >"$CONFIG/cni/10-pods.conflist"
  write_registry >"$CONFIG/registry.yaml"
  printf '[host."http://%s:%s"]\n  capabilities = ["pull", "resolve"]\n' "$NODE_IP" "$REGISTRY_PORT" \
    >"$CONFIG/hosts/$NODE_IP:$REGISTRY_PORT/hosts.toml"
  cp "$HERE/manifests/audit-policy.yaml" "$CONFIG/audit-policy.yaml"
}

# Cgroups: pods live below a cgroup of this clone's own; the node's programs stay in their caller's.
write_kubelet() {
  cat <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /codeexec-$NUMBER
failSwapOn: false
oomScoreAdj: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /run/node/data/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: /run/node/data/pki/kubelet-server.crt
tlsPrivateKeyFile: /run/node/data/pki/kubelet-server.key
volumePluginDir: /var/lib/kubelet/volume-plugins
clusterDomain: cluster.local
clusterDNS: [10.96.0.10]
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
# So that a pod which fills a folder is evicted within seconds.
volumeStatsAggPeriod: 10s
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", nodefs.inodesFree: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
maxPods: 300
podPidsLimit: 1024
serializeImagePulls: false
kubeAPIQPS: 200
kubeAPIBurst: 400
EOF
}

# Without CAP_SYS_RESOURCE (as in many containers) a negative oom_score_adj stops runc: restrict_oom_score_adj.
write_containerd() {
  local snapshotter=overlayfs cni=/usr/lib/cni
  # An overlay does not go on top of another.
  [[ $(stat -fc %T "$DATA") == overlayfs ]] && snapshotter=native
  cat <<EOF
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$cni"
    conf_dir = "/run/node/data/config/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/run/node/data/config/hosts"
EOF
}

write_pod_network() {
  cat <<EOF
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
EOF
}

write_registry() {
  cat <<EOF
version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: /var/lib/registry}, delete: {enabled: true}}
http: {addr: "$NODE_IP:$REGISTRY_PORT"}
EOF
}
