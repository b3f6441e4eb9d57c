#!/bin/bash
# One node of a Slurm cluster, on host I of N (hosts.sh run); the first is the controller, too. Stays until it is killed.
# Commands find the cluster by SLURM_CONF=FOLDER/slurm.conf. Partition "all" is preempted, with 60 s of grace, by "urgent".
#
# usage: slurm.sh FOLDER I N     (packages slurmctld, slurmd, slurm-client and munge)
set -eu
export PATH=$PATH:/usr/sbin:/sbin
folder=$1 number=$2 count=$3
here=$folder/host$number
mkdir -p "$here" /run/munge /run/slurmd
if [ "$number" = 1 ]; then
  mkdir -p "$here/state"
  [ -e "$folder/munge.key" ] || mungekey -c -k "$folder/munge.key"
  cat >"$folder/slurm.conf.new" <<END
ClusterName=test
SlurmctldHost=host1(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
MessageTimeout=5
TcpTimeout=2
SlurmctldTimeout=10
SlurmdTimeout=8
GresTypes=gpu
StateSaveLocation=$here/state
SlurmctldPidFile=$here/controller.pid
SlurmdPidFile=$folder/%n/slurmd.pid
SlurmdSpoolDir=/run/slurmd
SlurmctldLogFile=$here/controller.log
SlurmdLogFile=$folder/%n/slurmd.log
SlurmdParameters=config_overrides
$(for i in $(seq "$count"); do echo "NodeName=host$i NodeAddr=10.77.0.$i CPUs=4 RealMemory=4000 Gres=gpu:8 State=UNKNOWN"; done)
PartitionName=all Nodes=host[1-$count] Default=YES State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=host[1-$count] State=UP PriorityTier=10
END
  # Character devices (all /dev/null) stand for GPUs: Slurm allots them and sets CUDA_VISIBLE_DEVICES.
  for i in $(seq 0 7); do mknod "$folder/gpu$i" c 1 3; done
  echo "Name=gpu File=$folder/gpu[0-7]" >"$folder/gres.conf"
  mv "$folder/slurm.conf.new" "$folder/slurm.conf"
fi
until [ -e "$folder/slurm.conf" ]; do sleep 0.05; done
export SLURM_CONF=$folder/slurm.conf
munged --foreground --force --key-file="$folder/munge.key" --pid-file="$here/munged.pid" --seed-file="$here/munge.seed" \
  --log-file="$here/munged.log" --socket=/run/munge/munge.socket.2 &
until [ -S /run/munge/munge.socket.2 ]; do sleep 0.05; done
[ "$number" != 1 ] || slurmctld -D -c &
exec slurmd -D -d "$(command -v slurmstepd || ls /usr/sbin/slurmstepd*)" -N "host$number"
