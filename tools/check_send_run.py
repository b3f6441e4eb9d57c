#!/usr/bin/env python3
"""Sends a made-up run folder to W&B (offline) and MLflow (in a folder), in two parts, and holds what they have got against it.

    python tools/check_send_run.py

Needs wandb (tried with 0.31.0) and mlflow-skinny (3.17.2); no network.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

STEPS = 6
failures = []


def check(what, condition):
    if not condition:
        failures.append(what)


def records_of_wandb(folder):
    """The files of W&B's offline runs: a head of 7 bytes, then LevelDB's log format, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2
    for path in sorted(glob.glob(folder + '/wandb/offline-run-*/run-*.wandb')):
        data, place, whole = open(path, 'rb').read(), 7, b''
        while place + 7 <= len(data):
            left = 32768 - place % 32768
            if left < 7:
                place += left
                continue
            length, kind = int.from_bytes(data[place + 4:place + 6], 'little'), data[place + 6]
            whole += data[place + 7:place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # whole, or its last part
                record = wandb_internal_pb2.Record()
                record.ParseFromString(whole)
                whole = b''
                yield record


def main():
    with tempfile.TemporaryDirectory() as work:
        folder = work + '/a run'
        os.mkdir(folder)
        metrics = [json.dumps({'step': s, 'reward/mean': s / 8, 'policy/kl': None, 'time/step': 0.5, 'time/unix': 1.7e9 + s}) + '\n' for s in range(STEPS)]
        write = lambda name, text: open(f'{folder}/{name}', 'w', encoding='utf-8').write(text)
        write('run.textproto', 'seed: 7  # --set\nactor {\n  pretrain: "m: x"\n  dtype: "bf16"  # default "bf16"\n}\nreward {\n  source {\n    rule: "a"\n  }\n  source {\n    rule: "b"\n  }\n}\n')
        write('metrics.jsonl', ''.join(metrics[:3]) + metrics[3][:10])
        write('evaluations.jsonl', json.dumps({'step': -1, 'set': 'test', 'pass@1': 0.25, 'prompts': 9}) + '\n')
        write('samples.jsonl', json.dumps({'step': 0, 'prompt': '<b>', 'response': 'é', 'label': 'x', 'reward': 1}) + '\n')
        write('report.html', '<html></html>')
        write('state.json', '{"state":"running"}')
        environment = {**os.environ, 'WANDB_MODE': 'offline', 'WANDB_DIR': work, 'WANDB_SILENT': 'true',
                       'MLFLOW_TRACKING_URI': 'file://' + work + '/mlflow', 'MLFLOW_ALLOW_FILE_STORE': 'true'}
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'send_run.py')

        def send(expected):
            for to in ('wandb', 'mlflow'):
                sent = subprocess.run([sys.executable, script, folder, '--to', to], env=environment, capture_output=True, text=True)
                check(f'{to}: {sent.stdout}{sent.stderr}', sent.returncode == 0 and f'{expected} steps of' in sent.stdout)

        send(3)
        write('metrics.jsonl', ''.join(metrics))
        write('state.json', '{"state":"finished"}')
        send(STEPS)
        send(STEPS)

        os.environ.update(environment)
        import mlflow
        client = mlflow.MlflowClient()
        run = client.get_run(json.load(open(folder + '/sent_mlflow.json'))['id'])
        rewards = client.get_metric_history(run.info.run_id, 'reward/mean')
        check(f'MLflow has {rewards}', [(m.step, m.value, m.timestamp) for m in rewards] ==
              [(s, s / 8, int(1000 * (1.7e9 + s))) for s in range(STEPS)])
        check(f'MLflow has {run.data.metrics}', run.data.metrics['eval_before/test/pass_at_1'] == 0.25 and 'policy/kl' not in run.data.metrics)
        expected = {'seed': '7', 'actor.pretrain': 'm: x', 'actor.dtype': 'bf16', 'reward.source.rule': 'a', 'reward.source.1.rule': 'b'}
        check(f'MLflow has {run.data.params}', run.data.params == expected)
        check(f'MLflow says {run.info.status}', run.info.status == 'FINISHED')
        check('the page is not in MLflow', [f.path for f in client.list_artifacts(run.info.run_id)] == ['report.html', 'samples'])

        rewards, configuration, tables, ids = [], {}, 0, set()
        for record in records_of_wandb(work):
            if record.HasField('run'):
                ids.add(record.run.run_id)
                configuration.update({u.key: json.loads(u.value_json) for u in record.run.config.update})
            items = {'/'.join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            if 'reward/mean' in items:
                rewards.append((items['step'], items['reward/mean']))
            tables += 'samples' in items or 'samples/_type' in items
        check(f'W&B has {rewards}', rewards == [(s, s / 8) for s in range(STEPS)])
        check(f'W&B has {configuration}', expected.items() <= configuration.items())
        check(f'W&B has {tables} tables of samples', tables == 1)
        check(f'W&B has {ids}', ids == {json.load(open(folder + '/sent_wandb.json'))['id']})
    for failure in failures:
        print('failed:', failure)
    print(f'{len(failures)} failed')
    sys.exit(1 if failures else 0)


if __name__ == '__main__':
    main()
