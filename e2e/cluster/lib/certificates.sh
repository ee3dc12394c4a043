# shellcheck shell=bash
# The cluster's own certificate authority, a certificate for each program, and kubeconfigs that contain theirs.

PKI=$DATA/pki

make_authority() {
  mkdir -p "$PKI"
  chmod 700 "$PKI"
  [[ -e $PKI/ca.crt ]] && return
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=codeexec-cluster \
    -keyout "$PKI/ca.key" -out "$PKI/ca.crt" 2>/dev/null
  openssl genrsa -out "$PKI/service-account.key" 2048 2>/dev/null
  openssl rsa -in "$PKI/service-account.key" -pubout -out "$PKI/service-account.pub" 2>/dev/null
}

# certificate NAME SUBJECT [EXTENSION]
certificate() {
  local name=$PKI/$1 subject=$2 extension=${3:-extendedKeyUsage=clientAuth}
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$subject" -keyout "$name.key" -out "$name.csr" 2>/dev/null
  openssl x509 -req -in "$name.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 3650 -out "$name.crt" \
    -extfile <(printf '%s\n' "$extension") 2>/dev/null
  rm "$name.csr"
}

# kubeconfig NAME FILE: the files' contents go in, so that it works from every folder and namespace.
kubeconfig() {
  local name=$1 file=$2
  (
    umask 077
    cat >"$file" <<EOF
apiVersion: v1
kind: Config
current-context: codeexec
contexts: [{name: codeexec, context: {cluster: codeexec, user: $name}}]
clusters:
- name: codeexec
  cluster: {server: "https://$NODE_IP:$API_PORT", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}
users:
- name: $name
  user: {client-certificate-data: $(base64 -w0 "$PKI/$name.crt"), client-key-data: $(base64 -w0 "$PKI/$name.key")}
EOF
  )
}

# Each program has a user of its own, so that the audit log tells them from the tests.
make_credentials() {
  local name
  make_authority
  certificate apiserver /CN=kube-apiserver \
    "subjectAltName=IP:127.0.0.1,IP:$NODE_IP,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  certificate kubelet-server /CN=node "subjectAltName=IP:$NODE_IP,DNS:node"
  certificate admin /O=system:masters/CN=admin
  certificate apiserver-kubelet /O=system:masters/CN=apiserver-kubelet
  certificate kubelet /O=system:nodes/CN=system:node:node
  certificate controller-manager /CN=system:kube-controller-manager
  certificate scheduler /CN=system:kube-scheduler
  certificate proxy /CN=system:kube-proxy
  certificate provisioner /O=system:masters/CN=provisioner
  certificate kube-router /O=system:masters/CN=kube-router
  for name in kubelet controller-manager scheduler proxy provisioner kube-router; do
    kubeconfig "$name" "$PKI/$name.conf"
  done
  kubeconfig admin "$KUBECONFIG_FILE.new"
  mv "$KUBECONFIG_FILE.new" "$KUBECONFIG_FILE"
}
