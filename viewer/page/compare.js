// Several runs on one page: their curves over each other, and what differs in their configurations.
const RUNS = JSON.parse($('data').textContent).runs;
const COLORS = ['blue', 'orange', 'green', 'pink', 'red', 'sky', 'grey', 'ink'], DASHES = [null, [6, 3], [2, 2], [8, 3, 2, 3]];
// Of two runs of one name the folders tell.
const names = RUNS.map(r => RUNS.filter(o => o.run.name === r.run.name).length > 1 ? r.run.dir : r.run.name);
const col = (run, name) => { const c = run.cols[name]; return c === undefined ? null : Array.isArray(c) ? c : new Array(run.x.length).fill(c); };
const S = {smooth: smoothingOf(Math.max(...RUNS.map(r => r.run.records))), x: 'step', theme: 'auto'};
const asked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
if (/^(light|dark|auto)$/.test(asked.theme || '')) S.theme = asked.theme;
const media = matchMedia('(prefers-color-scheme: dark)');
const color = i => getComputedStyle(document.documentElement).getPropertyValue('--' + COLORS[i % COLORS.length]).trim();
function theme() { document.documentElement.dataset.theme = S.theme === 'dark' || (S.theme === 'auto' && media.matches) ? 'dark' : 'light'; }
theme();

// Mean of the newest tenth of a run's steps, weighed by how many steps a point stands for.
function latest(run, name) {
  const c = col(run, name);
  if (!c) return null;
  let steps = Math.max(1, run.run.records / 10), sum = 0, n = 0;
  for (let i = c.length - 1; i >= 0 && n < steps; i--) if (c[i] !== null) { sum += c[i] * run.n[i]; n += run.n[i]; }
  return n ? sum / n : null;
}
function smoothed(run, c) {
  const share = (S.smooth - 1) / (S.smooth + 1);
  let m = 0, w = 0;
  return c.map((v, i) => { if (v === null) return null; const k = share ** run.n[i]; m = k * m + (1 - k) * v; w = k * w + (1 - k); return +(m / w).toPrecision(9); });
}

const swatch = i => make('i', {class: 'swatch', style: {background: `var(--${COLORS[i % COLORS.length]})`}});
function summary() {
  const sets = [...new Set(RUNS.flatMap(r => Object.keys(r.evals)))];
  const head = ['run', 'state', 'steps', 'time', 'a step', ...(RUNS.some(r => r.cols['reward/mean'] !== undefined) ? ['reward, newest tenth'] : []), ...(RUNS.some(r => r.cols['kl/mean'] !== undefined) ? ['KL'] : []), ...sets.map(s => 'held-out ' + s)];
  const rows = RUNS.map((r, i) => {
    const cells = [visible(r.run.status || '–'), `${group(r.run.records)}${r.run.max_steps ? ' of ' + group(r.run.max_steps) : ''}`, span(r.t[r.t.length - 1]), seconds(latest(r, 'time/step'))];
    if (head.includes('reward, newest tenth')) cells.push(sig(latest(r, 'reward/mean')));
    if (head.includes('KL')) cells.push(sig(latest(r, 'kl/mean')));
    for (const s of sets) { const e = r.evals[s]; cells.push(e ? (e.metric === 'reward' ? sig(e.v[e.v.length - 1]) : percent(e.v[e.v.length - 1])) : '–'); }
    return make('tr', {}, make('td', {title: visible(r.run.dir)}, swatch(i), visible(names[i])), cells.map(c => make('td', {class: 'num'}, c)));
  });
  $('runs').append(make('thead', {}, make('tr', {}, head.map((h, k) => make('th', {class: k ? 'num' : null}, h)))), make('tbody', {}, rows));
}

