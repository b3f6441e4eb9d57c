#!/usr/bin/env python3
"""Opens run pages in headless Chromium and holds what they show against what the run folders say.

    tools/check_page.py PROGRAMS [--keep=FOLDER]

PROGRAMS is the folder of the programs //viewer:report and //viewer:compare. Run folders are made up here: without a step, with one, with hostile answers, NaN and
a continuation, without a critic, with rewards of tokens, of an agent, without rewards, that learns nothing, of fine-tuning, of preferences, of 10,000 steps. Of each page: no message on the console (an error,
a request that the page's policy refuses), the title, the latest step's numbers, and what belongs to its kind. --keep leaves
folders and screenshots (light and dark, and 400 pixels wide) there.
"""
import argparse
import html
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

HOSTILE = ['<img src=x onerror="document.title=\'HACKED\'">', '</script><script>document.title="HACKED"</script>', '<!--<script>',
           '\u202egnp.exe\u202c \x00\x07 \u2028 </div></table><h1>BIG</h1>', '{{DATA}} {{TITLE}} $& ${alert(1)}',
           '<svg/onload=document.title="HACKED">']
# What may be 0 in every step, among them all that is drawn on a logarithmic axis unless it is asked for.
NOTHING = ('reward/mean', 'reward/std', 'kl/mean', 'policy/entropy', 'policy/grad_norm', 'critic/grad_norm', 'critic/loss', 'policy/loss',
           'policy/learning_rate', 'rollout/log_prob_diff_mean', 'rollout/log_prob_diff_max')
# Of an agent's episode: two turns, and a branch.
SEQUENCES = [[{'text': 'What is 1 + 1?', 'trained': False}, {'text': 'add(1, 1)', 'trained': True},
              {'text': 'tool: 2 ' + HOSTILE[0], 'trained': False}, {'text': 'It is 2. ' * 40, 'trained': True}],
             [{'text': 'Sum up: 1 + 1', 'trained': False}, {'text': HOSTILE[1], 'trained': True}]]
failures = []


def check(name, what, condition):
    if not condition:
        failures.append(f'{name}: {what}')


def ppo_step(step, critic=True):
    share = 1 - math.exp(-step / 20)
    record = {'step': step, 'policy_version': step, 'reward/mean': 0.25 + 0.5 * share, 'reward/std': 0.4 - 0.2 * share,
              'kl/mean': 0.05 * share, 'policy/entropy': 0.5 - 0.4 * share, 'policy/clip_fraction': 0.01,
              'policy/grad_norm': 0.5, 'policy/loss': -0.01, 'policy/learning_rate': 1e-6, 'rollout/log_prob_diff_mean': 1e-5,
              'rollout/log_prob_diff_max': 1e-3, 'response_length/mean': 100 + step, 'time/generate': 2, 'time/score': 0.5,
              'time/log_probs': 0.25, 'time/policy_update': 3, 'time/weight_sync': 0.125, 'time/step': 6.5,
              'memory/rollout/total': 2 ** 30, 'memory/rollout/process': 2 ** 31, 'time/unix': 1.7e9 + 6.5 * (step + 1)}
    if critic:
        record.update({'critic/loss': 0.1, 'critic/grad_norm': 1, 'time/values': 0.75, 'time/critic_update': 2})
    return record


def offline_step(name, step):
    record = {'step': step, f'{name}/loss': 3 / (1 + step), f'{name}/grad_norm': 2, f'{name}/learning_rate': 1e-5,
              f'{name}/tokens_per_second': 1000, 'time/step': 0.5}
    if name != 'sft':
        record.update({f'{name}/accuracy': 0.75, f'{name}/margin': 0.5, f'{name}/chosen_reward': 0.25, f'{name}/rejected_reward': -0.25})
        if step % 10 == 9:
            record['eval/preference_accuracy'] = 0.625
    return record


def write_run(folder, records, state='finished', program='orchestrator', samples=(), evaluations=(), events=()):
    os.makedirs(folder + '/logs')
    lines = lambda objects: ''.join(json.dumps(o) + '\n' for o in objects)
    files = {'metrics.jsonl': lines(records), 'samples.jsonl': lines(samples), 'evaluations.jsonl': lines(evaluations),
             'events.jsonl': lines(events),
             'state.json': json.dumps({'program': program, 'state': state, 'why': 'a rank of the scorer has ended' if state == 'failed' else '',
                                       'steps': len(records), 'time': 1.7e9 + 6.5 * len(records)}),
             'run.textproto': 'run_dir: "' + folder + '"\nrollout {\n  temperature: 0.5  # --set\n}\ntrain {\n  max_log_prob_diff_mean: 0.5\n}\n'}
    for name, text in files.items():
        with open(f'{folder}/{name}', 'w', encoding='utf-8') as f:
            f.write(text)


