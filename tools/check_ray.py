#!/usr/bin/env python3
"""Runs of `launch --engine=ray` on a Ray cluster of three nodes on this host: a whole one, one of fine-tuning, one whose services
are replaced, one that loses a node, one that is told to end, and which GPUs its ranks see.

    check_ray.py PROGRAMS     (with the packages of deploy/ray/requirements.txt; check_ray.sh installs them)
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import ray
from ray.cluster_utils import Cluster

LONG = 180  # seconds


def until(what, condition, process):
    deadline = time.monotonic() + LONG
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f'waited for {what}; exit code {process.poll()}')
        time.sleep(0.1)


def steps(run):
    file = run / 'metrics.jsonl'
    return [json.loads(line)['step'] for line in file.read_text().splitlines()] if file.exists() else []


def check(name, found, wanted):
    if found != wanted:
        sys.exit(f'{name}: {found!r}, not {wanted!r}')
    print(f'{name}: {found!r}', flush=True)


class Check:
    def __init__(self, programs, folder, cluster):
        self.programs, self.folder, self.cluster = programs, folder, cluster
        made = subprocess.run([programs / 'quickstart/quickstart', f'--run_dir={folder}/task'], capture_output=True, text=True)
        check('quickstart', made.returncode, 0)

    def launch(self, name, *fields, flags=()):
        run = self.folder / name
        command = [self.programs / 'deploy/launch', '--engine=ray', f'--config={self.folder}/task/run.textproto',
                   f'--python={sys.executable}', f'--set=run_dir={run}']
        placed = ['cluster.num_nodes=2', 'services.policy_trainer.num_nodes=2', 'train.save_steps=1', 'train.save_optimizer=true']
        placed += [f'services.{service}.num_nodes=1' for service in ('critic_trainer', 'rollout', 'scorer')]
        placed += [f'services.{service}.ranks=2' for service in ('policy_trainer', 'critic_trainer', 'rollout', 'scorer')]
        log = open(self.folder / f'{name}.log', 'w')
        flags = flags or [f'--ray_address={self.cluster.address}']
        return run, subprocess.Popen(command + [f'--set={field}' for field in [*placed, *fields]] + list(flags), stdout=log, stderr=log)

    def log(self, name):
        return (self.folder / f'{name}.log').read_text()

    def whole_run(self):
        run, process = self.launch('whole', 'train.max_steps=3')
        began = time.monotonic()
        until('services', lambda: 'run folder:' in self.log('whole'), process)
        print(f'seconds from the command to the orchestrator: {time.monotonic() - began:.1f}')
        check('a run', (process.wait(LONG), steps(run)), (0, [0, 1, 2]))

    def fine_tuning(self):
        run, start = self.folder / 'fine_tuned', self.folder / 'task/start'
        fields = [f'run_dir={run}', f'sft.data={start}/demonstrations.jsonl', f'actor.pretrain={start}/model', 'actor.max_len=32',
                  'train.train_batch_size=16', 'train.max_steps=4', 'cluster.num_nodes=2',
                  'services.policy_trainer.num_nodes=2']
        done = subprocess.run([self.programs / 'deploy/launch', '--engine=ray', '--program=sft', f'--python={sys.executable}',
                               f'--ray_address={self.cluster.address}', *(f'--set={field}' for field in fields)], timeout=LONG)
        check('fine-tuning', (done.returncode, len(steps(run)), (run / 'logs/rollout.log').exists()), (0, 4, False))

    def upgrade(self):
        run, process = self.launch('upgrade', 'train.max_steps=100000')
        until('steps', lambda: len(steps(run)) > 3, process)
        upgrade = [self.programs / 'orchestrator/upgrade', f'--run_dir={run}']
        done = subprocess.run([*upgrade, '--service=all', f'--bundle={self.programs}'], capture_output=True, text=True)
        check('replaced', (done.returncode, done.stdout.count(' is replaced, in ')), (0, 4))
        bundle = self.folder / 'ending/policy_trainer'
        bundle.mkdir(parents=True)
        (bundle / 'rank').symlink_to(self.programs / 'policy_trainer/rank')
        program = bundle / 'policy_trainer'
        real = self.programs / 'policy_trainer/policy_trainer'
        program.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exec {real} --version\nexit 7\n')
        program.chmod(0o755)
        refused = subprocess.run([*upgrade, '--service=policy_trainer', f'--bundle={bundle.parent}'], capture_output=True, text=True)
        check('one that ends', (refused.returncode, 'exit code 7' in refused.stderr, 'as it was before' in refused.stderr), (1, True, True))
        made = len(steps(run))
        until('further steps', lambda: len(steps(run)) > made + 3, process)
        check('steps', steps(run)[:made], list(range(made)))
        process.send_signal(signal.SIGINT)
        check('exit code after Ctrl-C', process.wait(LONG), 130)

    def lost_node(self):
        run, process = self.launch('lost', 'train.max_steps=100000')
        until('steps', lambda: len(steps(run)) > 3, process)
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level='error')
        used = {actor['Address']['NodeID'] for actor in ray._private.state.actors().values() if actor['State'] == 'ALIVE'}
        ray.shutdown()
        self.cluster.remove_node(next(node for node in self.cluster.list_all_nodes() if node.node_id in used), allow_graceful=False)
        until('a new start', lambda: 'going on after ' in self.log('lost'), process)
        before = len(steps(run))
        until('further steps', lambda: len(steps(run)) > before + 3, process)
        check('steps after a lost node', steps(run)[:before], list(range(before)))
        # Told to end, it makes a checkpoint first.
        process.send_signal(signal.SIGTERM)
        check('exit code after SIGTERM', process.wait(LONG), 143)
        check('the newest checkpoint', os.readlink(run / 'checkpoints/latest'), f'step_{len(steps(run))}')
        left = subprocess.run(['pgrep', '-f', f'{run}/launch/run.textproto'], capture_output=True, text=True).stdout
        check('what is left running', left, '')

    def stand_ins(self, name, program, script, ranks, *flags):
        """A launch of scripts in place of the programs of a plan: `program` of the orchestrator's, and ranks as (service, node, GPUs,
        script)."""
        run = self.folder / name
        (run / 'launch').mkdir(parents=True)
        (run / 'logs').mkdir()
        (run / 'launch/run.textproto').write_text('tls { }\n')
        stands_in = self.folder / 'fake/orchestrator' / program
        stands_in.parent.mkdir(parents=True, exist_ok=True)
        stands_in.write_text(f'#!/bin/sh\n{script}\n')
        stands_in.chmod(0o755)
        (run / 'launch/ranks.json').write_text(json.dumps(
            [{'service': service, 'rank': 0, 'node': node, 'gpus': gpus, 'cores': '',
              'environment': {'CUDA_VISIBLE_DEVICES': ','.join(map(str, gpus))}, 'command': ['sh', '-c', of_rank]}
             for service, node, gpus, of_rank in ranks]))
        return subprocess.run([sys.executable, self.programs / 'deploy/ray/launch', run, f'--programs={self.folder}/fake',
                               f'--address={self.cluster.address}', *flags], timeout=LONG, capture_output=True, text=True)

    def gpus(self):
        seen = {service: self.folder / f'seen.{service}' for service in ('policy_trainer', 'rollout', 'scorer')}
        ranks = [(service, node, gpus, f'echo "$CUDA_VISIBLE_DEVICES" >{seen[service]}; sleep 1000')
                 for service, node, gpus in (('policy_trainer', 0, [1, 3]), ('rollout', 0, [6]), ('scorer', 1, [2]))]
        done = self.stand_ins('gpus', 'orchestrator', f'until [ $(cat {self.folder}/seen.* | wc -l) = 3 ]; do sleep 0.1; done', ranks,
                              '--check=off')
        seen = {service: file.read_text().strip() for service, file in seen.items()}
        check('exit code', done.returncode, 0)
        # Of three GPUs that the first node's bundle has, whichever Ray gives: two are the policy trainer's, one the rollout's.
        own = [*seen['policy_trainer'].split(','), seen['rollout']]
        check('GPUs of three ranks', (len(own), len(set(own)), len(seen['scorer'].split(','))), (3, 3, 1))

    def not_checked(self):
        done = self.stand_ins('not_checked', 'check', 'exec sleep 1000', [('rollout', 0, [], 'sleep 1000'), ('scorer', 1, [], 'exit 7')],
                              '--check=only')
        check('a rank that ends before it is checked', (done.returncode, 'scorer rank 0 has ended with exit code 7' in done.stdout), (1, True))

    def too_large(self):
        run, process = self.launch('large', 'cluster.num_nodes=9', 'services.policy_trainer.num_nodes=9', 'services.policy_trainer.ranks=9')
        until('what it waits for', lambda: 'waits for nodes that are free' in self.log('large'), process)
        process.send_signal(signal.SIGINT)
        check('exit code after Ctrl-C', process.wait(LONG), 130)

    def refused(self):
        """What is wrong is named, with the flag that would be right."""
        _, process = self.launch('nobody', flags=['--ray_address=127.0.0.1:1'])
        check('nobody there', (process.wait(LONG), '--ray_address=127.0.0.1:1: ' in self.log('nobody')), (1, True))
        without = subprocess.run([sys.executable, '-S', self.programs / 'deploy/ray/launch', 'run', '--programs=.'],
                                 capture_output=True, text=True)
        check('without ray', (without.returncode, 'has no package ray' in without.stderr), (2, True))


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix='check_ray_'))
    cluster = Cluster(initialize_head=True, head_node_args={'num_cpus': 0, 'num_gpus': 0, 'object_store_memory': 80 << 20})
    for _ in range(3):
        cluster.add_node(num_cpus=16, num_gpus=8, object_store_memory=80 << 20)
    try:
        checks = Check(programs, folder, cluster)
        for one in (checks.refused, checks.whole_run, checks.fine_tuning, checks.gpus, checks.not_checked, checks.too_large, checks.upgrade,
                    checks.lost_node):
            one()
    finally:
        for log in sorted(folder.glob('*.log')) if sys.exc_info()[0] else []:
            print(f'== {log}\n{log.read_text()[-3000:]}')
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
    main()
