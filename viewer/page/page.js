const started = performance.now();
const D = JSON.parse(document.getElementById('data').textContent);
const N = D.x.length, LAST = N - 1;
// What was planned, of a rank: tensors by tier, the most of them at once, and with what is no tensor.
D.plan = D.plan || {};
for (const p of Object.values(D.plan)) for (const tier of ['device', 'host']) if (p[tier]) { p[tier].at_once = p[tier].total; p[tier].a_rank = (p.device ? p.device.total : 0) + (p.host ? p.host.total : 0) + p.outside; }
// What is learned by: PPO, or from rows alone.
const KIND = ['sft', 'dpo', 'reward_model'].find(n => D.cols[n + '/loss'] !== undefined) || (D.run.program && D.run.program !== 'orchestrator' ? D.run.program : 'ppo');

// ---- data ---------------------------------------------------------------------------------------------------------------
function col(name) {
  const c = D.cols[name];
  return c === undefined ? null : Array.isArray(c) ? c : new Array(N).fill(c);
}
const at = (name, i) => { const c = D.cols[name]; return c === undefined ? null : Array.isArray(c) ? c[i] : c; };
const config = Object.fromEntries(D.config.map(c => [c[0], c[1]]));
const number = path => config[path] === undefined ? null : +config[path];
// Where all rewards lie, if rules alone give them, which are 0 or 1.
const rules = D.config.filter(c => /^reward\.source\.\d+\.rule$/.test(c[0])).map(c => c[1]), sources = new Set(D.config.filter(c => c[0].startsWith('reward.source.')).map(c => c[0].split('.')[2]));
D.bounds = rules.length && rules.length === sources.size && !rules.includes('length') ? [0, [...sources].reduce((s, i) => s + Math.max(0, number(`reward.source.${i}.weight`) ?? 1), 0)] : null;
// Held-out pairs are judged in some steps; their accuracy is drawn as other held-out scores are.
const judged = D.cols['eval/preference_accuracy'];
if (Array.isArray(judged)) { const k = judged.map((v, i) => v === null ? -1 : i).filter(i => i >= 0); D.evals['held-out pairs'] = {metric: 'accuracy', s: k.map(i => D.x[i]), v: k.map(i => judged[i])}; }
// Mean over the newest steps up to point i, weighed by how many steps a point stands for.
function meanOf(name, from, to) {
  let s = 0, n = 0;
  for (let i = from; i <= to; i++) { const v = at(name, i); if (v !== null && v !== undefined) { s += v * D.n[i]; n += D.n[i]; } }
  return n ? s / n : null;
}
function firstPoint(steps) { let i = LAST, n = 0; while (i > 0 && (n += D.n[i]) < steps) i--; return i; }

// ---- what the reader has chosen; kept while the page reloads itself ----------------------------------------------------------
const KEY = 'run-page:' + D.run.name;
const defaults = {smooth: smoothingOf(D.run.records), x: 'step', theme: 'auto', logs: {}, reload: true};
let S = {...defaults};
try { S = {...S, ...JSON.parse(sessionStorage.getItem(KEY) || '{}')}; } catch (e) { /* no storage: no memory */ }
const keep = () => { try { sessionStorage.setItem(KEY, JSON.stringify(S)); } catch (e) { /* likewise */ } };
const hours = () => D.t[LAST] > 7200 ? [3600, 'h'] : D.t[LAST] > 120 ? [60, 'min'] : [1, 's'];
const xs = () => S.x === 'step' ? D.x : D.t.map(t => t / hours()[0]);
let X = xs();
// Where a step that may lie between points is on the axis.
function xOfStep(s) {
  if (S.x === 'step') return s;
  if (s < D.x[0]) return 0;
  let lo = 0, hi = LAST;
  while (lo < hi) { const m = (lo + hi) >> 1; if (D.x[m] < s) lo = m + 1; else hi = m; }
  return X[lo];
}
let win = null;    // shown part of the axis, null: all
const whole = () => { const pad = (X[LAST] - X[0] || 1) * 0.014; return [Math.min(X[0], S.x === 'step' && Object.keys(D.evals).length ? 0 : X[0]) - pad, X[LAST] + pad]; };

