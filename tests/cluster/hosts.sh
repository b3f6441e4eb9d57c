#!/bin/bash
# Hosts that are network namespaces of this machine: host1 to hostN, 10.77.0.1 to 10.77.0.N, on one switch, each with a
# name, a /run and an /etc/hosts of its own. Root and iproute2 alone can make them. They are gone with the processes that
# `up` starts and FOLDER/pids names.
#
#   hosts.sh up FOLDER N
#   hosts.sh run FOLDER I COMMAND...
#   hosts.sh cut FOLDER I           takes the link of host I down; `mend` takes it up again
#   hosts.sh limit FOLDER I RATE    lets it pass no more, either way, as tc takes it: 10mbit
#   hosts.sh down FOLDER
set -eu
export PATH=$PATH:/usr/sbin:/sbin
action=$1 folder=$2
shift 2
pid_of() { sed -n "s/^$1 //p" "$folder/pids"; }
in_net_of() {
  local name=$1
  shift
  nsenter -t "$(pid_of "$name")" --net "$@"
}
wait_for() {
  for _ in {1..200}; do
    "$@" && return
    sleep 0.05
  done
  echo "hosts.sh: waited for nothing: $*" >&2
  exit 1
}
# Process $1 has a network of its own.
is_apart() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }

case $action in
  up)
    mkdir -p "$folder"
    : >"$folder/pids"
    echo "127.0.0.1 localhost" >"$folder/hosts"
    for i in $(seq "$1"); do echo "10.77.0.$i host$i" >>"$folder/hosts"; done
    unshare --net sleep infinity &
    echo "switch $!" >>"$folder/pids"
    wait_for is_apart $!
    in_net_of switch ip link add switch type bridge
    in_net_of switch ip link set switch up
    for i in $(seq "$1"); do
      # shellcheck disable=SC2016  # Of the inner shell.
      unshare --net --mount --uts sh -ec 'hostname "$0"; mount -t tmpfs tmpfs /run; mount --bind "$1/hosts" /etc/hosts
        touch "$1/$0.ready"; exec sleep infinity' "host$i" "$folder" &
      echo "host$i $!" >>"$folder/pids"
      wait_for [ -e "$folder/host$i.ready" ]
      in_net_of switch ip link add "port$i" type veth peer name eth0 netns "$(pid_of "host$i")"
      in_net_of switch ip link set "port$i" master switch up
      in_net_of "host$i" ip address add "10.77.0.$i/24" dev eth0
      in_net_of "host$i" ip link set eth0 up
      in_net_of "host$i" ip link set lo up
    done
    ;;
  run)
    pid=$(pid_of "host$1")
    shift
    exec nsenter -t "$pid" --net --mount --uts --wd="$PWD" "$@"
    ;;
  cut) in_net_of switch ip link set "port$1" down ;;
  mend) in_net_of switch ip link set "port$1" up ;;
  limit)
    in_net_of switch tc qdisc replace dev "port$1" root tbf rate "$2" burst 256kb latency 50ms
    in_net_of "host$1" tc qdisc replace dev eth0 root tbf rate "$2" burst 256kb latency 50ms
    ;;
  down) cut -d' ' -f2 "$folder/pids" | xargs kill ;;
  *)
    sed -n '2,10s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
