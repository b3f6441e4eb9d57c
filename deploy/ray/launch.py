#!/usr/bin/env python3
"""Runs the ranks of a launch plan on a Ray cluster, and the orchestrator beside this program.

    launch.py RUN_DIR --programs=FOLDER [--program=NAME] [--address=HOST:PORT] [--max_restarts=N] [--check=on|off|only]

`quartet launch --engine=ray` starts it, once it has written RUN_DIR/launch/run.textproto and ranks.json. Each node of the plan is a
bundle of one placement group (so its ranks are packed on one node of Ray's, and no two nodes of the plan share one), and an actor
there starts the programs of its ranks and reports the first that ends. RUN_DIR and FOLDER are on a file system of all nodes.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time


def refuse(text):
    """Of what another try would meet, too."""
    print(f'launch: {text}', file=sys.stderr)
    sys.exit(2)


if '--help' in sys.argv[1:]:  # also where there is no Ray
    print(__doc__)
    sys.exit()

try:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    refuse(f'--engine=ray: {sys.executable} has no package ray ({error}); install the version of the cluster, or name '
           'a Python that has it by --python')

STARTS_SOON = 10  # seconds after which it is said what is waited for
NOTICES = 20  # seconds in which the orchestrator notices by itself that a service has ended
CHECK_NOTICES = 3  # and the check, which waits for services that have not begun to listen
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # and the programs that get them end with 128 and their number


def say(text):
    print(f'ray: {text}', flush=True)


class Told:
    """The signals by which this program was told to end; each is the orchestrator's, too."""

    def __init__(self):
        self.numbers, self.passed_on = [], 0
        for number in STOPS:
            # A closed terminal asks as SIGTERM does, but for what nohup has started.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: self.numbers.append(number))

    def is_set(self):
        return bool(self.numbers)

    def code(self):
        return 128 + self.numbers[-1]

    def pass_on(self, program):
        while self.passed_on < len(self.numbers):
            program.send_signal(self.numbers[self.passed_on])
            self.passed_on += 1


@ray.remote(max_restarts=0, max_concurrency=4)
class Node:
    """One node of the plan. What it has started ends with it: the programs leave when the stream from their parent closes."""

    def __init__(self, ranks, logs):
        self.ranks, self.logs, self.programs, self.trial, self.alive = ranks, logs, [], None, os.pipe()
        os.set_inheritable(self.alive[0], True)

    def host(self):
        return ray.util.get_node_ip_address()

    def free_ports(self, count):
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for one in sockets:
                one.bind(('', 0))
            return [one.getsockname()[1] for one in sockets]

    def start(self, flags, programs, trial=None):
        """All ranks, or those of one service on trial, whose end is its own affair until it is kept; `programs` by service, where
        not the plan's."""
        self.trial = trial
        own = [str(gpu) for gpu in ray.get_gpu_ids()]
        of_plan = sorted({gpu for rank in self.ranks for gpu in rank['gpus']})  # their positions are those of `own`
        usable = os.sched_getaffinity(0)
        for rank in [rank for rank in self.ranks if trial in (None, rank['service'])]:
            environment = {**os.environ, **rank['environment'], 'QUARTET_PARENT_FD': str(self.alive[0])}
            if rank['gpus']:
                of_service = [int(gpu) for gpu in rank['environment']['CUDA_VISIBLE_DEVICES'].split(',')]
                environment['CUDA_VISIBLE_DEVICES'] = ','.join(own[of_plan.index(gpu)] for gpu in of_service)
            command = [*rank['command'], *flags]
            if folder := programs.get(rank['service']):
                command[0] = f'{folder}/{rank["service"]}/{os.path.basename(command[0])}'
            # The plan's cores are of a whole node; where Ray's has others, no rank has cores of its own.
            if rank['cores'] and cores_of(rank['cores']) <= usable:
                command = ['taskset', '--cpu-list', rank['cores'], *command]
            else:
                environment.pop('QUARTET_OWN_CORES', None)
            with open(f'{self.logs}/{rank["service"]}.log', 'ab') as log:
                self.programs.append((rank, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                                                             pass_fds=[self.alive[0]], start_new_session=True)))

    def first_end(self):
        """Waits for it: the service, the rank and the exit code."""
        while True:
            for rank, program in list(self.programs):
                if program.poll() is not None and rank['service'] != self.trial and (rank, program) in self.programs:
                    return rank['service'], rank['rank'], program.returncode
            time.sleep(0.2)

    def keep(self):
        self.trial = None

    def ended(self, service):
        """The exit code of a rank of it that has ended, if one has."""
        return next((program.poll() for rank, program in self.programs if rank['service'] == service and program.poll() is not None), None)

    def stop(self, service=None):
        """All, or a service; what does not end by itself is killed."""
        self.trial = service
        stopping = [one for one in self.programs if service in (None, one[0]['service'])]
        for _, program in stopping:
            program.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 10
        for _, program in stopping:
            try:
                program.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
        self.programs = [one for one in self.programs if one not in stopping]
        self.trial = None