// ---- theme --------------------------------------------------------------------------------------------------------------
const media = matchMedia('(prefers-color-scheme: dark)');
let ink = {};
function theme(force) {
  const dark = force === 'light' ? false : S.theme === 'dark' || (S.theme === 'auto' && media.matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  const style = getComputedStyle(document.documentElement);
  for (const n of ['bg', 'ink', 'muted', 'rule', 'grid', 'blue', 'red', 'green', 'orange', 'sky', 'pink', 'grey', 'mark', 'warn']) ink[n] = style.getPropertyValue('--' + n).trim();
}
const faint = (hex, a) => `rgba(${parseInt(hex.slice(1, 3), 16)},${parseInt(hex.slice(3, 5), 16)},${parseInt(hex.slice(5, 7), 16)},${a})`;
// report.html#step=3120 holds the cursor there; #theme=dark, for a picture.
const asked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
if (/^(light|dark|auto)$/.test(asked.theme || '')) S.theme = asked.theme;
theme();

// ---- charts -------------------------------------------------------------------------------------------------------------
// An exponential mean over about `steps` steps, without the pull to the start.
function smoothed(c) {
  if (S.smooth <= 1) return c;
  const keepShare = (S.smooth - 1) / (S.smooth + 1);
  let m = 0, w = 0;
  return c.map((v, i) => {
    if (v === null || v === undefined) return null;
    const k = keepShare ** D.n[i];
    m = k * m + (1 - k) * v; w = k * w + (1 - k);
    return m / w;
  });
}
const charts = [];
const DASH = {solid: null, dash: [5, 3], dots: [1.5, 2.5]};
const SHAPES = [  // of held-out sets
  (c, x, y, r) => { c.moveTo(x, y - r - 1); c.lineTo(x + r + 1, y); c.lineTo(x, y + r + 1); c.lineTo(x - r - 1, y); },
  (c, x, y, r) => c.rect(x - r, y - r, 2 * r, 2 * r),
  (c, x, y, r) => { c.moveTo(x, y - r - 1); c.lineTo(x + r + 1, y + r); c.lineTo(x - r - 1, y + r); },
  (c, x, y, r) => c.arc(x, y, r, 0, 7)];

function chart(parent, spec) {
  spec.lines = spec.lines.filter(l => l.points || D.cols[l.name] !== undefined);
  if (!spec.lines.length) return;
  const cursor = make('div', {class: 'cursor'}), dot = make('div', {class: 'dot'}), holder = make('div', {class: 'g'});
  const plot = make('div', {class: 'plot ' + (spec.size || ''), role: 'img', tabindex: 0}, holder, cursor, dot);
  const note = make('span', {class: 'muted'}, spec.note || '');
  const tools = make('span', {class: 'tools'});
  if (spec.logs) {
    const b = make('button', {class: 'plain', type: 'button', title: 'logarithmic axis', 'aria-label': 'logarithmic axis of ' + spec.title, onclick() {
      S.logs[spec.id] = !wantsLog(spec); keep(); b.setAttribute('aria-pressed', wantsLog(spec)); draw(spec); }}, 'log');
    b.setAttribute('aria-pressed', wantsLog(spec)); spec.button = b; tools.append(b);
  }
  parent.append(make('figure', {}, make('figcaption', {}, make('b', {}, spec.title), spec.key || note, spec.key ? note : null, tools), plot));
  Object.assign(spec, {plot, holder, cursor, dot, noteElement: note});
  charts.push(spec);
  plot.addEventListener('mousemove', e => hover(spec, e.clientX));
  plot.addEventListener('mouseleave', () => setCursor(null));
  plot.addEventListener('click', e => { if (!dragged) { hover(spec, e.clientX); pin(); } });
  watcher ? watcher.observe(plot) : draw(spec);
}
const wantsLog = spec => !!(spec.logs && (S.logs[spec.id] === undefined ? spec.logByDefault : S.logs[spec.id]));
// As it is drawn: where nothing above 0 is shown a logarithmic axis has no place for anything.
const isLog = spec => !!spec.log;
const watcher = 'IntersectionObserver' in window ? new IntersectionObserver(es => es.forEach(e => { if (e.isIntersecting) {
  const spec = charts.find(c => c.plot === e.target); watcher.unobserve(e.target); if (spec && !spec.g) draw(spec); } }), {rootMargin: '300px'}) : null;

// Points of the file are single steps, or buckets where a run is long. On the screen all points of a chart stand for the same
// number of steps, about one a pixel: else the newest steps, kept one by one, would look noisier than the old ones.
let memo = {};
function grouping(spec) {
  const [a, b] = win || whole();
  let i0 = 0, i1 = LAST;
  while (i0 < LAST && X[i0 + 1] < a) i0++;
  while (i1 > i0 && X[i1 - 1] > b) i1--;
  const want = Math.max(80, .9 * (spec.plot.clientWidth - 40)) / (spec.stacked ? 2 : 1);
  let size = 1;
  while ((D.x[i1] - D.x[i0] + 1) / size > want) size *= 2;
  const name = [i0, i1, size].join();
  if (memo[name]) return memo[name];
  const ends = [];
  for (let i = i0; i <= i1; i++) if (i === i1 || Math.floor((D.x[i + 1] - 1) / size) !== Math.floor((D.x[i] - 1) / size)) ends.push(i);
  return memo[name] = {i0, ends, size};
}
function eachGroup(g, f) { let i = g.i0; return g.ends.map(e => { const r = f(i, e); i = e + 1; return r; }); }
const meanIn = (g, c) => eachGroup(g, (a, b) => { let s = 0, n = 0; for (let i = a; i <= b; i++) if (c[i] !== null && c[i] !== undefined) { s += c[i] * D.n[i]; n += D.n[i]; } return n ? s / n : null; });
const leastIn = (g, c) => eachGroup(g, (a, b) => { let m = null; for (let i = a; i <= b; i++) if (c[i] !== null && c[i] !== undefined && (m === null || c[i] < m)) m = c[i]; return m; });
const mostIn = (g, c) => eachGroup(g, (a, b) => { let m = null; for (let i = a; i <= b; i++) if (c[i] !== null && c[i] !== undefined && (m === null || c[i] > m)) m = c[i]; return m; });

// Rows for dygraphs: x, then [low, middle, high] of each line. Bands are what a line's values spread over: the answers'
// rewards, or the least and greatest value of the steps that a point stands for.
function rowsOf(spec) {
  const log = isLog(spec), ok = v => v === null || v === undefined || (log && v <= 0) ? null : v;
  const labels = ['x'], series = {}, parts = [], colors = [];
  const g = grouping(spec), gx = g.ends.map(e => X[e]);
  if (spec.stacked) {
    spec.lines.forEach(l => { labels.push(l.label); parts.push(meanIn(g, smoothed(l.values()))); colors.push(ink[l.color]); });
    return {labels, series, colors, rows: gx.map((x, i) => [x, ...parts.map(p => p[i] || 0)])};
  }
  for (const l of spec.lines) {
    if (l.points) continue;
    const raw = col(l.name), mean = meanIn(g, raw);
    if (!l.quiet && (S.smooth > 1 || l.band || g.size > 1)) {
      const spread = l.band || D.lo[l.name] || D.run.bucket === 1;
      const low = l.band ? meanIn(g, l.band().map(b => b[0])) : leastIn(g, raw.map((v, i) => (D.lo[l.name] || [])[i] ?? v));
      const high = l.band ? meanIn(g, l.band().map(b => b[1])) : mostIn(g, raw.map((v, i) => (D.hi[l.name] || [])[i] ?? v));
      labels.push(l.label + ' raw'); colors.push(ink[l.color]);
      series[l.label + ' raw'] = {color: faint(ink[l.color], .42), strokeWidth: 1};
      parts.push(mean.map((v, i) => ok(v) === null ? null : spread ? [ok(low[i]) ?? v, v, ok(high[i]) ?? v] : [v, v, v]));
    }
    labels.push(l.label); colors.push(ink[l.color]);
    series[l.label] = {color: ink[l.color], strokeWidth: l.thin ? 1.1 : 1.8, strokePattern: DASH[l.dash || 'solid']};
    parts.push(meanIn(g, smoothed(raw)).map(v => ok(v) === null ? null : [v, v, v]));
  }
  const rows = gx.map((x, i) => [x, ...parts.map(p => p[i])]);
  spec.lines.filter(l => l.points).forEach(l => {
    labels.push(l.label); colors.push(ink[l.color]);
    series[l.label] = {color: ink[l.color], strokeWidth: 0, drawPoints: true, pointSize: l.points.s.length > 24 ? 2.4 : 3.5, drawPointCallback: (g, n, c, x, y, color, r) => {
      c.setLineDash([]); c.beginPath(); SHAPES[l.shape](c, x, y, r); c.closePath(); c.fillStyle = ink.bg; c.fill(); c.lineWidth = 1.5; c.strokeStyle = color; c.stroke(); }};
    if (l.axis2) series[l.label].axis = 'y2';
    for (const r of rows) r.push(null);
    l.points.s.forEach((s, k) => { const row = new Array(labels.length).fill(null); row[0] = xOfStep(s); row[labels.length - 1] = [l.points.v[k], l.points.v[k], l.points.v[k]]; rows.push(row); });
  });
  rows.forEach(r => { while (r.length < labels.length) r.push(null); });
  rows.sort((a, b) => a[0] - b[0]);
  return {labels, series, colors, rows};
}

function shownValues(spec, rows) {
  const [a, b] = win || whole(), values = [];
  for (const r of rows) if (r[0] >= a && r[0] <= b) {
    if (spec.stacked) { values.push(r.slice(1).reduce((p, q) => p + q, 0)); continue; }
    for (let j = 1; j < r.length; j++) if (r[j]) for (const v of r[j]) if (v !== null && isFinite(v)) values.push(v);
  }
  return values;
}
// A sensible axis: what is shown of the values; a few outliers may leave it, and the caption says so.
function rangeOf(spec, rows) {
  if (spec.range) return spec.range;
  const log = isLog(spec), values = shownValues(spec, rows);
  if (!values.length) return [0, 1];
  values.sort((p, q) => p - q);
  let lo = values[0], hi = values[values.length - 1];
  const high = values[Math.floor(.985 * (values.length - 1))];
  spec.cut = null;
  if (!log && values.length > 150 && lo >= 0 && hi > 2 * high) { spec.cut = hi; hi = 1.25 * high; }
  if (log) {
    if (spec.limit && spec.limit.v > 0) hi = Math.max(hi, spec.limit.v), lo = Math.min(lo, spec.limit.v);
    return [lo / 1.6, hi * 1.6];
  }
  if (spec.limit && spec.limit.v > 0 && spec.limit.v < 2.5 * hi) hi = Math.max(hi, spec.limit.v);
  if (spec.stacked || (lo >= 0 && !spec.free)) lo = 0;
  if (hi - lo <= 1e-9 * Math.abs(hi)) { const d = Math.abs(hi) * .1 || 1; return lo === 0 ? [0, d] : [lo - d, hi + d]; }
  const pad = (hi - lo) * .07;
  return [lo === 0 ? 0 : lo - pad, hi + pad];
}

function underlay(spec) {
  return (c, area, g) => {
    c.save();
    c.beginPath(); c.rect(area.x, area.y, area.w, area.h); c.clip();
    for (const m of D.marks) {
      if (m.s === null || m.s === undefined) continue;
      const x = Math.round(g.toDomXCoord(xOfStep(m.s))) + .5;
      if (x < area.x || x > area.x + area.w) continue;
      if (m.k === 'checkpoint') {
        c.strokeStyle = ink.muted; c.lineWidth = 1; c.beginPath(); c.moveTo(x, area.y + area.h - 4); c.lineTo(x, area.y + area.h); c.stroke();
        continue;
      }
      const heavy = m.k === 'restart', k = area.h > 150 ? 3.5 : 2.5;
      c.strokeStyle = c.fillStyle = heavy || m.k === 'error' ? ink.mark : ink.warn;
      c.lineWidth = 1; c.globalAlpha = heavy ? .8 : .45;
      c.setLineDash(heavy ? [] : [1, 4]); c.beginPath(); c.moveTo(x, area.y); c.lineTo(x, area.y + area.h); c.stroke();
      c.setLineDash([]); c.globalAlpha = 1; c.beginPath();
      if (m.k === 'error') { c.moveTo(x - 3, area.y + 1); c.lineTo(x + 3, area.y + 7); c.moveTo(x + 3, area.y + 1); c.lineTo(x - 3, area.y + 7); c.lineWidth = 1.5; c.stroke(); }
      else { c.moveTo(x - k, area.y + .5); c.lineTo(x + k, area.y + .5); c.lineTo(x, area.y + 2 * k); c.closePath(); heavy ? c.fill() : (c.fillStyle = ink.bg, c.fill(), c.stroke()); }
    }
    c.restore();
  };
}

// A plugin of dygraphs, as the grid is drawn over what underlayCallback has drawn.
const limitLine = spec => ({activate: () => ({didDrawChart(e) {
  const c = e.drawingContext, g = e.dygraph, area = g.getArea();
  if (!spec.limit || (isLog(spec) && !(spec.limit.v > 0))) return;
  const y = Math.round(g.toDomYCoord(spec.limit.v)) + .5;
  if (y < area.y || y > area.y + area.h) return;
  c.save();
  c.strokeStyle = ink.ink; c.setLineDash([7, 3]); c.lineWidth = 1; c.beginPath(); c.moveTo(area.x, y); c.lineTo(area.x + area.w, y); c.stroke();
  // The words stand at the end at which the curve leaves more room for them.
  const room = i => { const v = at(spec.lines[0].name, i); return v === null || v === undefined || (isLog(spec) && v <= 0) ? 99 : Math.abs(g.toDomYCoord(v) - y); };
  const left = room(grouping(spec).ends[0]) > room(grouping(spec).ends[grouping(spec).ends.length - 1]) + 6;
  c.setLineDash([]); c.font = '10.5px ' + getComputedStyle(document.body).fontFamily; c.textAlign = left ? 'left' : 'right'; c.lineJoin = 'round';
  const tx = left ? area.x + 3 : area.x + area.w - 2, ty = y - area.y < 18 ? y + 12 : y - 4;
  c.strokeStyle = ink.bg; c.lineWidth = 4; c.strokeText(spec.limit.text, tx, ty);
  c.fillStyle = ink.ink; c.fillText(spec.limit.text, tx, ty);
  c.restore();
}, }), toString: () => 'limit'});
// Ticks of a logarithmic axis: powers of ten, or 1, 2, 5 where there are few of them. Between two numbers above 0 there are
// at most 633 powers of ten.
const logTicks = format => (a, b, pixels) => {
  if (!(a > 0 && b < Infinity)) return [];
  const lo = Math.log10(a), hi = Math.log10(b), out = [], every = Math.max(1, Math.ceil((hi - lo) * 17 / pixels));
  for (let e = Math.floor(lo); e <= Math.ceil(hi); e++)
    for (const m of hi - lo > 1.6 ? [1] : [1, 2, 5]) {
      const v = m * 10 ** e;
      if (v >= a && v <= b && (hi - lo <= 1.6 || e % every === 0)) out.push({v, label: hi - lo > 1.6 ? axisPower(v) : format(v)});
    }
  return out;
};
let dragged = false;
const interaction = {
  mousedown(e, g, context) {
    if (e.button) return;
    const x0 = e.clientX; dragged = false;
    Dygraph.defaultInteractionModel.mousedown(e, g, context);
    const up = u => { document.removeEventListener('mouseup', up, true); dragged = Math.abs(u.clientX - x0) > 4; };
    document.addEventListener('mouseup', up, true);
  },
  willDestroyContextMyself: true,
  dblclick() { zoom(null); },
};

function options(spec) {
  spec.log = wantsLog(spec);
  let drawn = rowsOf(spec);
  if (spec.log && !shownValues(spec, drawn.rows).length) { spec.log = false; drawn = rowsOf(spec); }
  const {labels, series, colors, rows} = drawn, log = isLog(spec), small = spec.plot.clientWidth < 260;
  const range = rangeOf(spec, rows);
  const y = spec.axis || axisNumber;
  return {file: rows, labels, series, colors, customBars: !spec.stacked, stackedGraph: !!spec.stacked, logscale: log, dateWindow: win || whole(), valueRange: range,
    fillAlpha: spec.stacked ? .72 : spec.size === 'big' ? .13 : .17, strokeWidth: spec.stacked ? .4 : 1, connectSeparatedPoints: true, legend: 'never', showLabelsOnHighlight: false, highlightCircleSize: 0,
    rightGap: spec.axis2 ? 0 : 4, gridLineColor: ink.grid, gridLineWidth: 1, axisLineColor: ink.rule, interactionModel: interaction, underlayCallback: underlay(spec),
    plugins: [limitLine(spec)], zoomCallback: (a, b) => { S.show = 0; zoom([a, b]); }, axisLabelFontSize: 10.5, axisTickSize: 3,
    axes: {x: {drawGrid: false, pixelsPerLabel: small ? Math.max(30, spec.plot.clientWidth / 5) : 80, axisLabelWidth: 54, axisLabelFormatter: v => S.x === 'step' ? (Number.isInteger(+v.toPrecision(10)) && v >= 0 ? group(v) : '') : axisNumber(v) + ' ' + hours()[1]},
      y: {labelsKMG2: spec.axis === axisBytes, axisLabelWidth: spec.width || 37, pixelsPerLabel: spec.size ? 34 : 26, ...(log ? {ticker: logTicks(y)} : {}), axisLabelFormatter: v => y(v)},
      ...(spec.axis2 ? {y2: {axisLabelWidth: 40, drawGrid: false, independentTicks: false, valueRange: [0, 1], axisLabelFormatter: axisPercent}} : {})}};
}
function draw(spec) {
  const o = options(spec);
  // Dygraphs keeps a logarithmic axis of its own making: a new chart is simpler, and as quick.
  if (spec.g) spec.g.destroy();
  const {file, ...rest} = o;
  spec.g = new Dygraph(spec.holder, file, rest);
  let note = spec.note || '';
  if (spec.limit && spec.limit.v !== null) {
    const [a, b] = o.valueRange;
    if (spec.limit.v > b || spec.limit.v < a) note = spec.limit.text + ', out of view';
  }
  if (spec.cut) note = 'up to ' + (spec.format || sig)(spec.cut);
  if (wantsLog(spec) && !isLog(spec)) note = 'linear: nothing above 0';
  spec.noteElement.textContent = note;
  spec.plot.setAttribute('aria-label', spec.title + '. ' + spec.lines.filter(l => !l.points && l.name).map(l => l.label + ': latest ' + (spec.format || sig)(at(l.name, LAST))).join('; ') + '. ' + (spec.limit ? spec.limit.text : ''));
  place(spec);
}
let queued = 0;
function redraw() { cancelAnimationFrame(queued); queued = requestAnimationFrame(() => { charts.forEach(s => s.g && draw(s)); waterfall(); }); }
function zoom(w) {
  win = w; memo = {}; if (w && w[1] - w[0] >= (whole()[1] - whole()[0]) * .999) win = null;
  if (!win) S.show = 0;
  document.querySelectorAll('#show button').forEach(b => b.setAttribute('aria-pressed', win ? !!S.show && b.dataset.n === String(S.show) : b.dataset.n === '0'));
  redraw();
}

// ---- the common cursor ------------------------------------------------------------------------------------------------------
let cursor = null, pinned = null;
function nearest(x) {
  let lo = 0, hi = LAST;
  while (lo < hi) { const m = (lo + hi) >> 1; if (X[m] < x) lo = m + 1; else hi = m; }
  return lo > 0 && x - X[lo - 1] < X[lo] - x ? lo - 1 : lo;
}
function hover(spec, clientX) { $('note').setAttribute('aria-live', 'off'); if (spec.g) setCursor(nearest(spec.g.toDataXCoord(clientX - spec.plot.getBoundingClientRect().left))); }
function pin() { pinned = pinned === cursor ? null : cursor; setCursor(pinned); }
function setCursor(i) {
  if (i === null) i = pinned;
  if (i === cursor) return;
  cursor = i; charts.forEach(place); readout();
}
function place(spec) {
  const g = spec.g, shown = g && cursor !== null;
  let visibleHere = false, x = 0, area;
  if (shown) { area = g.getArea(); x = g.toDomXCoord(X[cursor]); visibleHere = x >= area.x - 1 && x <= area.x + area.w + 1; }
  spec.cursor.style.display = visibleHere ? 'block' : 'none';
  let y = null;
  if (visibleHere) {
    spec.cursor.style.transform = `translateX(${Math.round(x)}px)`; spec.cursor.style.height = area.h + area.y + 'px';
    const main = spec.stacked ? null : spec.lines.find(l => !l.points), v = main && at(main.name, cursor);
    if (v !== null && v !== undefined && !(isLog(spec) && v <= 0)) y = g.toDomYCoord(v);
    if (y !== null && (y < area.y || y > area.y + area.h)) y = null;
  }
  spec.dot.style.display = y === null ? 'none' : 'block';
  if (y !== null) spec.dot.style.transform = `translate(${x.toFixed(1)}px,${y.toFixed(1)}px)`;
}
const sets = Object.keys(D.evals);
const score = (set, v) => D.evals[set].metric === 'reward' ? sig(v) : percent(v);
function evalAt(set, step) { const e = D.evals[set]; let k = -1; for (let j = 0; j < e.s.length && e.s[j] <= step; j++) k = j; return k < 0 ? null : [e.s[k], e.v[k]]; }
const MAIN = D.cols['reward/mean'] !== undefined ? 'reward/mean' : KIND !== 'ppo' ? KIND + '/loss' : ['kl/mean', ...Object.keys(D.cols).filter(n => /(^|\/)loss$/.test(n))].find(n => D.cols[n] !== undefined), MAINNAME = {'reward/mean': 'reward', 'kl/mean': 'KL'}[MAIN] || 'loss', MAINTITLE = {reward: 'Reward', KL: 'KL to reference, nats a token', loss: 'Loss'}[MAINNAME];
const READ = [
  {label: MAINNAME, get: i => [sig(at(MAIN, i)), at('reward/std', i) === null ? '' : '± ' + sig(at('reward/std', i), 2)]},
  ...sets.slice(0, 1).map(s => ({label: 'held-out ' + D.evals[s].metric, title: s, get: i => { const e = evalAt(s, D.x[i]); return e ? [score(s, e[1]), ''] : ['–', '']; }})),
  {label: 'KL, nats a token', name: 'kl/mean', get: i => [sig(at('kl/mean', i)), '']},
  {label: 'entropy, nats', name: 'policy/entropy', get: i => [sig(at('policy/entropy', i)), ''], more: true},
  {label: 'clip fraction', name: 'policy/clip_fraction', get: i => [percent(at('policy/clip_fraction', i), 2), ''], more: true},
  {label: 'log-prob diff.', name: 'rollout/log_prob_diff_mean', get: i => [sig(at('rollout/log_prob_diff_mean', i), 2), '']},
  {label: 'accuracy', name: KIND + '/accuracy', get: i => [percent(at(KIND + '/accuracy', i)), '']},
  {label: 'margin', name: KIND + '/margin', get: i => [sig(at(KIND + '/margin', i)), '']},
  {label: 'gradient', name: KIND + '/grad_norm', get: i => [sig(at(KIND + '/grad_norm', i)), '']},
  {label: 'learning rate', name: KIND + '/learning_rate', get: i => [sig(at(KIND + '/learning_rate', i), 2), ''], more: true},
  {label: 'tokens a second', name: KIND + '/tokens_per_second', get: i => [sig(at(KIND + '/tokens_per_second', i)), ''], more: true},
  {label: 'gradient, policy', name: 'policy/grad_norm', get: i => [sig(at('policy/grad_norm', i)), '']},
  {label: 'gradient, critic', name: 'critic/grad_norm', get: i => [sig(at('critic/grad_norm', i)), ''], more: true},
  {label: 'answer, tokens', name: 'response_length/mean', get: i => [sig(at('response_length/mean', i)), ''], more: true},
  {label: 'step time', get: i => [seconds(at('time/step', i)), '']},
].filter(r => !r.name || D.cols[r.name] !== undefined && r.name !== MAIN);
const cells = [];
function buildReadout() {
  const dl = $('readout');
  dl.style.setProperty('--n', READ.length);
  const add = (label, more) => { const dd = make('dd'), dt = make('dt', {}, label); dl.append(make('div', {class: more ? 'more' : null}, dt, dd)); cells.push([dt, dd]); };
  add('latest step'); READ.forEach(r => add(r.label, r.more));
}
function readout() {
  const i = cursor === null ? LAST : cursor, a = D.x[i] - D.n[i] + 1;
  const fill = (dd, main, small) => { dd.textContent = main; if (small) dd.append(' ', make('small', {}, small)); };
  cells[0][0].textContent = cursor === null ? 'latest step' : D.n[i] > 1 ? 'mean of steps' : pinned === cursor ? 'step, held' : 'step';
  fill(cells[0][1], D.n[i] > 1 ? group(a) + '–' + group(D.x[i]) : group(D.x[i]), D.n[i] > 1 ? '' : span(D.t[i]));
  READ.forEach((r, k) => fill(cells[k + 1][1], ...r.get(i)));
  const note = $('note'), near = Math.max(1, ((win || whole())[1] - (win || whole())[0]) * .004);
  const mark = cursor === null ? null : D.marks.filter(m => m.k !== 'checkpoint' && m.s !== null && Math.abs(xOfStep(m.s) - X[i]) <= near + (S.x === 'step' ? D.n[i] : 0)).pop();
  note.textContent = '';
  if (mark) note.append(make('b', {}, mark.k), ` at step ${group(mark.s)}: ${mark.who ? mark.who + ', ' : ''}${visible(mark.text)}`);
  else if (cursor !== null) note.append((D.run.started ? clock(D.run.started + D.t[i]) + ', ' : '') + `after ${span(D.t[i])}` + sets.map(s => { const e = evalAt(s, D.x[i]); return e ? ` · ${s} ${score(s, e[1])} (${e[0] === 0 ? 'before the first step' : 'step ' + group(e[0])})` : ''; }).join(''));
  else note.append(matchMedia('(hover: none)').matches ? 'Tap a chart to read a step of it here' : 'Point at a chart, or ← →, to read any step here; click holds it, drag zooms, ? lists keys');
}

// ---- head ---------------------------------------------------------------------------------------------------------------
function head() {
  const r = D.run, done = N ? D.x[LAST] : 0, recent = meanOf('time/step', Math.max(1, firstPoint(10)), LAST);
  const left = r.max_steps > done && recent ? (r.max_steps - done) * recent : 0;
  $('name').textContent = r.name;
  const model = (config[KIND === 'reward_model' ? 'critic.pretrain' : 'actor.pretrain'] || '').split('/').filter(Boolean);
  const est = config['algorithm.advantage_estimator'];
  const batch = number('train.train_batch_size');
  $('what').textContent = [{sft: 'fine-tuning', dpo: (config['preference.loss'] === 'ipo' ? 'IPO' : 'DPO'), reward_model: 'reward model', ppo: est === 'gae' ? 'PPO' : (est || '').toUpperCase()}[KIND], model.includes('sft') && model.includes('checkpoints') ? 'own fine-tuned model' : model.pop(), KIND === 'ppo' ? config['rollout.rollout_batch_size'] && `${config['rollout.rollout_batch_size']} prompts × ${config['rollout.n_samples_per_prompt'] || 1} a step` : batch && `${group(batch)} ${KIND === 'sft' ? 'examples' : 'pairs'} a step`].filter(Boolean).join(' · ');
  const quiet = Date.now() / 1000 - (r.stepped || r.written), stalled = r.status === 'running' && quiet > Math.max(180, 6 * (recent || 0));
  const far = $('far'), share = r.max_steps ? done / r.max_steps : 0;
  far.append(make('b', {}, r.max_steps ? `${group(done)} of ${group(r.max_steps)} steps` : `${group(done)} steps`), (r.max_steps ? ` · ${Math.floor(100 * share)} %` : '') + (N ? ` · ${span(D.t[LAST])} so far` : ''));
  if (r.status === 'running' && !stalled && left) far.append(' · ', make('b', {}, span(left) + ' left'), `, until ${clock(Date.now() / 1000 + left).slice(0, -3)}`);
  far.append(' · ', make('span', {class: 'state' + (stalled || /fail|error/.test(r.status) ? ' bad' : '')}, stalled ? `no step for ${span(quiet)}; one takes ${seconds(recent)}` : r.status === 'running' ? (r.stepped ? `running, last step ${clock(r.stepped, true)}` : 'running') : `${r.status || 'of unknown state'}${r.written ? ' ' + clock(r.written) : ''}`));
  if (r.why) far.append(make('div', {class: 'state bad', style: {whiteSpace: 'pre-wrap', overflowWrap: 'anywhere'}}, visible(r.why)));
  $('track').setAttribute('aria-valuemax', r.max_steps); $('track').setAttribute('aria-valuenow', done);
  $('track').firstChild.style.width = 100 * share + '%';
  document.title = `${r.status === 'finished' || !r.max_steps ? '' : Math.floor(100 * share) + ' % · '}${N && MAIN ? sig(at(MAIN, LAST)) : 'no step yet'} · ${r.name}`;
}
const newest = n => n ? [X[firstPoint(n)], whole()[1]] : null;
function seg(name, id, items, current, choose) {
  const box = make('span', {class: 'seg', id, role: 'group', 'aria-label': name || id}, name ? make('span', {}, name) : null);
  for (const [value, text] of items) box.append(make('button', {type: 'button', 'data-n': value, 'aria-pressed': String(value === current), onclick() {
    box.querySelectorAll('button').forEach(b => b.setAttribute('aria-pressed', b.dataset.n === String(value))); choose(value); }}, text));
  return box;
}
function controls() {
  const out = make('output', {}, ''), say = () => { out.textContent = S.smooth > 1 ? `${S.smooth} steps` : 'off'; };
  const range = make('input', {type: 'range', min: 0, max: SMOOTHING.length - 1, id: 'smooth', 'aria-label': 'smoothing, steps', oninput() { S.smooth = SMOOTHING[range.value]; say(); keep(); redraw(); }});
  range.value = SMOOTHING.indexOf(S.smooth); say();
  const c = $('controls');
  c.append(make('label', {}, 'smoothing', range, out));
  c.append(seg('axis', 'axis', [['step', 'steps'], ['time', 'time']], S.x, v => { const w = win && win.map(x => nearest(x)); S.x = v; X = xs(); memo = {}; keep(); win = w ? w.map(i => X[i]) : null; redraw(); readout(); }));
  const windows = [[0, 'all'], [1000, 'last 1,000'], [100, 'last 100']].filter(w => w[0] < D.run.records);
  c.append(seg('show', 'show', windows, S.show || 0, n => { S.show = n; keep(); zoom(newest(n)); }));
  const used = new Set(D.marks.map(m => m.k));
  const svg = (d, fill) => { const s = document.createElementNS('http://www.w3.org/2000/svg', 'svg'), p = document.createElementNS('http://www.w3.org/2000/svg', 'path'); s.setAttribute('viewBox', '0 0 10 10'); p.setAttribute('d', d); p.setAttribute('fill', fill ? 'var(--mark)' : 'none'); p.setAttribute('stroke', fill === null ? 'var(--warn)' : fill === 0 ? 'var(--muted)' : 'var(--mark)'); p.setAttribute('stroke-width', '1.3'); s.append(p); return s; };
  const key = make('span', {class: 'key'});
  if (used.has('restart')) key.append(make('span', {}, svg('M1 1H9L5 9Z', true), 'restart'));
  if (used.has('error')) key.append(make('span', {}, svg('M1 1L9 9M9 1L1 9', false), 'error'));
  if (used.has('warning')) key.append(make('span', {}, svg('M1 1H9L5 9Z', null), 'warning'));
  if (used.has('checkpoint')) key.append(make('span', {}, svg('M5 3V10', 0), 'checkpoint'));
  c.append(key);
  const end = make('span', {class: 'end'});
  if (D.run.status === 'running') { const box = make('input', {type: 'checkbox', onchange() { S.reload = box.checked; keep(); }}); box.checked = S.reload; end.append(make('label', {title: 'every 30 s, while nothing is selected or typed'}, box, 'reload')); }
  end.append(seg('', 'theme', [['auto', 'auto'], ['light', 'light'], ['dark', 'dark']], S.theme, v => { S.theme = v; keep(); theme(); redraw(); }));
  end.append(make('button', {type: 'button', 'aria-label': 'keys', onclick: help}, '?'));
  c.append(end);
}

// ---- the charts above the fold ------------------------------------------------------------------------------------------------
const line = (name, label, color = 'blue', more = {}) => ({name, label, color, ...more});
const key = items => make('span', {class: 'key'}, items.map(([style, color, text, shape]) => {
  if (shape !== undefined) { const s = document.createElementNS('http://www.w3.org/2000/svg', 'svg'), p = document.createElementNS('http://www.w3.org/2000/svg', 'path'); s.setAttribute('viewBox', '0 0 10 10'); p.setAttribute('d', ['M5 0L10 5L5 10L0 5Z', 'M1 1H9V9H1Z', 'M5 0L10 9H0Z', 'M5 1A4 4 0 1 1 4.9 1Z'][shape]); p.setAttribute('fill', 'none'); p.setAttribute('stroke', `var(--${color})`); p.setAttribute('stroke-width', '1.8'); s.append(p); return make('span', {}, s, text); }
  return make('span', {}, make('i', {class: style, style: style === 'band' ? {background: `var(--${color})`} : {borderTopColor: `var(--${color})`}}), text);
}));
const SETCOLORS = ['red', 'green', 'pink', 'orange'];
function learn() {
  const bound = v => D.bounds ? Math.min(D.bounds[1], Math.max(D.bounds[0], v)) : v;
  if (!MAIN) return;
  const mean = col(MAIN), std = col('reward/std');
  const shared = MAINNAME === 'reward' && D.bounds && D.bounds[1] <= 1.0001 && D.bounds[0] >= 0;
  chart($('c-learn'), {id: 'learn', title: MAINTITLE + (sets.length ? `, and held-out ${D.evals[sets[0]].metric}` : ''), size: 'big', range: shared ? [-.02, 1.04] : null, axis2: !shared && sets.length > 0, free: true,
    key: key([['', 'blue', 'mean'], ...(std ? [['band', 'blue', '± 1 s.d. of answers']] : []), ...sets.slice(0, 4).map((s, k) => ['', SETCOLORS[k], s + (shared ? '' : ', right axis'), k])]),
    logs: MAINNAME !== 'reward', lines: [line(MAIN, MAINNAME, 'blue', std ? {band: () => mean.map((v, i) => v === null || std[i] === null ? [v, v] : [bound(v - std[i]), bound(v + std[i])])} : {}),
      ...sets.slice(0, 4).map((s, k) => ({label: s, color: SETCOLORS[k], shape: k, points: D.evals[s], axis2: !shared}))]});
  const w = Math.max(1, Math.min(50, Math.round(D.run.records / 16)));
  let i = 0, n = 0; while (i < LAST && (n += D.n[i]) < w) i++;
  const words = [`${MAINNAME} ${sig(meanOf(MAIN, 0, i))} → ${sig(meanOf(MAIN, firstPoint(w), LAST))}`];
  for (const s of sets.slice(0, 2)) { const e = D.evals[s]; words.push(`${s} ${score(s, e.v[0])} → ${score(s, e.v[e.v.length - 1])}`); }
  $('f-learn').textContent = words.join(', ');
  $('f-learn').title = `${MAINNAME}: mean of the first and of the latest ${w} steps; held-out: first and latest evaluation`;
}
function limitOf(path, text) { const v = number(path); return v > 0 ? {v, text: `${text} ${+v.toPrecision(4)}`} : null; }
const limits = {kl: limitOf('algorithm.kl.kl_target', 'kl_target'), diff: limitOf('train.max_log_prob_diff_mean', 'run stops at a mean of'), policy: limitOf('actor.max_norm', 'clipped above'), critic: limitOf('critic.max_norm', 'clipped above')};
function health() {
  const box = $('c-health');
  if (KIND !== 'ppo') return healthOfRows(box);
  chart(box, {id: 'kl', title: 'KL to reference', note: limits.kl ? '' : 'nats a token', limit: limits.kl, logs: true, lines: [line('kl/mean', 'KL')]});
  chart(box, {id: 'entropy', title: 'Entropy', note: 'nats a token', logs: true, lines: [line('policy/entropy', 'entropy')]});
  chart(box, {id: 'clip', title: 'Clip fraction', note: number('algorithm.eps_clip') ? `of tokens, ε ${+number('algorithm.eps_clip').toPrecision(3)}` : 'of tokens', axis: axisPercent, format: v => percent(v, 2), lines: [line('policy/clip_fraction', 'policy')]});
  chart(box, {id: 'diff', title: 'Log-prob difference', note: 'dotted: largest', limit: limits.diff, logs: true, logByDefault: true, lines: [line('rollout/log_prob_diff_mean', 'mean'), line('rollout/log_prob_diff_max', 'largest', 'muted', {dash: 'dots', thin: true, quiet: true})]});
  chart(box, {id: 'grad', title: 'Gradient norm, policy', limit: limits.policy, logs: true, logByDefault: true, lines: [line(['policy', 'sft', 'dpo', 'reward_model'].map(n => n + '/grad_norm').find(n => D.cols[n] !== undefined), 'policy')]});
  chart(box, {id: 'cgrad', title: 'Gradient norm, critic', limit: limits.critic, logs: true, logByDefault: true, lines: [line('critic/grad_norm', 'critic')]});
  const from = firstPoint(50), words = [];
  const above = (name, limit) => { let n = 0, all = 0; for (let i = from; i <= LAST; i++) { const v = at(name, i); if (v === null || v === undefined) continue; all += 1; if (v > limit) n += 1; } return all ? n / all : null; };
  if (limits.kl) words.push(`KL ${sig(meanOf('kl/mean', from, LAST))} (target ${limits.kl.v})`);
  const skipped = D.stats['policy/skipped'] && D.stats['policy/skipped'][3];
  if (limits.diff && D.cols['rollout/log_prob_diff_mean'] !== undefined) words.push(`log-prob diff. ${sig(meanOf('rollout/log_prob_diff_mean', from, LAST), 2)} (limit ${limits.diff.v})`);
  const clipped = limits.policy ? above('policy/grad_norm', limits.policy.v) : null;
  if (clipped !== null) words.push(clipped ? `policy gradient clipped in ${Math.round(100 * clipped)} %` : 'policy gradient never clipped');
  const count = k => D.marks.filter(m => m.k === k).length;
  const bad = [['restart', count('restart')], ['error', count('error')], ['warning', count('warning')]].filter(b => b[1]).map(b => counted(b[1], b[0]));
  $('f-health').append((words.length ? `last ${Math.min(50, D.run.records)} steps: ` : '') + words.join(', '));
  if (skipped) bad.push('optimizer steps skipped: gradients not finite');
  if (bad.length) $('f-health').append('; ', make('button', {class: 'plain', type: 'button', onclick() { $('s-events').scrollIntoView(); }}, bad.join(', ')));
}

function healthOfRows(box) {
  const limit = limits[KIND === 'reward_model' ? 'critic' : 'policy'], name = leaf => KIND + '/' + leaf;
  chart(box, {id: 'rgrad', title: 'Gradient norm', limit, logs: true, logByDefault: true, lines: [line(name('grad_norm'), 'gradient')]});
  chart(box, {id: 'racc', title: 'Accuracy', note: 'share of pairs', axis: axisPercent, format: percent, lines: [line(name('accuracy'), 'accuracy')]});
  chart(box, {id: 'rmargin', title: 'Margin', note: 'chosen less rejected', free: true, lines: [line(name('margin'), 'margin')]});
  chart(box, {id: 'rrewards', title: 'Rewards', free: true, key: key([['', 'blue', 'chosen'], ['dash', 'orange', 'rejected']]), lines: [line(name('chosen_reward'), 'chosen', 'blue', {quiet: true}), line(name('rejected_reward'), 'rejected', 'orange', {dash: 'dash', quiet: true})]});
  chart(box, {id: 'rlr', title: 'Learning rate', logs: true, lines: [line(name('learning_rate'), 'learning rate')]});
  chart(box, {id: 'rstep', title: 'Step time', axis: axisSeconds, format: seconds, lines: [line('time/step', 'step')]});
  const from = firstPoint(50), above = limit ? meanIn({i0: from, ends: [LAST]}, col(name('grad_norm')).map(v => v === null ? null : v > limit.v ? 1 : 0))[0] : null;
  if (above !== null) $('f-health').append(`last ${Math.min(50, D.run.records)} steps: gradient ` + (above ? `clipped in ${Math.round(100 * above)} %` : 'never clipped'));
}

// ---- time -----------------------------------------------------------------------------------------------------------------
// What comes one after the other; of what runs side by side the longest is waited for. The rest is what no part has.
const PHASES = [
  {label: 'generate', color: 'blue', light: true, of: ['time/generate']},
  {label: 'score, values, log-probs', short: 'score …', color: 'sky', of: ['time/score', 'time/values', 'time/log_probs']},
  {label: 'update', color: 'orange', of: ['time/policy_update', 'time/critic_update']},
  {label: 'weight sync', color: 'green', light: true, of: ['time/weight_sync']},
  {label: 'evaluation, checkpoint', short: 'eval', color: 'pink', sum: true, of: ['time/evaluation', 'time/checkpoint']},
  {label: 'other', color: 'grey', of: []}];
const phaseAt = (p, i) => p.of.reduce((m, n) => { const v = at(n, i) || 0; return p.sum ? m + v : Math.max(m, v); }, 0);
function phaseValues(p) {
  if (p.of.length) return X.map((x, i) => phaseAt(p, i));
  return X.map((x, i) => Math.max(0, (at('time/step', i) || 0) - PHASES.reduce((s, q) => s + (q.of.length ? phaseAt(q, i) : 0), 0)));
}
function time() {
  if (KIND !== 'ppo') {
    document.querySelector('#s-waits h2').textContent = 'How fast?';
    $('s-bar').hidden = true;
    chart($('c-time'), {id: 'rtput', title: 'Tokens a second', size: 'mid', lines: [line(KIND + '/tokens_per_second', 'tokens a second')]});
    $('f-waits').textContent = `${sig(meanOf(KIND + '/tokens_per_second', firstPoint(50), LAST))} tokens a second, ${seconds(meanOf('time/step', firstPoint(50), LAST))} a step`;
    return;
  }
  PHASES.forEach(p => { p.values = phaseValues(p); });
  chart($('c-time'), {id: 'time', title: 'Seconds of a step', size: 'mid', stacked: true, axis: axisSeconds, format: seconds, width: 42,
    note: 'stacked from the bottom in the order of the bar', lines: PHASES.slice().reverse().map(p => ({points: true, label: p.label, color: p.color, values: () => p.values}))});
}
function waterfall() {
  if (KIND !== 'ppo') return;
  const [a, b] = win || whole();
  let from = win ? X.findIndex(x => x >= a) : firstPoint(100), to = LAST;
  while (to > from && X[to] > b) to--;
  if (from < 0) from = 0;
  if (!win && from === 0 && LAST > 3) from = 1;   // the first step warms up
  const mean = p => { let s = 0, n = 0; for (let i = from; i <= to; i++) { s += p.values[i] * D.n[i]; n += D.n[i]; } return s / n; };
  const parts = PHASES.map(p => ({...p, v: mean(p)})), whole_ = parts.reduce((s, p) => s + p.v, 0);
  $('f-bar').textContent = `mean of steps ${group(D.x[from] - D.n[from] + 1)}–${group(D.x[to])}; hollow: beside a longer one, not waited for`;
  const falls = $('falls'), bar = make('div', {class: 'bar', role: 'img'}), light = document.documentElement.dataset.theme === 'light';
  // One unit for all rows, so that decimal points stand under each other.
  const unit = v => v > 0 && v < (whole_ < 1 ? .0005 : whole_ < 10 ? .005 : .05) ? (whole_ < 1 ? '< 1 ms' : whole_ < 10 ? '< 0.01 s' : '< 0.1 s') : whole_ < 1 ? (1000 * v).toFixed(whole_ < .1 ? 1 : 0) + ' ms' : whole_ < 100 ? v.toFixed(whole_ < 10 ? 2 : 1) + ' s' : v.toFixed(0) + ' s';
  bar.setAttribute('aria-label', parts.map(p => `${p.label} ${percent(p.v / whole_, 0)}`).join(', '));
  for (const p of parts) if (p.v > 0) bar.append(make('span', {class: p.light && light ? 'light' : null, title: `${p.label}: ${unit(p.v)}`, style: {width: 100 * p.v / whole_ + '%', background: ink[p.color], paddingLeft: p.v / whole_ > .06 ? null : '0'}},
    [`${p.label} ${percent(p.v / whole_, 0)}`, p.label, percent(p.v / whole_, 0), ''].find(t => t.length * 6.3 + 9 < p.v / whole_ * .65 * falls.clientWidth) || ''));
  const body = make('tbody', {}, make('tr', {}, make('td', {}, make('b', {}, 'a step')), make('td', {class: 'num'}, make('b', {}, unit(whole_))), make('td', {class: 'num muted'}, '100 %'), make('td', {}, bar)));
  let at0 = 0;
  const NAMES = {'time/score': 'score, reference', 'time/values': 'values', 'time/log_probs': 'log-probs', 'time/policy_update': 'policy update', 'time/critic_update': 'critic update', 'time/generate': 'generate', 'time/weight_sync': 'weight sync', 'time/evaluation': 'evaluation', 'time/checkpoint': 'checkpoint'};
  for (const p of parts) {
    const rows = p.of.length ? p.of.map(n => ({label: NAMES[n], v: meanOfRare(n, from, to)})) : [{label: 'other', v: p.v}];
    const most = Math.max(...rows.map(r => r.v));
    let offset = at0;
    for (const r of rows) {
      if (!r.v) continue;
      const beside = !p.sum && rows.length > 1 && r.v < most;
      body.append(make('tr', {}, make('td', {}, make('i', {class: 'swatch' + (beside ? ' beside' : ''), style: {background: ink[p.color], borderColor: ink[p.color]}}), r.label),
        make('td', {class: 'num'}, unit(r.v)), make('td', {class: 'num muted'}, r.v / whole_ < .005 ? '< 1 %' : percent(r.v / whole_, 0)),
        make('td', {}, make('div', {class: 'lane'}, make('i', {class: beside ? 'beside' : null, style: {left: 100 * offset / whole_ + '%', width: 100 * Math.min(r.v, whole_ - offset) / whole_ + '%', background: ink[p.color], borderColor: ink[p.color]}})))));
      if (p.sum) offset += r.v;
    }
    at0 += p.v;
  }
  falls.replaceChildren(body);
  const top = parts.slice().sort((p, q) => q.v - p.v)[0];
  const upd = ['time/policy_update', 'time/critic_update'].map(n => meanOfRare(n, from, to));
  $('f-waits').textContent = `${percent(top.v / whole_, 0)} of a step is ${top.label}` + (top.label === 'update' && upd[0] && upd[1] ? `; ${upd[0] > upd[1] ? 'the critic' : 'the policy'} is done ${seconds(Math.abs(upd[0] - upd[1]))} before ${upd[0] > upd[1] ? 'the policy' : 'the critic'}` : '');
}
function meanOfRare(name, from, to) { let s = 0, n = 0; for (let i = from; i <= to; i++) { s += (at(name, i) || 0) * D.n[i]; n += D.n[i]; } return n ? s / n : 0; }

// ---- samples --------------------------------------------------------------------------------------------------------------
const A = D.samples, M = A.step.length;
const partNames = Object.keys(A.parts);
let view = 'change', anchor = M - 1, shownRows = 40, hits = [];
const filter = {text: '', from: '', to: '', sort: 'new'};
const shape = [];
const words = s => new Set(s.toLowerCase().replace(/\d+/g, '#').match(/[^\s.,;:!?()]+/g) || []);
const shapeOf = k => shape[k] || (shape[k] = {words: words(A.prompt[k]), letters: new Set(A.prompt[k].toLowerCase())});
function likeness(a, b) { let n = 0; for (const w of a) if (b.has(w)) n++; return n / (a.size + b.size - n || 1); }
function textCell(text, name, find) {
  const box = make('div', {class: 'text', dir: 'auto', title: 'click: whole or cut', onclick() { if (!String(getSelection())) box.classList.toggle('open'); }});
  box.append(...found(text, find));
  return make('td', {'data-name': name}, box);
}
// The text, with what is searched for marked.
function found(text, find) {
  const t = visible(text), low = t.toLowerCase(), nodes = [];
  let i = 0, j;
  if (find) while ((j = low.indexOf(find, i)) >= 0 && low.length === t.length) { nodes.push(t.slice(i, j), make('mark', {}, t.slice(j, j + find.length))); i = j + find.length; }
  return [...nodes, t.slice(i)];
}
// Of an episode all sequences, turn by turn; else what tokens are worth: the text up to each that has a reward.
function answerCell(k, find) {
  const cell = textCell(A.response[k], 'answer', find), spans = A.tokens[k], sequences = A.sequences[k];
  if (sequences) cell.firstChild.replaceChildren(...sequences.flatMap((turns, b) => [sequences.length > 1 ? make('div', {class: 'branch'}, `sequence ${b + 1} of ${sequences.length}`) : '',
    ...turns.map(([text, trained]) => make('div', {class: 'turn'}, make('span', {class: trained ? 'trained' : null, title: trained ? 'trained on' : 'context'}, found(text, find))))]));
  else if (spans && !find) cell.firstChild.replaceChildren(...spans.map(([text, reward]) => make('span', reward ? {class: reward > 0 ? 'gain' : 'loss', title: 'reward of its last token: ' + plain(reward)} : {}, visible(text))));
  return cell;
}
const plain = v => v === null || v === undefined ? '–' : String(+v.toPrecision(3)).replace('-', '−');
function rewardCell(k) {
  const cell = make('td', {class: 'num', 'data-name': 'reward'}, plain(A.reward[k]));
  if (partNames.length > (MAINNAME === 'reward' ? 1 : 0)) cell.append(make('div', {class: 'parts'}, partNames.flatMap(p => [make('span', {title: p}, visible(p)), make('span', {}, plain(A.parts[p][k]))])));
  return cell;
}
function columnsOf(list) { return [make('colgroup', {}, list.map(c => make('col', {style: {width: c[2]}}))), make('thead', {}, make('tr', {}, list.map(c => make('th', {class: c[1] ? 'num' : null}, c[0]))))]; }
function change() {
  // One kind of prompt over the run: for each eighth of the recorded steps the sample whose prompt is most like the chosen one.
  const me = shapeOf(anchor), like = new Array(M);
  let top = 0;
  for (let k = 0; k < M; k++) { like[k] = likeness(me.words, shapeOf(k).words); if (k !== anchor) top = Math.max(top, like[k]); }
  // Answers without rewards are told apart by their KL.
  const worth = k => A.reward[k] ?? A.kl[k] ?? 0, worths = like.map((_, k) => worth(k));
  const kind = k => like[k] >= .85 * top;
  const slices = Math.min(8, new Set(A.step).size), first = A.step[0], last = A.step[M - 1] + 1, table = make('table', {class: 'answers'});
  table.append(...columnsOf([['steps', 1, '92px'], ['mean ' + MAINNAME, 1, '120px'], ['like it', 1, '52px'], ['prompt', 0, '30%'], ['answer', 0, ''], ['right answer', 0, '12%'], ['reward', 1, partNames.length > 1 ? '96px' : '64px']]));
  const body = make('tbody');
  for (let q = 0; q < slices; q++) {
    const a = Math.ceil(first + (last - first) * q / slices), b = Math.ceil(first + (last - first) * (q + 1) / slices) - 1;
    const of = []; for (let k = 0; k < M; k++) if (A.step[k] >= a && A.step[k] <= b && kind(k)) of.push(k);
    if (!of.length) continue;
    const mean = of.reduce((s, k) => s + worth(k), 0) / of.length;
    // Typical first: on the side of the mean where most are; then the likest.
    const rewards = of.map(worth).sort((x, y) => x - y), median = rewards[rewards.length >> 1];
    const best = of.includes(anchor) ? anchor : of.slice().sort((x, y) => Math.abs(worth(x) - median) - Math.abs(worth(y) - median) || likeness(me.letters, shapeOf(y).letters) - likeness(me.letters, shapeOf(x).letters))[0];
    const scale = MAINNAME === 'reward' && D.bounds || [Math.min(...worths), Math.max(...worths)];
    body.append(make('tr', {'aria-selected': String(best === anchor)}, make('td', {class: 'num', 'data-name': 'steps'}, `${group(a)}–${group(b)}`),
      make('td', {class: 'num', 'data-name': 'mean ' + MAINNAME}, sig(mean), make('span', {class: 'level'}, make('i', {style: {width: 100 * Math.max(0, (mean - scale[0]) / (scale[1] - scale[0] || 1)) + '%'}}))),
      make('td', {class: 'num muted', 'data-name': 'samples like it'}, group(of.length)), textCell(A.prompt[best], 'prompt'), answerCell(best), textCell(A.label[best], 'right answer'), rewardCell(best)));
  }
  table.append(body);
  return table;
}
function list() {
  const find = filter.text.toLowerCase();
  hits = [];
  for (let k = 0; k < M; k++) if ((filter.from === '' || A.step[k] >= +filter.from) && (filter.to === '' || A.step[k] <= +filter.to) && (!find || [A.prompt[k], A.response[k], A.label[k], ...(A.sequences[k] || []).flat().map(s => s[0])].join('\n').toLowerCase().includes(find))) hits.push(k);
  const by = {new: (a, b) => A.step[b] - A.step[a] || a - b, old: (a, b) => A.step[a] - A.step[b] || a - b, worst: (a, b) => A.reward[a] - A.reward[b] || A.step[b] - A.step[a], best: (a, b) => A.reward[b] - A.reward[a] || A.step[b] - A.step[a], kl: (a, b) => (A.kl[b] ?? -9) - (A.kl[a] ?? -9), long: (a, b) => A.response[b].length - A.response[a].length};
  hits.sort(by[filter.sort]);
  const table = make('table', {class: 'answers'});
  table.append(...columnsOf([['step', 1, '62px'], ['prompt', 0, '30%'], ['answer', 0, ''], ['right answer', 0, '12%'], ['reward', 1, partNames.length > 1 ? '96px' : '64px'], ['KL', 1, '62px'], ['ended by', 0, '62px'], ['', 0, '74px']]));
  table.append(make('tbody', {}, hits.slice(0, shownRows).map(k => make('tr', {}, make('td', {class: 'num', 'data-name': 'step'}, group(A.step[k])), textCell(A.prompt[k], 'prompt', find), answerCell(k, find), textCell(A.label[k], 'right answer', find), rewardCell(k),
    make('td', {class: 'num', 'data-name': 'KL'}, sig(A.kl[k], 2)), make('td', {'data-name': 'ended by'}, visible(A.finish[k])), make('td', {class: 'num noprint'}, make('button', {class: 'plain', type: 'button', onclick() { anchor = k; view = 'change'; showSamples(); $('s-samples').scrollIntoView(); }}, 'over the run'))))));
  const more = hits.length > shownRows ? make('p', {style: {padding: '8px 0'}}, make('button', {type: 'button', onclick() { shownRows += 200; showSamples(); }}, `${group(Math.min(200, hits.length - shownRows))} more of ${group(hits.length)}`)) : '';
  return make('div', {}, table, hits.length ? more : make('p', {class: 'muted', style: {padding: '12px 0'}}, 'No sample matches.'));
}
function showSamples() {
  if (!M) { $('s-samples').hidden = KIND !== 'ppo'; $('f-samples').textContent = 'none recorded yet'; return; }
  document.querySelectorAll('#view button').forEach(b => b.setAttribute('aria-pressed', b.dataset.n === view));
  $('samples').replaceChildren(view === 'change' ? change() : list());
  const all = A.total > M ? `${group(M)} of ${group(A.total)} samples, of steps evenly over the run; all in samples.jsonl` : `all ${group(M)} samples`;
  $('f-samples').textContent = view === 'change' ? `how answers to one kind of prompt changed: a typical one for each part of the run (${all})` : `${group(hits.length)} found in ${all}`;
}
function samples() {
  if (!M) return showSamples();
  const change = () => { shownRows = 40; view = 'list'; showSamples(); };
  const input = (name, type, extra) => make('input', {type, value: filter[name] || null, ...extra, oninput() { filter[name] = this.value; change(); }});
  const sort = make('select', {onchange() { filter.sort = sort.value; change(); }}, [['new', 'newest first'], ['old', 'oldest first'], ['worst', 'least reward'], ['best', 'greatest reward'], ['kl', 'greatest KL'], ['long', 'longest answer']].map(o => make('option', {value: o[0]}, o[1])));
  $('filters').append(seg('', 'view', [['change', 'over the run'], ['list', 'all']], view, v => { view = v; showSamples(); }),
    make('label', {class: 'grow'}, 'search', input('text', 'search', {id: 'search', placeholder: 'prompt, answer, right answer'})), make('label', {}, 'steps', input('from', 'number', {min: 1, placeholder: '1', 'aria-label': 'from step'}), 'to', input('to', 'number', {min: 1, placeholder: String(D.x[LAST]), 'aria-label': 'to step'})), make('label', {}, 'order', sort));
  sort.value = filter.sort;
  showSamples();
}

// ---- memory -----------------------------------------------------------------------------------------------------------------
const SERVICES = ['rollout', 'policy_trainer', 'critic_trainer', 'scorer'].filter(s => D.cols[`memory/${s}/total`] !== undefined);
const SERVICECOLORS = {rollout: 'blue', policy_trainer: 'orange', critic_trainer: 'green', scorer: 'pink'}, SERVICEDASH = {rollout: 'solid', policy_trainer: 'dash', critic_trainer: 'dots', scorer: 'solid'};
function memory() {
  $('s-memory').hidden = !SERVICES.length;
  if (!SERVICES.length) return;
  const has = Object.keys(D.plan).length > 0, cells = (...all) => all.filter((c, k) => has || ![2, 3, 6].includes(k));
  const peak = n => D.stats[n] ? D.stats[n][3] : null, CATS = ['parameters', 'gradients', 'optimizer', 'gathered', 'activations', 'logits', 'kv_cache', 'communication'];
  const planned = s => (D.plan[s] && (D.plan[s].device || D.plan[s].host)) || null, budget = s => number(`services.${s}.device_memory_budget`) || null;
  const most = Math.max(...SERVICES.flatMap(s => [peak(`memory/${s}/total`), planned(s) ? planned(s).at_once : 0, budget(s) || 0])) * 1.02;
  const body = make('tbody'), over = [];
  for (const s of SERVICES) {
    const p = planned(s), total = peak(`memory/${s}/total`), share = p ? total / p.at_once : null;
    if (share > 1) over.push(s);
    body.append(make('tr', {}, cells(make('td', {}, s.replace('_', ' ')), make('td', {class: 'num'}, bytes(total)), make('td', {class: 'num'}, p ? bytes(p.at_once) : '–'), make('td', {class: 'num'}, share === null ? '–' : (share > 1 ? '▲ ' : '') + percent(share, 0)),
      make('td', {style: {width: '30%'}}, make('div', {class: 'gauge', role: 'img', 'aria-label': `${bytes(total)} of ${p ? bytes(p.at_once) : 'no plan'}`}, make('i', {style: {width: 100 * total / most + '%'}}), p ? make('b', {title: 'plan', style: {left: 100 * p.at_once / most + '%'}}) : null, budget(s) ? make('b', {class: 'budget', title: 'budget', style: {left: 100 * budget(s) / most + '%'}}) : null)),
      make('td', {class: 'num'}, bytes(peak(`memory/${s}/process`))), make('td', {class: 'num'}, p && p.a_rank && (config[`services.${s}.device`] || 'cpu') === 'cpu' ? bytes(p.a_rank) : '–'))));
  }
  $('memory').append(make('thead', {}, make('tr', {}, cells(...[['a rank of', 0], ['peak', 1], ['plan', 1], ['of plan', 1], [(has ? 'bar: peak, line: plan' : 'bar: peak') + (SERVICES.some(budget) ? ', dotted: budget' : ''), 0], ['process', 1], ['plan', 1]]).map(h => make('th', {class: h[1] ? 'num' : null}, h[0])))), body);
  const fine = make('table', {class: 'mem'}, make('thead', {}, make('tr', {}, make('th', {}, 'peaks, not at the same time'), SERVICES.flatMap(s => [make('th', {class: 'num'}, s.replace('_', ' ')), make('th', {class: 'num'}, 'plan')]))), make('tbody', {}, CATS.filter(c => SERVICES.some(s => peak(`memory/${s}/${c}`))).map(c => make('tr', {}, make('td', {}, c.replace('_', ' ')), SERVICES.flatMap(s => [make('td', {class: 'num'}, peak(`memory/${s}/${c}`) ? bytes(peak(`memory/${s}/${c}`)) : '–'), make('td', {class: 'num muted'}, planned(s) && planned(s)[c] ? bytes(planned(s)[c]) : '–')])))));
  $('memory').parentElement.append(make('details', {}, make('summary', {}, 'by category'), fine));
  $('f-memory').textContent = !has ? '' : over.length ? `above its plan: ${over.join(', ').replace(/_/g, ' ')}` : 'all services within their plan';
  chart($('c-memory'), {id: 'memory', title: 'Tensors at once, a rank’s peak', size: 'low', axis: axisBytes, format: bytes, width: 52, key: key(SERVICES.map(s => [SERVICEDASH[s] === 'dash' ? 'dash' : SERVICEDASH[s] === 'dots' ? 'dot3' : '', SERVICECOLORS[s], s.replace('_', ' ')])), lines: SERVICES.map(s => line(`memory/${s}/total`, s, SERVICECOLORS[s], {dash: SERVICEDASH[s], quiet: true}))});
}

// ---- the rest -----------------------------------------------------------------------------------------------------------------
let other;
function more() {
  const box = $('c-more');
  chart(box, {id: 'gentput', title: 'Generated', note: 'tokens a second, rollout', logs: true, lines: [line('rollout/generated_tokens_per_second', 'rollout')]});
  chart(box, {id: 'tput', title: 'Trained', logs: true, key: key([['', 'blue', 'policy'], ['dash', 'orange', 'critic, tokens/s']]), lines: [line('policy/tokens_per_second', 'policy', 'blue', {quiet: true}), line('critic/tokens_per_second', 'critic', 'orange', {dash: 'dash', quiet: true})]});
  chart(box, {id: 'length', title: 'Answer length', note: 'tokens', limit: limitOf('rollout.generate_max_len', 'generate_max_len'), lines: [line('response_length/mean', 'mean')]});
  chart(box, {id: 'truncated', title: 'Cut off', note: 'share of answers at the limit', axis: axisPercent, format: percent, lines: [line('response_length/truncated', 'cut off')]});
  const parts = Object.keys(D.cols).filter(n => /^reward\//.test(n) && !['mean', 'std', 'shaped_std', 'clipped', 'groups_without_signal', 'failed'].includes(n.slice(7))), colors = ['blue', 'orange', 'green', 'pink'];
  if (parts.length > 1) chart(box, {id: 'parts', title: 'Reward by source', free: true, key: key(parts.slice(0, 4).map((n, k) => [['', 'dash', 'dot3', ''][k], colors[k], n.slice(7)])), lines: parts.slice(0, 4).map((n, k) => line(n, n, colors[k], {quiet: true, dash: ['solid', 'dash', 'dots', 'solid'][k]}))});
  chart(box, {id: 'ploss', title: 'Policy loss', free: true, lines: [line('policy/loss', 'loss')]});
  chart(box, {id: 'closs', title: 'Critic loss', logs: true, logByDefault: true, lines: [line('critic/loss', 'loss')]});
  chart(box, {id: 'ev', title: 'Explained variance', note: 'critic; 1 is all', free: true, lines: [line('critic/explained_variance', 'explained variance')]});
  chart(box, {id: 'lr', title: 'Learning rate', logs: true, key: key([['', 'blue', 'policy'], ['dash', 'orange', 'critic']]), lines: [line('policy/learning_rate', 'policy', 'blue', {quiet: true}), line('critic/learning_rate', 'critic', 'orange', {dash: 'dash', quiet: true})]});
  chart(box, {id: 'kvu', title: 'KV cache in use', axis: axisPercent, format: percent, note: 'at the end of a step', lines: Array.isArray(D.cols['rollout/kv_cache_usage']) ? [line('rollout/kv_cache_usage', 'in use')] : []});
  const names = Object.keys(D.cols).sort(), pick = make('select', {class: 'pick', 'aria-label': 'metric to plot', onchange() { showOther(pick.value); }}, names.map(n => make('option', {value: n}, n)));
  other = {id: 'other', title: 'Any metric', logs: true, free: true, lines: [line(names.includes('policy/approx_kl') ? 'policy/approx_kl' : names[0], 'value')]};
  pick.value = other.lines[0].name;
  other.key = pick; chart(box, other); other.pick = pick;
}
function showOther(name) { other.lines = [line(name, 'value')]; other.pick.value = name; draw(other); }
function eventsTable() {
  const list = D.marks.filter(m => m.k !== 'checkpoint').reverse(), count = k => list.filter(m => m.k === k).length;
  $('f-events').textContent = list.length ? ['restart', 'error', 'warning'].map(k => `${count(k)} ${k}${count(k) === 1 ? '' : 's'}`).join(', ') : 'none';
  if (!list.length) return;
  const rows = list.map(m => make('tr', {}, make('td', {class: 'num'}, m.s === null || m.s === undefined ? '–' : make('button', {class: 'plain', type: 'button', title: 'cursor there', onclick() { let i = 0; while (i < LAST && D.x[i] < m.s) i++; pinned = i; cursor = null; setCursor(i); scrollTo({top: 0}); }}, group(m.s))), make('td', {}, clock(m.t)), make('td', {class: m.k === 'warning' ? '' : 'state bad'}, m.k), make('td', {}, visible(m.who)), make('td', {style: {width: '70%'}}, visible(m.text))));
  const body = make('tbody', {}, rows.slice(0, 12)), table = make('table', {class: 'mem'}, make('thead', {}, make('tr', {}, ['step', 'time', 'what', 'from', ''].map((h, k) => make('th', {class: k ? null : 'num'}, h)))), body);
  $('events').append(table);
  if (rows.length > 12) $('events').append(make('p', {style: {padding: '6px 0'}}, make('button', {type: 'button', onclick() { body.append(...rows.slice(12)); this.remove(); }}, `${rows.length - 12} more`)));
}
function configTable() {
  const pretty = v => /^\d{7,}$/.test(v) && +v % 1048576 === 0 ? `${v}  (${bytes(+v)})` : v;
  const table = rows => make('table', {class: 'config'}, columnsOf([['field', 0, '30%'], ['value', 0, ''], ['default', 0, '16%'], ['from', 0, '16%']]), make('tbody', {}, rows.map(c => make('tr', {}, make('td', {class: 'mono'}, c[0]), make('td', {class: 'mono'}, visible(pretty(c[1]))), make('td', {class: 'mono muted'}, c[4] ? c[2] === null ? '–' : visible(c[2]) : ''), make('td', {class: 'muted'}, c[3] ? visible(c[3]) : c[4] ? '' : 'default')))));
  const mine = D.config.filter(c => c[4]);
  $('f-config').textContent = D.config.length ? `${mine.length} of ${D.config.length} values differ from their default, or have none and are set` : 'no run.textproto';
  if (!D.config.length) return;
  const holder = make('div'), all = make('details', {ontoggle() { if (all.open && !holder.firstChild) show(''); }}, make('summary', {}, `all ${D.config.length} values`), make('div', {class: 'filters noprint'}, make('label', {}, 'search', make('input', {type: 'search', oninput() { show(this.value); }}))), holder);
  const show = text => holder.replaceChildren(table(D.config.filter(c => (c[0] + ' ' + c[1]).toLowerCase().includes(text.toLowerCase()))));
  $('config').append(table(mine), all);
}
function allMetrics() {
  const box = $('all').lastElementChild;
  $('all').addEventListener('toggle', () => {
    if (box.firstChild || !$('all').open) return;
    const show = v => sig(v, 4);
    box.append(make('table', {class: 'mem'}, make('thead', {}, make('tr', {}, ['metric', 'first', 'latest', 'least', 'greatest', ''].map((h, k) => make('th', {class: k && k < 5 ? 'num' : null}, h)))), make('tbody', {}, Object.keys(D.stats).sort().map(n => make('tr', {}, make('td', {class: 'mono'}, visible(n)), D.stats[n].map(v => make('td', {class: 'num'}, n.startsWith('memory/') ? bytes(v) : show(v))), make('td', {class: 'noprint'}, make('button', {class: 'plain', type: 'button', onclick() { showOther(n); $('s-more').scrollIntoView(); }}, 'plot')))))));
  });
}

// ---- keys, reload, print --------------------------------------------------------------------------------------------------------
const KEYS = [['← →', 'one point back, on; with Shift ten'], ['Home End', 'first, latest step'], ['Enter', 'holds the cursor, lets it go'], ['Esc', 'no cursor'], ['+ −', 'zoom in and out around the cursor'], ['0', 'all steps'], ['[ ]', 'less, more smoothing'], ['l', 'logarithmic axes: all, none, as at first'], ['x', 'steps or time'], ['d', 'light or dark'], ['/', 'search the samples'], ['1 … 8', 'to a section']];
function help() { const d = $('help'); if (!d.firstChild) d.append(make('table', {}, make('tbody', {}, KEYS.map(k => make('tr', {}, make('td', {}, make('kbd', {}, k[0])), make('td', {}, k[1]))))), make('p', {style: {paddingTop: '8px'}}, make('button', {type: 'button', onclick() { d.close(); }}, 'Close'))); d.showModal(); }
document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && e.key !== 'Escape' || $('help').open) return;
  $('note').setAttribute('aria-live', 'polite');   // spoken for keys alone: a mouse would never let it end
  const i = cursor === null ? LAST : cursor, stepBy = e.shiftKey ? 10 : 1;
  const press = id => $(id).click();
  const acts = {
    ArrowLeft() { setCursor(pinned = Math.max(0, i - stepBy)); }, ArrowRight() { setCursor(pinned = Math.min(LAST, i + stepBy)); }, Home() { setCursor(pinned = 0); }, End() { setCursor(pinned = LAST); },
    Enter() { if (e.target.tagName === 'BUTTON' || e.target.tagName === 'SUMMARY') return true; pin(); }, Escape() { pinned = null; setCursor(null); document.activeElement.blur(); },
    '+'() { const w = win || whole(), h = (w[1] - w[0]) / 4; zoom([Math.max(whole()[0], X[i] - h), Math.min(whole()[1], X[i] + h)]); }, '-'() { const w = win || whole(), h = w[1] - w[0]; zoom([Math.max(whole()[0], X[i] - h), Math.min(whole()[1], X[i] + h)]); },
    0() { zoom(null); }, '['() { shift(-1); }, ']'() { shift(1); },
    l() { const can = charts.filter(c => c.logs), next = can.every(isLog) ? false : can.some(isLog) ? true : undefined; can.forEach(c => { S.logs[c.id] = next; c.button.setAttribute('aria-pressed', isLog(c)); }); keep(); redraw(); },
    x() { document.querySelector('#axis button[aria-pressed=false]').click(); }, d() { document.querySelector(`#theme button[data-n=${document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'}]`).click(); },
    '/'() { $('search') && $('search').focus(); }, '?'() { help(); }};
  acts['='] = acts['+'];
  const sections = ['s-learn', 's-health', 's-waits', 's-samples', 's-memory', 's-more', 's-events', 's-config'];
  if (/^[1-8]$/.test(e.key)) $(sections[e.key - 1]).scrollIntoView();
  else if (!acts[e.key] || acts[e.key]() === true) return;
  e.preventDefault();
});
function shift(by) { const r = $('smooth'); r.value = +r.value + by; r.dispatchEvent(new Event('input')); }
media.addEventListener('change', () => { theme(); redraw(); });
// Charts stay as they are: what is drawn on a canvas from here on is not printed.
addEventListener('beforeprint', () => { theme('light'); waterfall(); });
addEventListener('afterprint', () => { theme(); waterfall(); });
if (D.run.status === 'running') setInterval(() => { if (S.reload && !document.hidden && !String(getSelection()) && !/INPUT|SELECT/.test(document.activeElement.tagName) && !$('help').open) { S.pin = pinned === null ? null : D.x[pinned]; S.win = S.show ? null : win; S.view = view; S.filter = filter; S.anchor = anchor < M - 1 ? anchor : null; keep(); location.reload(); } }, 30000);

if (/^\d+$/.test(asked.step || '') && N) { pinned = 0; while (pinned < LAST && D.x[pinned] < +asked.step) pinned++; cursor = pinned; }
if (pinned === null && S.pin !== undefined && S.pin !== null && N) { pinned = 0; while (pinned < LAST && D.x[pinned] < S.pin) pinned++; cursor = pinned; }
if (N) win = S.show ? newest(S.show) : S.win || null;
if (asked.view === 'list' || S.view === 'list') view = 'list';
Object.assign(filter, S.filter || {});
if (S.anchor) anchor = Math.min(S.anchor, M - 1);
head(); controls(); buildReadout();
if (N) { learn(); health(); time(); waterfall(); readout(); }
samples(); memory(); if (N) more(); eventsTable(); configTable(); allMetrics();
built();
requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ms = `${Math.round(started)} script starts, ${Math.round(performance.now())} drawn`; }));
