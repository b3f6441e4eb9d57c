#!/usr/bin/env python3
"""What launch.py does when programs end and signals come, by scripts in place of the programs and a stand-in for Ray. What it must
do the batch script of Slurm must, too (deploy/slurm/job_script_test.cc); orchestrator/launch/README.md has all of it."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent  # Bazel runs it by another name


class LaunchTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)
        self.run_dir = self.folder / 'run'
        for name in ('launch', 'logs'):
            (self.run_dir / name).mkdir(parents=True)
        (self.run_dir / 'launch/run.textproto').write_text('tls { }\n')
        self.ranks('exec sleep 1000')

    def ranks(self, script):
        """Of one, of the scorer, which is `script`."""
        (self.run_dir / 'launch/ranks.json').write_text(json.dumps(
            [{'service': 'scorer', 'rank': 0, 'node': 0, 'gpus': [], 'cores': '', 'environment': {}, 'command': ['sh', '-c', script]}]))

    def launch(self, script, *flags, hang_up=signal.SIG_DFL, check='off', patient=True):
        """Of an orchestrator, and a check, that are `script`; `hang_up`: what SIGHUP does to it; `patient`: it is given time to
        notice by itself that a service has ended."""
        for name in ('orchestrator', 'check'):
            program = self.folder / 'programs/orchestrator' / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f'#!/bin/bash\ncd {self.folder}\necho {name} >>starts\n{script}\n')
            program.chmod(0o755)
        launcher = [HERE / 'launch.py'] if patient else ['-c', 'import launch; launch.NOTICES = 0; launch.main()']
        return subprocess.Popen([sys.executable, *launcher, self.run_dir, f'--programs={self.folder}/programs',
                                 f'--check={check}', *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                preexec_fn=lambda: signal.signal(signal.SIGHUP, hang_up), env={**os.environ, 'PYTHONPATH': f'{HERE}/testing:{HERE}'})

    def end_of(self, process):
        output, _ = process.communicate()
        return process.returncode, output

    def text(self, name):
        file = self.folder / name
        return file.read_text() if file.exists() else ''

    def await_text(self, process, name, text):
        while text not in self.text(name):
            self.assertIsNone(process.poll(), 'it has ended')
            time.sleep(0.01)

    def test_it_tells_what_it_is_without_ray(self):
        said = subprocess.run([sys.executable, '-I', HERE / 'launch.py', '--help'], capture_output=True, text=True, check=True).stdout
        self.assertIn('Runs the ranks of a launch plan on a Ray cluster', said)

    def test_an_orchestrator_that_was_killed_or_has_failed_is_started_again(self):
        for end in ('kill -KILL $$', 'exit 1', 'exit 143'):
            (self.folder / 'starts').unlink(missing_ok=True)
            code, output = self.end_of(self.launch(f'[ $(wc -l <starts) -gt 1 ] || {end}'))
            self.assertEqual((code, self.text('starts')), (0, 'orchestrator\n' * 2), end + output)

    def test_it_is_not_where_that_helps_no_more(self):
        code, _ = self.end_of(self.launch('exit 2'))
        self.assertEqual((code, self.text('starts')), (2, 'orchestrator\n'))
        (self.folder / 'starts').unlink()
        code, output = self.end_of(self.launch('kill -KILL $$', '--max_restarts=1'))
        self.assertEqual((code, self.text('starts')), (1, 'orchestrator\n' * 2))
        self.assertIn('the run has failed 2 times after no checkpoint', output)

    def test_it_is_not_where_a_rank_says_that_its_configuration_is_wrong(self):
        for code in (2, 1):
            self.ranks(f'exit {code}')
            ended, output = self.end_of(self.launch('exec sleep 1000', '--max_restarts=1', patient=False))
            self.assertEqual((ended, 'it is started again' in output), (code, code == 1), output)

    # While models load, too: the orchestrator knows what it is at.
    def test_each_signal_reaches_the_orchestrator(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for check, program in (('off', 'orchestrator'), ('on', 'check')):
                (self.folder / 'told').unlink(missing_ok=True)
                process = self.launch(f"""
                    trap 'echo told >>told; [ $(wc -l <told) -lt 2 ] || exit {128 + number}' {number}
                    echo {program} >>told.ready
                    while :; do sleep 0.05; done""", check=check)
                self.await_text(process, 'told.ready', program)
                (self.folder / 'told.ready').unlink()
                process.send_signal(number)
                self.await_text(process, 'told', 'told\n')
                process.send_signal(number)
                self.assertEqual(self.end_of(process)[0], 128 + number)
                self.assertEqual(self.text('starts').splitlines()[-1], program, 'nothing is started again')

    def test_a_closed_terminal_is_ignored_where_nohup_says_so(self):
        process = self.launch('echo up >up; until [ -e go ]; do sleep 0.05; done', hang_up=signal.SIG_IGN)
        self.await_text(process, 'up', 'up')
        process.send_signal(signal.SIGHUP)
        (self.folder / 'go').touch()
        self.assertEqual(self.end_of(process)[0], 0)

    def test_requests_and_programs_are_from_its_own_user_alone(self):
        services = self.run_dir / 'launch/services'
        services.mkdir(mode=0o777)
        services.chmod(0o777)
        elsewhere = self.folder / 'elsewhere'
        elsewhere.write_text('/elsewhere\n')
        (services / 'scorer.programs').symlink_to(elsewhere)
        self.assertEqual(self.end_of(self.launch('true'))[0], 0)  # with /elsewhere/scorer/sh it would not begin
        self.assertEqual(services.stat().st_mode & 0o777, 0o700)
        if os.geteuid() != 0:
            self.skipTest('only root can give files away')
        os.chown(services, 12345, 12345)
        code, output = self.end_of(self.launch('true'))
        self.assertEqual(code, 2)
        self.assertIn(f"{services} is no folder of this run's user alone", output)


if __name__ == '__main__':
    unittest.main()