def sample(step, text):
    return {'step': step, 'prompt': 'What is 1 + 1? ' + text, 'response': text, 'label': '2', 'reward': 1, 'parts': {'math': 1},
            'kl': 0.1, 'finish_reason': 'stop'}


def runs():
    """Of each made-up run its name, and what write_run takes."""
    nan = [ppo_step(s) for s in range(60)]
    nan[30]['kl/mean'] = nan[31]['reward/mean'] = None
    yield 'no_step', dict(records=[], state='running')
    yield 'one_step', dict(records=[ppo_step(0)], samples=[sample(0, 'two')])
    yield 'hostile', dict(records=nan, state='failed', samples=[sample(s, HOSTILE[s % len(HOSTILE)]) for s in range(60)],
                          evaluations=[{'step': s, 'set': 'held <b>out</b>', 'prompts': 10, 'n_samples_per_prompt': 1, 'pass@1': 0.5 + s / 200}
                                       for s in (-1, 29, 59)],
                          events=[{'time': 1.7e9 + 200, 'step': 30, 'kind': 'restart', 'from': 'orchestrator', 'text': HOSTILE[1]}])
    yield 'no_critic', dict(records=[ppo_step(s, critic=False) for s in range(40)], samples=[sample(3, 'two')])
    yield 'tokens', dict(records=[ppo_step(s) for s in range(4)],
                         samples=[sample(s, '1+1=3') | {'token_texts': ['1+1', '=3', HOSTILE[0]], 'token_rewards': [0.5, -1, 0]} for s in range(4)])
    yield 'episodes', dict(records=[ppo_step(s) for s in range(4)], samples=[sample(s, 'two') | {'sequences': SEQUENCES} for s in range(4)])
    yield 'no_rewards', dict(records=[{k: v for k, v in ppo_step(s, critic=False).items() if not k.startswith('reward/')} for s in range(40)],
                             samples=[sample(s, 'two') | {'reward': None, 'kl': 0.375} for s in range(40)])
    yield 'no_gradient', dict(records=[ppo_step(s) | {name: 0 for name in NOTHING} for s in range(40)])
    yield 'sft', dict(records=[offline_step('sft', s) for s in range(50)], program='sft')
    yield 'dpo', dict(records=[offline_step('dpo', s) for s in range(50)], program='dpo')
    yield 'long', dict(records=[ppo_step(s) for s in range(10000)], samples=[sample(s, 'x' * 400) for s in range(10000)])