const charts = [];
function rows(name) {
  const lines = RUNS.map(r => { const c = col(r, name); return c && smoothed(r, c); }), all = new Map();
  RUNS.forEach((r, i) => {
    if (!lines[i]) return;
    r.x.forEach((step, k) => {
      const x = S.x === 'step' ? step : r.t[k] / 60;
      if (!all.has(x)) all.set(x, new Array(RUNS.length).fill(null));
      all.get(x)[i] = lines[i][k];
    });
  });
  return [...all].sort((a, b) => a[0] - b[0]).map(([x, values]) => [x, ...values]);
}
function draw(chart) {
  if (chart.g) chart.g.destroy();
  const data = rows(chart.name);
  chart.g = new Dygraph(chart.holder, data, {
    labels: ['x', ...names.map((n, i) => `${i} ${n}`)], colors: RUNS.map((r, i) => color(i)), strokeWidth: 1.5, connectSeparatedPoints: true, legend: 'never', showLabelsOnHighlight: false, highlightCircleSize: 2,
    series: Object.fromEntries(names.map((n, i) => [`${i} ${n}`, {strokePattern: DASHES[Math.floor(i / COLORS.length) % DASHES.length]}])),
    gridLineColor: getComputedStyle(document.documentElement).getPropertyValue('--grid').trim(), axisLineColor: getComputedStyle(document.documentElement).getPropertyValue('--rule').trim(), axisLabelFontSize: 10.5, rightGap: 4,
    axes: {x: {drawGrid: false, axisLabelFormatter: v => S.x === 'step' ? (Number.isInteger(v) && v >= 0 ? group(v) : '') : axisNumber(v) + ' min'}, y: {axisLabelWidth: 42, axisLabelFormatter: v => axisNumber(v)}},
    highlightCallback(e, x, points) { chart.note.textContent = `${S.x === 'step' ? 'step ' + group(x) : axisNumber(x) + ' min'}: ` + points.map(p => `${visible(names[+p.name.split(' ')[0]])} ${sig(p.yval)}`).join(', '); },
    unhighlightCallback() { chart.note.textContent = ''; }});
}
function add(name, title, pick) {
  if (!RUNS.some(r => r.cols[name] !== undefined)) return null;
  const holder = make('div', {class: 'g'}), note = make('span', {class: 'muted'});
  const chart = {name, holder, note};
  $('charts').append(make('figure', {}, make('figcaption', {}, make('b', {}, title), pick || null, note), make('div', {class: 'plot mid', role: 'img', 'aria-label': title}, holder)));
  charts.push(chart); draw(chart);
  return chart;
}
function addCharts() {
  for (const [name, title] of [['reward/mean', 'Reward'], ['sft/loss', 'Loss'], ['dpo/loss', 'Loss'], ['reward_model/loss', 'Loss'], ['dpo/accuracy', 'Accuracy'], ['reward_model/accuracy', 'Accuracy'], ['kl/mean', 'KL to reference'], ['policy/entropy', 'Entropy'], ['response_length/mean', 'Answer length'], ['policy/clip_fraction', 'Clip fraction'],
    ['policy/grad_norm', 'Gradient norm, policy'], ['sft/grad_norm', 'Gradient norm'], ['critic/explained_variance', 'Explained variance'], ['rollout/log_prob_diff_mean', 'Log-prob difference'], ['time/step', 'Seconds of a step'], ['rollout/generated_tokens_per_second', 'Generated tokens a second']]) add(name, title);
  const all = [...new Set(RUNS.flatMap(r => Object.keys(r.cols)))].sort();
  if (!all.length) return;
  const pick = make('select', {class: 'pick', 'aria-label': 'metric to plot', onchange() { other.name = pick.value; draw(other); }}, all.map(n => make('option', {value: n}, visible(n))));
  const other = add(all[0], 'Any metric', pick);
}

function configuration() {
  const values = RUNS.map(r => Object.fromEntries(r.config.map(c => [c[0], c[1]])));
  const paths = [...new Set(RUNS.flatMap(r => r.config.map(c => c[0])))].filter(p => p !== 'run_dir' && new Set(values.map(v => v[p])).size > 1);
  $('f-config').textContent = paths.length ? `${counted(paths.length, 'field')} ${paths.length === 1 ? 'differs' : 'differ'}` : 'nothing differs but run_dir';
  if (!paths.length) return;
  $('config').append(make('table', {class: 'config'}, make('thead', {}, make('tr', {}, make('th', {}, 'field'), names.map((n, i) => make('th', {}, swatch(i), visible(n))))),
    make('tbody', {}, paths.map(p => make('tr', {}, make('td', {class: 'mono'}, visible(p)), values.map(v => make('td', {class: 'mono'}, v[p] === undefined ? '–' : visible(v[p]))))))));
}

function controls() {
  const out = make('output', {}, ''), say = () => { out.textContent = S.smooth > 1 ? `${S.smooth} steps` : 'off'; };
  const range = make('input', {type: 'range', min: 0, max: SMOOTHING.length - 1, 'aria-label': 'smoothing, steps', oninput() { S.smooth = SMOOTHING[range.value]; say(); charts.forEach(draw); }});
  range.value = SMOOTHING.indexOf(S.smooth); say();
  const choose = (items, current, set) => { const box = make('span', {class: 'seg', role: 'group'}, items.map(([v, text]) => make('button', {type: 'button', 'aria-pressed': String(v === current), onclick() { box.querySelectorAll('button').forEach(b => b.setAttribute('aria-pressed', String(b === this))); set(v); }}, text))); return box; };
  $('controls').append(make('label', {}, 'smoothing', range, out), choose([['step', 'steps'], ['time', 'time']], S.x, v => { S.x = v; charts.forEach(draw); }),
    make('span', {class: 'end'}, choose([['auto', 'auto'], ['light', 'light'], ['dark', 'dark']], S.theme, v => { S.theme = v; theme(); charts.forEach(draw); })));
}
$('name').textContent = document.title;
$('f-runs').textContent = counted(RUNS.length, 'run');
controls(); summary(); addCharts(); configuration();
built();
requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ms = `0 script starts, ${Math.round(performance.now())} drawn`; }));
