#!/usr/bin/env python3
"""Sends a run folder to Weights & Biases or MLflow: its numbers by step, evaluations, samples, configuration and page.

    python tools/send_run.py RUN_DIR --to wandb  [--project quartet] [--follow]
    python tools/send_run.py RUN_DIR --to mlflow [--project quartet] [--follow]

Once, or with --follow as the run goes on, until it is over. Called again it sends what has come since; where it stands is in
RUN_DIR/sent_<to>.json. Needs the client's package (wandb, tried with 0.31.0; mlflow or mlflow-skinny, with 3.17.2), which finds its
server and key as it always does: `wandb login`, WANDB_MODE=offline; MLFLOW_TRACKING_URI. Nothing of the run waits for this.
"""
import argparse
import json
import os
import re
import sys
import time

SECONDS_BETWEEN_LOOKS = 5
NUMBERS_OF_EVALUATIONS = {'step', 'prompts', 'n_samples_per_prompt', 'temperature', 'top_p'}


def flat_configuration(path):
    """{"actor.learning_rate": "1e-06"} of a run.textproto, as the orchestrator prints it: one field or brace a line."""
    flat, above, counts = {}, [], {}

    def place(name):
        path = '.'.join(above + [name])
        counts[path] = counts.get(path, -1) + 1
        return path if counts[path] == 0 else f'{path}.{counts[path]}'

    for line in open(path, encoding='utf-8'):
        line = line.strip()
        if line.endswith('{'):
            name = place(line[:-1].strip())
            above.append(name.rsplit('.', 1)[-1] if counts.get(name) == 0 else '.'.join(name.split('.')[len(above):]))
        elif line == '}':
            above.pop()
        elif ':' in line and not line.startswith('#'):
            name, value = line.split(':', 1)
            # Behind a value stands where it is from.
            value = re.match(r'\s*("(?:[^"\\]|\\.)*"|[^#]*)', value)[1]
            flat[place(name.strip())] = value.strip().strip('"')
    return flat


class Tail:
    """Whole lines that a file has got since `offset`."""

    def __init__(self, path, offset):
        self.path, self.offset = path, offset

    def read(self):
        if not os.path.exists(self.path):
            return []
        if os.path.getsize(self.path) < self.offset:
            print(f'{self.path} is shorter than what was sent of it: the run went on after an earlier step, and is sent anew from the '
                  'beginning of that file; what had been sent of later steps stays where it is', file=sys.stderr)
            self.offset = 0
        with open(self.path, 'rb') as file:
            file.seek(self.offset)
            text = file.read()
        text = text[:text.rfind(b'\n') + 1]
        self.offset += len(text)
        records = []
        for line in text.splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                print(f'{self.path}: a line that is no record is left out', file=sys.stderr)
        return records


class Wandb:
    def __init__(self, name, project, identity, configuration):
        import wandb
        self.wandb = wandb
        self.run = wandb.init(project=project, name=name, id=identity, resume='allow', config=configuration)
        self.identity = self.run.id
        # Of a run that is continued steps come again, which wandb's own steps cannot.
        self.run.define_metric('step')
        self.run.define_metric('*', step_metric='step')

    def numbers(self, step, numbers, _):
        self.run.log({'step': step, **numbers})

    def samples(self, samples):
        columns = ['step', 'prompt', 'response', 'label', 'reward']
        rows = [[s.get(c) for c in columns] for s in samples]
        self.run.log({'samples': self.wandb.Table(columns=columns, data=rows)})

    def end(self, page, state):
        self.run.summary['state'] = state.get('state', 'unknown')
        if page:
            self.run.save(page, base_path=os.path.dirname(page), policy='now')
        self.run.finish(exit_code=1 if state.get('state') == 'failed' else 0)


