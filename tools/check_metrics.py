#!/usr/bin/env python3
"""Lets a real Prometheus scrape a run, and holds what we give it against promtool, our alerts and our dashboard.

    tools/check_metrics.py PROGRAMS

PROGRAMS is the folder that bazel leaves programs in: orchestrator/orchestrator, quickstart/quickstart, which is ended
once the model and the prompts to train on are there, and core/prometheus/testing/libnvidia-ml.so.1, which stands for the library of a GPU's driver. Needs prometheus
and promtool. The alerts fire as examples/monitoring/alerts_test.yml says. A run of the orchestrator with all services serves its figures on free ports; Prometheus scrapes them
every second with the rules of examples/monitoring. Then: each endpoint was up and passes `promtool check metrics`; the rules pass
`promtool check rules` and none of them fails; each query of the dashboard has an answer; the run's figures are those of its
metrics.jsonl. Prints how long scrapes took.
"""
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MONITORING = ROOT + '/examples/monitoring'
SERVICES = ['rollout', 'policy_trainer', 'critic_trainer', 'scorer']
# Its event is a continuation, which this run has none of.
UNANSWERED = {'quartet_run_events_total'}
failures = []


def check(what, condition):
    if not condition:
        failures.append(what)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(('127.0.0.1', 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None


def main():
    programs = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        start = work + '/start'
        with open(work + '/start.log', 'w') as log:
            made = subprocess.Popen([programs + '/quickstart/quickstart', '--run_dir=' + start], stdout=log, stderr=log)
            while made.poll() is None and not os.path.exists(start + '/metrics.jsonl'):
                time.sleep(0.1)
            made.send_signal(signal.SIGINT)
            if made.wait() != 128 + signal.SIGINT:
                sys.exit(open(work + '/start.log').read()[-2000:])
        ports = dict(zip(['run'] + SERVICES + ['prometheus'], free_ports(6)))
        with open(work + '/prometheus.yml', 'w') as file:
            file.write('global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n'
                       f'rule_files: ["{MONITORING}/alerts.yml"]\n'
                       'scrape_configs:\n- job_name: quartet\n  static_configs:\n  - targets: [' +
                       ', '.join(f'"127.0.0.1:{ports[name]}"' for name in ['run'] + SERVICES) + ']\n')
        for arguments in (['config', work + '/prometheus.yml'], ['config', MONITORING + '/prometheus.yml'],
                          ['rules', MONITORING + '/alerts.yml']):
            checked = subprocess.run(['promtool', 'check'] + arguments, capture_output=True, text=True)
            check(f'promtool check {arguments}: {checked.stdout}{checked.stderr}', checked.returncode == 0)
        fired = subprocess.run(['promtool', 'test', 'rules', MONITORING + '/alerts_test.yml'], capture_output=True, text=True)
        check(f'promtool test rules: {fired.stdout}{fired.stderr}', fired.returncode == 0)
        api = f'http://127.0.0.1:{ports["prometheus"]}'
        prometheus = subprocess.Popen(['prometheus', '--config.file=' + work + '/prometheus.yml', '--storage.tsdb.path=' + work + '/tsdb',
                                       f'--web.listen-address=127.0.0.1:{ports["prometheus"]}'],
                                      stdout=subprocess.DEVNULL, stderr=open(work + '/prometheus.log', 'w'))
        run = subprocess.Popen([programs + '/orchestrator/orchestrator', '--launch', f'--config={start}/run.textproto', f'--page=127.0.0.1:{ports["run"]}',
                                f'--set=run_dir={work}/run', '--set=train.max_steps=30', '--set=train.eval_steps=10'] +
                               [f'--set=services.{name}.metrics_listen=127.0.0.1:{ports[name]}' for name in SERVICES],
                               stdout=open(work + '/run.log', 'w'), stderr=subprocess.STDOUT,
                               env={**os.environ, 'LD_LIBRARY_PATH': programs + '/core/prometheus/testing'})
        try:
            texts = {}
            while run.poll() is None:
                for name in ['run'] + SERVICES:
                    text = get(f'http://127.0.0.1:{ports[name]}/metrics')
                    if text is not None:
                        texts[name] = text
                time.sleep(1)
            check('the run failed: ' + open(work + '/run.log').read()[-2000:], run.returncode == 0)
            query = lambda q: json.loads(get(api + '/api/v1/query?' + urllib.parse.urlencode({'query': q})))['data']['result']
            for name in ['run'] + SERVICES:
                check(f'{name}: nothing was scraped', name in texts)
                checked = subprocess.run(['promtool', 'check', 'metrics'], input=texts.get(name, ''), capture_output=True, text=True)
                check(f'{name}: promtool check metrics: {checked.stdout}{checked.stderr}', checked.returncode == 0)
                up = query(f'max_over_time(up{{instance="127.0.0.1:{ports[name]}"}}[10m])')
                check(f'{name}: Prometheus could not scrape it', bool(up) and up[0]['value'][1] == '1')
            # What the run said at some time, over which the dashboard's queries are asked.
            end = time.time()
            span = lambda q: json.loads(get(api + '/api/v1/query_range?' + urllib.parse.urlencode(
                {'query': q, 'start': end - 300, 'end': end, 'step': 1})))['data']['result']
            dashboard = json.load(open(MONITORING + '/dashboard.json'))
            queries = [target['expr'] for panel in dashboard['panels'] for target in panel['targets']]
            for q in queries:
                check(f'the dashboard\'s query has no answer: {q}', bool(span(q)) or q in UNANSWERED)
            rules = json.loads(get(api + '/api/v1/rules'))['data']['groups']
            for rule in [rule for group in rules for rule in group['rules']]:
                check(f'{rule["name"]}: {rule.get("lastError")}', rule['health'] == 'ok')
            records = [json.loads(line) for line in open(work + '/run/metrics.jsonl')]
            for name, metric in [('quartet_run_reward_mean', 'reward/mean'), ('quartet_run_policy_entropy', 'policy/entropy')]:
                said = {round(float(v), 9) for series in span(name) for _, v in series['values']}
                check(f'{name}: {said} is not in metrics.jsonl', said and said <= {round(r[metric], 9) for r in records})
            calls = {series['metric']['method'] for series in span('quartet_grpc_server_handling_seconds_count{code="OK"}')}
            for method in ['quartet.Rollout/Generate', 'quartet.PolicyTrainer/Update', 'quartet.CriticTrainer/Update',
                           'quartet.PolicyTrainer/PullWeights']:
                check(f'{method} is not among {sorted(calls)}', method in calls)
            scrapes = [float(v) for series in span('scrape_duration_seconds') for _, v in series['values']]
            print(f'{len(queries)} queries, {len(texts)} endpoints, {len(records)} steps; a scrape takes '
                  f'{1e3 * statistics.median(scrapes):.1f} ms, at most {1e3 * max(scrapes):.1f} ms')
        finally:
            for process in (run, prometheus):
                process.terminate()
                process.wait()
    for failure in failures:
        print('failed:', failure)
    sys.exit(1 if failures else 0)


if __name__ == '__main__':
    main()
