#!/usr/bin/env bash
# 现场排查：逐个检查岚盒需要的出站端口。
set -u

check_port() {
  local host="$1" port="$2"
  if timeout 3 bash -c "exec 3<>/dev/tcp/$host/$port" 2>/dev/null; then
    echo "ok   $host:$port"
  else
    echo "FAIL $host:$port"
    return 1
  fi
}

check_gateway_ports() {
  local firmware="$1" failed=0
  if [[ "$firmware" == 4.* ]]; then
    check_port edge.qinglan.example 8883 || failed=1
    check_port ota.qinglan.example 443 || failed=1
  else
    check_port iot3.qinglan.example 1883 || failed=1
  fi
  return $failed
}

check_gateway_ports "${1:-4.0}"