def cores_of(text):
    """Of "0-3,8"."""
    ranges = [part.split('-') for part in text.split(',')]
    return {core for bounds in ranges for core in range(int(bounds[0]), int(bounds[-1]) + 1)}


def wait_for(group, bundles, told):
    """Until all nodes are there; says what is waited for, and exits where no cluster of this kind could have them."""
    began, said = time.monotonic(), False
    while not group.wait(1):
        if told.is_set():
            sys.exit(told.code())
        if said or time.monotonic() - began < STARTS_SOON:
            continue
        said = True
        nodes = [node['Resources'] for node in ray.nodes() if node['Alive']]
        has = ', '.join(f'{node.get("GPU", 0):g} GPUs and {node.get("CPU", 0):g} CPUs' for node in nodes)
        want = ', '.join(f'{bundle.get("GPU", 0)} GPUs and {bundle["CPU"]} CPUs' for bundle in bundles)
        say(f'waits for nodes that are free, each another one: {want}. The cluster has: {has}')


def certificates(folder, hosts):
    """Flags of certificates made for these addresses, of this start alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = ','.join(f'IP:{host}' for host in sorted(hosts))
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '365', '-subj', '/CN=quartet', '-keyout',
                    folder / 'key.pem', '-out', folder / 'cert.pem', '-addext', f'subjectAltName={names}'],
                   check=True, stderr=subprocess.DEVNULL)
    os.chmod(folder / 'key.pem', 0o600)
    return [f'--set=tls.{field}={folder}/{file}' for field, file in
            [('ca_file', 'cert.pem'), ('cert_file', 'cert.pem'), ('key_file', 'key.pem')]]


def own(path):
    """Whether it is this user's, and no link."""
    return not path.is_symlink() and path.exists() and path.stat().st_uid == os.geteuid()


class Requests:
    """What the orchestrator asks for while the run goes on, by files: orchestrator/launch/requested_services.h."""

    def __init__(self, folder, nodes, flags):
        self.folder, self.nodes, self.flags, self.trial = folder, nodes, flags, None
        folder.mkdir(parents=True, exist_ok=True)
        if not own(folder):
            refuse(f'{folder} is no folder of this run\'s user alone, and whoever may write there decides what it runs; remove it')
        folder.chmod(0o700)
        for left in [folder / 'request', *folder.glob('*.ended')]:
            left.unlink(missing_ok=True)
        # What was replaced stays so when the run starts again.
        self.kept = {kept.stem: kept.read_text().strip() for kept in folder.glob('*.programs') if own(kept)}
        self.tried = None

    def take(self):
        if self.trial:
            codes = [code for code in ray.get([node.ended.remote(self.trial) for node in self.nodes]) if code is not None]
            if codes:
                new = self.folder / 'ended.new'
                new.write_text(f'{codes[0]}\n')
                new.rename(self.folder / f'{self.trial}.ended')
                self.trial = None
        request = self.folder / 'request'
        if not request.exists():
            return
        if not own(request):
            say(f'{request} is of another user, and is dropped')
            request.unlink()
            return
        verb, service, *rest = request.read_text().splitlines()
        say(' '.join([verb, service, *rest]))
        if verb == 'stop':
            ray.get([node.stop.remote(service) for node in self.nodes])
        elif verb == 'start':
            (self.folder / f'{service}.ended').unlink(missing_ok=True)
            self.tried = rest[0]
            ray.get([node.start.remote([*self.flags, *rest[1:]], {service: self.tried}, trial=service) for node in self.nodes])
        else:
            ray.get([node.keep.remote() for node in self.nodes])
            (self.folder / f'{service}.programs').write_text(f'{self.tried}\n')
        self.trial = service if verb == 'start' else None
        request.unlink()


def await_end(program, ends, logs, notices, meanwhile=lambda: None):
    """Waits for its end, or until a rank or a node has gone and it has had `notices` seconds to say so better: the exit code of
    that rank (of a node 1), else None. `ends`: the hosts of the nodes, by what each has first."""
    while program.poll() is None:
        ended, _ = ray.wait(list(ends), timeout=0.3)
        if not ended:
            meanwhile()
            continue
        try:
            service, rank, code = ray.get(ended[0])
            say(f'{service} rank {rank} has ended with exit code {code}; its log is {logs}/{service}.log')
        except ray.exceptions.RayActorError:
            say(f'the node {ends[ended[0]]} is lost')
            code = 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(notices)
        return code
    return None