class MlFlow:
    def __init__(self, name, project, identity, configuration):
        import mlflow
        from mlflow.entities import Metric, Param
        self.metric, self.client = Metric, mlflow.MlflowClient()
        self.identity = identity
        if identity is None:
            experiment = self.client.get_experiment_by_name(project)
            experiment = experiment.experiment_id if experiment else self.client.create_experiment(project)
            self.identity = self.client.create_run(experiment, run_name=name).info.run_id
            parameters = [Param(self.name(k), v[:6000]) for k, v in configuration.items()]
            for i in range(0, len(parameters), 100):
                self.client.log_batch(self.identity, params=parameters[i:i + 100])
        self.kept = []

    @staticmethod
    def name(text):  # MLflow allows no others
        return ''.join(c if c.isalnum() or c in '_-. /' else '_' for c in text.replace('@', '_at_'))

    def numbers(self, step, numbers, when):
        metrics = [self.metric(self.name(k), v, int(1000 * when), step) for k, v in numbers.items()]
        for i in range(0, len(metrics), 1000):
            self.client.log_batch(self.identity, metrics=metrics[i:i + 1000])

    def samples(self, samples):
        step = samples[-1].get('step', 0)
        self.client.log_text(self.identity, ''.join(json.dumps(s, ensure_ascii=False) + '\n' for s in samples), f'samples/up_to_step_{step}.jsonl')

    def end(self, page, state):
        if page:
            self.client.log_artifact(self.identity, page)
        ended = {'finished': 'FINISHED', 'failed': 'FAILED', 'stopped': 'KILLED'}.get(state.get('state'))
        if ended:
            self.client.set_terminated(self.identity, ended)


def numbers_of(record):
    return {k: v for k, v in record.items() if isinstance(v, (int, float)) and not isinstance(v, bool) and k != 'step'}


def read_json(path):
    try:
        with open(path, encoding='utf-8') as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('run_dir')
    parser.add_argument('--to', required=True, choices=['wandb', 'mlflow'])
    parser.add_argument('--project', default='quartet', help='of W&B; the experiment of MLflow')
    parser.add_argument('--follow', action='store_true', help='go on until the run is over')
    flags = parser.parse_args()
    folder = os.path.abspath(flags.run_dir)
    if not os.path.exists(folder + '/run.textproto'):
        parser.error(f'{folder} has no run.textproto: it is no run folder, or its run has not begun')
    kept = f'{folder}/sent_{flags.to}.json'
    sent = read_json(kept)
    tails = {name: Tail(f'{folder}/{name}.jsonl', sent.get(name, 0)) for name in ('metrics', 'evaluations', 'samples')}
    sink = (Wandb if flags.to == 'wandb' else MlFlow)(os.path.basename(folder), flags.project, sent.get('id'),
                                                     flat_configuration(folder + '/run.textproto'))
    steps = sent.get('steps', 0)

    def keep():
        with open(kept + '.new', 'w', encoding='utf-8') as file:
            json.dump({'id': sink.identity, 'steps': steps, **{name: tail.offset for name, tail in tails.items()}}, file)
        os.replace(kept + '.new', kept)

    keep()
    while True:
        # Before the files: what the run writes behind its last state is read.
        state = read_json(folder + '/state.json')
        for record in tails['metrics'].read():
            sink.numbers(record['step'], numbers_of(record), record.get('time/unix', time.time()))
            steps += 1
        for record in tails['evaluations'].read():
            if record['step'] < 0:  # the others are among the metrics of their step
                values = {k: v for k, v in numbers_of(record).items() if k not in NUMBERS_OF_EVALUATIONS}
                sink.numbers(0, {f'eval_before/{record["set"]}/{k}': v for k, v in values.items()}, time.time())
        samples = tails['samples'].read()
        if samples:
            sink.samples(samples)
        keep()
        if not flags.follow or state.get('state', 'running') != 'running':
            break
        time.sleep(SECONDS_BETWEEN_LOOKS)
    page = folder + '/report.html'
    sink.end(page if os.path.exists(page) else None, state)
    print(f'{steps} steps of {folder} are in {flags.to}, id {sink.identity}')


if __name__ == '__main__':
    main()
