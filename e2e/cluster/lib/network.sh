# shellcheck shell=bash
# The link between the machine and the node, and the number that keeps clones apart.
#
# A clone's number N gives the link `cxeN`, the cgroup `codeexec-N` and four addresses of 198.18.0.0/15 (the range for
# benchmarks, which nobody routes). The link is the claim: the kernel makes a name only once, and it disappears with the node.

NUMBERS=32768

number_addresses() {
  local base=$((0xC6120000 + 4 * $1))
  HOST_IP=$(dotted $((base + 1)))
  NODE_IP=$(dotted $((base + 2)))
}

dotted() { printf '%d.%d.%d.%d' $(($1 >> 24 & 255)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255)); }

# A clone keeps its number as long as nobody else has it, so that its addresses stay the same.
first_number() {
  local sum
  if [[ -r $STATE/number ]]; then
    cat "$STATE/number"
  else
    sum=$(printf '%s' "$STATE" | cksum)
    printf '%d' $((${sum%% *} % NUMBERS))
  fi
}

# Sets NUMBER, HOST_IP and NODE_IP, and makes the link; a number whose link or addresses exist is passed over.
claim_number() {
  local try first
  first=$(first_number)
  for ((try = 0; try < 64; try++)); do
    NUMBER=$(((first + try * 97) % NUMBERS))
    number_addresses "$NUMBER"
    addresses_free || continue
    ip link add "cxe$NUMBER" type veth peer name "cxn$NUMBER" 2>/dev/null || continue
    ip link set "cxe$NUMBER" alias "$STATE"
    ip addr add "$HOST_IP/30" dev "cxe$NUMBER"
    ip link set "cxe$NUMBER" up
    printf '%s\n' "$NUMBER" >"$STATE/number"
    return
  done
  fail "No free number for the node's link: 64 were tried; see \`ip link\` and \`ip route\`, and stop clusters of other clones."
}

addresses_free() {
  local routes
  routes=$(ip -4 route show table all root "$HOST_IP/30"; ip -4 route show table all match "$NODE_IP")
  ! grep -qv '^default' <<<"$routes" || [[ -z $routes ]]
}

# Every link that carries this clone's mark, whatever its number.
own_links() {
  ip -json link show type veth | tr '{' '\n' | grep -F "\"ifalias\":\"$STATE\"" | grep -o '"ifname":"[^"]*"' | cut -d'"' -f4
}