def attempt(run_dir, programs, program, ranks, check, told):
    """One start of everything; the exit code of the run."""
    by_node = collections.defaultdict(list)
    for rank in ranks:
        by_node[rank['node']].append(rank)
    bundles = []
    for on_node in by_node.values():
        gpus = len({gpu for rank in on_node for gpu in rank['gpus']})
        bundles.append({'CPU': len(on_node), **({'GPU': gpus} if gpus else {})})
    group = placement_group(bundles, strategy='STRICT_SPREAD')
    orchestrator = None
    try:
        wait_for(group, bundles, told)
        nodes = {}
        for index, (node, on_node) in enumerate(by_node.items()):
            strategy = PlacementGroupSchedulingStrategy(group, index)
            nodes[node] = Node.options(num_cpus=len(on_node), num_gpus=bundles[index].get('GPU', 0),
                                       scheduling_strategy=strategy).remote(on_node, str(run_dir / 'logs'))
        hosts = dict(zip(nodes, ray.get([node.host.remote() for node in nodes.values()])))
        leaders = {rank['service']: rank['node'] for rank in ranks if rank['rank'] == 0}
        flags = []
        for node, actor in nodes.items():
            led = [service for service, where in leaders.items() if where == node]
            for service, port in zip(led, ray.get(actor.free_ports.remote(len(led)))):
                flags.append(f'--set=services.{service}.listen={hosts[node]}:{port}')
        config = run_dir / 'launch/run.textproto'
        has_tls = any(line.startswith('tls ') for line in config.read_text().splitlines())
        if not has_tls and any(not host.startswith('127.') for host in hosts.values()):
            flags += certificates(run_dir / 'launch/tls', set(hosts.values()))
        requests = Requests(run_dir / 'launch/services', list(nodes.values()), flags)

        def first_ends():
            return {node.first_end.remote(): hosts[name] for name, node in nodes.items()}

        if check != 'off':
            ray.get([node.start.remote([*flags, '--check'], requests.kept) for node in nodes.values()])
            checking = subprocess.Popen([f'{programs}/orchestrator/check', f'--program={program}', f'--config={config}', *flags,
                                         '--services_run'], start_new_session=True)
            if await_end(checking, first_ends(), run_dir / 'logs', CHECK_NOTICES, lambda: told.pass_on(checking)) is not None:
                checking.kill()
            code = 1 if checking.wait() < 0 else checking.returncode
            ray.get([node.stop.remote() for node in nodes.values()])
            if code or check == 'only' or told.is_set():
                return told.code() if told.is_set() else code
        ray.get([node.start.remote(flags, requests.kept) for node in nodes.values()])
        say('ranks start on ' + ', '.join(f'{host} ({len(by_node[node])})' for node, host in hosts.items()))
        main = 'orchestrator' if program == 'ppo' else program
        orchestrator = subprocess.Popen([f'{programs}/orchestrator/{main}', f'--config={config}', *flags], start_new_session=True,
                                        env={**os.environ, 'QUARTET_SERVICE_REQUESTS': str(requests.folder)})

        def meanwhile():
            told.pass_on(orchestrator)
            with contextlib.suppress(ray.exceptions.RayActorError):  # a lost node is among the ends next
                requests.take()

        lost = await_end(orchestrator, first_ends(), run_dir / 'logs', NOTICES, meanwhile)
        if orchestrator.poll() is None:
            for patience in (1, NOTICES):  # the second time it ends without making its step
                orchestrator.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    orchestrator.wait(patience)
                    break
        stops = [node.stop.remote() for node in nodes.values()]
        ray.wait(stops, num_returns=len(stops), timeout=15)
        code = orchestrator.poll()
        by_signal = code is None or code < 0 or code in [128 + number for number in STOPS]
        if lost is not None:  # by 2 a program says that its configuration is wrong
            return 2 if 2 in (lost, code) else 1
        return 1 if by_signal and not told.is_set() else code
    finally:
        if orchestrator is not None and orchestrator.poll() is None:
            orchestrator.kill()
        remove_placement_group(group)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('run_dir', type=pathlib.Path)
    parser.add_argument('--programs', required=True)
    parser.add_argument('--program', choices=['ppo', 'sft', 'dpo', 'reward_model'], default='ppo')
    parser.add_argument('--address', default='auto')
    parser.add_argument('--max_restarts', type=int, default=3)
    parser.add_argument('--check', choices=['on', 'off', 'only'], default='on')
    arguments = parser.parse_args()
    run_dir = arguments.run_dir
    ranks = json.loads((run_dir / 'launch/ranks.json').read_text())
    try:
        host, _, port = arguments.address.rpartition(':')
        if host and port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=arguments.address, log_to_driver=False, logging_level='warning')
    except (OSError, RuntimeError, ValueError) as error:  # nobody there; another version; no address
        sys.exit(f'launch: --ray_address={arguments.address}: {error}')
    told = Told()
    latest, failures, after = run_dir / 'checkpoints/latest', 0, None
    while True:
        try:
            code = attempt(run_dir, arguments.programs, arguments.program, ranks, arguments.check, told)
        except ray.exceptions.RayActorError as error:  # before the orchestrator runs; later it is among the ends
            say(f'a node is lost: {error}')
            code = 1
        if code != 1 or told.is_set() or arguments.check == 'only':
            sys.exit(told.code() if code is None or code < 0 else code)
        newest = os.readlink(latest) if latest.is_symlink() else 'no checkpoint'
        failures, after = (failures + 1 if newest == after else 1), newest
        if failures > arguments.max_restarts:
            sys.exit(f'launch: the run has failed {failures} times after {newest}, and is left as it is')
        say(f'the run failed; it is started again, to go on after {newest}')


if __name__ == '__main__':
    main()