def browse(page, *options):
    command = ['chromium', '--headless=new', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--virtual-time-budget=8000', *options, page]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        check(os.path.basename(os.path.dirname(page)), 'the browser hangs on it', False)
        return subprocess.CompletedProcess(command, 124, '<title></title>', '')


def readout_of(dom):
    found = re.search(r'id="readout"[^>]*>(.*?)</dl>', dom, re.S)
    return html.unescape(re.sub(r'<[^>]+>', ' ', found.group(1))) if found else ''


def shown(value):
    """As the page writes a number: with three significant digits."""
    return f'{value:.{2 - math.floor(math.log10(value))}f}' if value else '0'


def check_page(name, folder, records):
    page = 'file://' + folder + '/report.html'
    # High enough that all charts are in view, which are drawn only then.
    opened = browse(page, '--enable-logging=stderr', '--window-size=1440,6000', '--dump-dom')
    dom = opened.stdout
    messages = [line for line in opened.stderr.splitlines() if 'CONSOLE' in line]
    check(name, f'the console says {messages[:2]}', not messages)
    drawn = re.search(r'data-ms="(\d+) script starts, (\d+) drawn"', dom)
    check(name, 'nothing was drawn', drawn)
    title = html.unescape(re.search(r'<title>(.*?)</title>', dom, re.S).group(1))
    check(name, f'the title is {title!r}', title.endswith(' · ' + name))
    check(name, 'an answer became an element', not re.search(r'<(img|svg)[^>]*(onerror|onload)', re.sub(r'<script.*?</script>', '', dom, flags=re.S)))
    if records:
        latest, readout = records[-1], readout_of(dom)
        # People read steps as they are counted, from 1; in files they are from 0.
        step = latest['step'] + 1
        check(name, f'the readout lacks step {step}: {readout}', f'{step:,}' in readout)
        kind = next((k for k in ('sft', 'dpo') if k + '/loss' in latest), None)
        value = latest[kind + '/loss'] if kind else latest.get('reward/mean', latest['kl/mean'])
        check(name, f'the readout lacks {shown(value)}: {readout}', shown(value) in readout)
        check(name, 'its steps are not told', f'{len(records):,} of {len(records):,} steps' in re.sub(r'<[^>]+>', '', dom))
    body = re.sub(r'<[^>]+>', '', re.sub(r'<script.*?</script>', '', dom, flags=re.S))
    if name == 'one_step':
        check(name, 'it is smoothed', re.search(r'smoothing\s*off', body))
    if name == 'hostile':
        check(name, 'the cause of the end is not told', 'a rank of the scorer has ended' in body)
        check(name, 'the restart is not told', '1 restart' in body)
    if name == 'tokens':
        spans = re.findall(r'<span class="(gain|loss)" title="([^"]*)">([^<]*)', dom)
        check(name, f'tokens have the rewards {spans[:2]}',
              spans[:2] == [('gain', 'reward of its last token: 0.5', '1+1'), ('loss', 'reward of its last token: −1', '=3')])
    if name == 'episodes':
        shown_turns = re.findall(r'<span class="trained" title="trained on">([^<]*)|<span title="context">([^<]*)', dom)
        turns = [(html.escape(s['text'], quote=False), '') if s['trained'] else ('', html.escape(s['text'], quote=False)) for spans in SEQUENCES for s in spans]
        check(name, f'the turns are {shown_turns[:5]}', shown_turns[:len(turns)] == turns)
        check(name, 'branches are not told', 'sequence 1 of 2' in body and 'sequence 2 of 2' in body)
    if name == 'no_gradient':
        check(name, 'charts that cannot be logarithmic are not linear', body.count('linear: nothing above 0') == 4)
    if name == 'no_rewards':
        check(name, 'the KL is not in the place of rewards', 'mean KL' in body and '0.375' in body and 'mean reward' not in body)
    if name == 'no_critic':
        check(name, 'it has a critic', 'Gradient norm, critic' not in body)
    if name == 'dpo':
        check(name, 'accuracy is not told', '75.0 %' in body and 'held-out pairs' in body)
    if name == 'sft':
        check(name, 'it is not called fine-tuning', 'fine-tuning' in body)
    if name == 'long':
        size = os.path.getsize(folder + '/report.html')
        check(name, f'{size} bytes are too many', size < 5_000_000)
    print(f'{name}: {os.path.getsize(folder + "/report.html"):,} bytes, drawn after {drawn.group(2) if drawn else "?"} ms')


def check_comparison(programs, root):
    page = root + '/comparison.html'
    subprocess.run([programs + '/compare', *(f'--run_dir={root}/{name}' for name in ('no_critic', 'hostile', 'sft', 'no_gradient')), '--out=' + page],
                   check=True, stdout=subprocess.DEVNULL)
    opened = browse('file://' + page, '--enable-logging=stderr', '--dump-dom')
    messages = [line for line in opened.stderr.splitlines() if 'CONSOLE' in line]
    check('comparison', f'the console says {messages[:2]}', not messages)
    body = re.sub(r'<[^>]+>', ' ', re.sub(r'<script.*?</script>', '', opened.stdout, flags=re.S))
    for text in ('4 runs', 'no_critic', 'hostile', 'sft', 'no_gradient', 'Reward', 'KL to reference', 'Loss', 'nothing differs but run_dir'):
        check('comparison', f'it lacks {text}', text in body)
    check('comparison', 'it lacks the latest reward of no_critic', shown(sum(ppo_step(s)['reward/mean'] for s in range(36, 40)) / 4) in body)
    print(f'comparison: {os.path.getsize(page):,} bytes')


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('programs')
    parser.add_argument('--keep')
    arguments = parser.parse_args()
    root = arguments.keep or tempfile.mkdtemp()
    try:
        for name, run in runs():
            folder = f'{root}/{name}'
            write_run(folder, **run)
            subprocess.run([arguments.programs + '/report', '--run_dir=' + folder], check=True, stdout=subprocess.DEVNULL)
            check_page(name, folder, run['records'])
            if arguments.keep:
                for look, size in (('light', '1440,1600'), ('dark', '1440,1600'), ('phone', '400,1600')):
                    theme = 'light' if look == 'phone' else look
                    browse(f'file://{folder}/report.html#theme={theme}', '--window-size=' + size, f'--screenshot={folder}/{look}.png')
        check_comparison(arguments.programs, root)
        if arguments.keep:
            browse(f'file://{root}/comparison.html#theme=light', '--window-size=1440,1400', f'--screenshot={root}/comparison.png')
    finally:
        if not arguments.keep:
            shutil.rmtree(root)
    if failures:
        sys.exit('\n'.join(failures))


if __name__ == '__main__':
    main()
