'use strict';
// Of all pages: elements, and numbers as people read them. Everything that comes from a run goes into a page as text: `make` and
// textContent. There is no innerHTML here.
const $ = id => document.getElementById(id);
const built = () => { document.documentElement.dataset.built = ''; };
addEventListener('error', built);   // half a page is better than none

function make(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (v === null || v === undefined || v === false) continue;
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k === 'style') Object.assign(e.style, v);
    else e.setAttribute(k, v === true ? '' : v);
  }
  for (const c of children.flat()) if (c !== null && c !== undefined) e.append(c);
  return e;
}
// Characters that hide, or turn the direction of what follows, are shown by their number.
const visible = s => String(s).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffd]/g,
  c => '⟨U+' + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0') + '⟩');

// ---- numbers ------------------------------------------------------------------------------------------------------------
const counted = (n, word) => `${group(n)} ${word}${n === 1 ? '' : 's'}`;
// Over how many steps a line is smoothed, and at first: not at all where there are few.
const SMOOTHING = [1, 3, 5, 10, 20, 50, 100, 200, 500];
const smoothingOf = steps => SMOOTHING.filter(n => n === 1 || n <= steps / 60 || (n === 3 && steps >= 20)).pop();
const group = v => Math.round(v).toLocaleString('en-US');
const superscript = n => String(n).replace(/[-0-9]/g, c => c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[c]);
function sig(v, digits = 3) {
  if (v === null || v === undefined || Number.isNaN(v)) return '–';
  const a = Math.abs(v);
  if (a === 0) return '0';
  if (a < 1e-3 || a >= 1e7) { const [m, e] = v.toExponential(1).split('e'); return m.replace('-', '−') + '×10' + superscript(+e); }
  if (a >= 1000) return group(v).replace('-', '−');
  return v.toPrecision(digits).replace('-', '−');
}
const percent = (v, d = 1) => v === null || v === undefined ? '–' : (100 * v).toFixed(d) + ' %';
const seconds = v => v === null || v === undefined ? '–' : v < 0.0995 ? (v * 1000).toPrecision(2) + ' ms' : v < 9.995 ? v.toFixed(2) + ' s' : v < 120 ? v.toFixed(1) + ' s' : span(v);
function span(s) {
  if (s === null || s === undefined || !isFinite(s)) return '–';
  if (s < 10) return s.toFixed(1) + ' s';
  if (s < 60) return Math.round(s) + ' s';
  const m = Math.round(s / 60);
  if (s < 3600) return Math.floor(s / 60) + ' min ' + Math.round(s % 60) + ' s';
  if (m < 48 * 60) return Math.floor(m / 60) + ' h ' + String(m % 60).padStart(2, '0') + ' min';
  return Math.floor(m / 1440) + ' d ' + Math.floor(m % 1440 / 60) + ' h';
}
const two = n => String(n).padStart(2, '0'), hm = d => two(d.getHours()) + ':' + two(d.getMinutes());
function clock(u, short) {
  if (u === null || u === undefined) return '';
  const d = new Date(u * 1000);
  return (short ? '' : d.getDate() + ' ' + 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split(' ')[d.getMonth()] + ' ') + hm(d) + (short === 'min' ? '' : ':' + two(d.getSeconds()));
}
function bytes(b) {
  if (b === null || b === undefined) return '–';
  for (const [u, n] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) if (b >= n) return (b / n).toPrecision(b / n >= 999.5 ? 4 : 3) + ' ' + u;
  return b + ' B';
}
// Axis labels: short, and nothing for a tick that says nothing.
const axisNumber = v => { const a = Math.abs(v); return a === 0 ? '0' : a >= 1e6 ? +(v / 1e6).toPrecision(3) + ' M' : a >= 1e4 ? +(v / 1e3).toPrecision(3) + ' k' : a < 1e-3 ? (+v.toPrecision(2)).toExponential().replace('e-', 'e−') : String(+v.toPrecision(6)).replace('-', '−'); };
const axisPercent = v => +(100 * v).toPrecision(3) + ' %';
const axisSeconds = v => v === 0 ? '0' : v < 0.995 ? +(1000 * v).toPrecision(3) + ' ms' : +v.toPrecision(3) + ' s';
const axisBytes = v => v === 0 ? '0' : v >= 2 ** 30 ? +(v / 2 ** 30).toPrecision(3) + ' GiB' : +(v / 2 ** 20).toPrecision(3) + ' MiB';
const axisPower = v => { const e = Math.log10(v), r = Math.round(e); return Math.abs(e - r) < 1e-6 ? (r >= -2 && r <= 3 ? String(+(10 ** r).toPrecision(1)) : '10' + superscript(r)) : ''; };

