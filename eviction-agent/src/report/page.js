'use strict';
// Draws the report that is in #data. Names come from others: they are only ever set as text.
const byId = (id) => document.getElementById(id);
const UNITS = ['B', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const opened = new Set();
let charts = [];
// Charts are drawn when all else has its place, and with it its width.
const waiting = [];

function element(tag, attributes, ...children) {
  const it = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) it.setAttribute(name, value);
  it.append(...children.filter((child) => child !== null));
  return it;
}

// Three digits, as the agent writes them.
function bytes(value) {
  let power = 0, rest = Math.abs(value);
  while (rest >= 1024 && power < 6) { rest /= 1024; power += 1; }
  const digits = rest >= 100 ? 0 : rest >= 10 ? 1 : 2;
  return (value < 0 ? '-' : '') + Number(rest.toFixed(digits)) + UNITS[power];
}

const format = (unit, value) => (unit === 'bytes' ? bytes(value) : String(value));

function amount(unit, value) {
  if (value === undefined || value === null) return '?';
  return element('data', { value: String(value) }, format(unit, value));
}

function time(text) {
  const at = new Date(text);
  return element('time', { datetime: text }, Number.isNaN(at.getTime()) ? text : at.toISOString().slice(11, 23));
}

const podName = (pod) => `${pod.namespace}/${pod.pod}`;

function table(id, label, columns, rows, omitted) {
  const kind = (name) => (name.startsWith('#') ? { class: 'number' } : name === 'time' ? { class: 'time' } : {});
  const head = columns.map((name) => element('th', { ...kind(name), scope: 'col' }, name.replace('#', '')));
  const body = rows.map((row) => element('tr', {}, ...row.map((cell, i) => element('td', kind(columns[i]), cell))));
  const it = element('table', { class: 'data', id, 'aria-label': label },
    element('thead', {}, element('tr', {}, ...head)), element('tbody', {}, ...body));
  const scroll = element('div', { class: `scroll ${id}`, tabindex: '0', role: 'region', 'aria-label': label }, it);
  const parts = [rows.length ? scroll : element('p', { class: 'faint' }, 'None.')];
  if (omitted) parts.push(element('p', { class: 'faint' }, `${omitted} more are left out.`));
  return parts;
}

// The value of a threshold at each time.
function stepped(threshold, times) {
  let next = 0, value = threshold.values.length ? threshold.values[0] : null;
  return times.map((at) => {
    while (next < threshold.times_ms.length && threshold.times_ms[next] <= at) value = threshold.values[next++];
    return value;
  });
}

// Vertical lines where pods were evicted and processes killed.
function marks(report) {
  const kinds = ['eviction_decision', 'oom_kill', 'kernel_kill'];
  const at = report.events.filter((it) => kinds.includes(it.event)).map((it) => Date.parse(it.at));
  return (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour('--mark');
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([6 * devicePixelRatio, 3 * devicePixelRatio]);
    let last = -Infinity;
    for (const it of at) {
      const x = Math.round(plot.valToPos(it, 'x', true));
      if (x < bbox.left || x > bbox.left + bbox.width || Math.abs(x - last) < 6) continue;
      last = x;
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    }
    ctx.restore();
  };
}

function draw(report, place, unit, data, series) {
  const axis = { stroke: colour('--text'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line'), width: 1 } };
  const value = (plot, it) => (it === null || it === undefined ? '-' : format(unit, it));
  const incrs = unit === 'bytes' ? Array.from({ length: 60 }, (_, power) => 2 ** power) : undefined;
  const clock = (plot, all) => all.map((at) => new Date(at).toISOString().slice(11, 19));
  const plot = new uPlot({
    width: place.clientWidth - 4, height: 230, ms: 1, tzDate: (at) => uPlot.tzDate(new Date(at), 'Etc/UTC'),
    cursor: { sync: { key: 'report' }, drag: { x: true, y: false } },
    scales: { x: { time: true }, y: { range: (plot, low, high) => [Math.min(0, low), Math.max(high, 1) * 1.05] } },
    axes: [{ ...axis, space: 80, values: clock }, { ...axis, size: 64, incrs, values: (plot, all) => all.map((it) => format(unit, it)) }],
    series: [{ label: 'UTC', value: (plot, at) => (at === null ? '-' : new Date(at).toISOString().slice(11, 23)) }, ...series.map((it) => ({ ...it, value, spanGaps: true }))],
    hooks: { draw: [marks(report)] },
  }, data, place);
  charts.push({ plot, place });
}

function figure(parent, label) {
  const place = element('div', { role: 'img', 'aria-label': label });
  parent.append(element('figure', {}, place));
  return place;
}

function signals(report, parent) {
  for (const it of report.signals) {
    const thresholds = it.thresholds.filter((threshold) => threshold.values.length);
    const texts = thresholds.map((threshold) => `${threshold.threshold} threshold of the ${threshold.source} ${format(it.unit, threshold.values.at(-1))}`);
    const place = figure(parent, `${it.signal} over time: least ${format(it.unit, it.least)}, ${texts.join(', ') || 'no threshold'}`);
    place.parentElement.prepend(element('h3', {}, it.signal),
      element('p', { class: 'faint' }, 'capacity ', amount(it.unit, it.capacity), ', least available ', amount(it.unit, it.least), texts.length ? `; ${texts.join(', ')}` : ''));
    const lines = thresholds.map((threshold) => ({
      label: `${threshold.threshold} (${threshold.source})`, stroke: colour(threshold.threshold === 'hard' ? '--hard' : '--soft'),
      dash: threshold.source === 'kubelet' ? [8, 4] : undefined, width: 1.5, points: { show: false },
    }));
    const data = [it.times_ms, it.values, ...thresholds.map((threshold) => stepped(threshold, it.times_ms))];
    waiting.push(() => draw(report, place, it.unit, data, [{ label: 'available', stroke: colour('--use'), width: 1.5 }, ...lines]));
  }
}

function pods(report, parent) {
  const shown = report.pods.filter((pod) => pod.values.length);
  if (!shown.length) return;
  const box = element('div', {});
  parent.append(box);
  const place = figure(box, `Memory of ${shown.length} pods over time; the table below has their values`);
  const light = matchMedia('(prefers-color-scheme: dark)').matches ? 70 : 38;
  const series = shown.map((pod, i) => ({ label: podName(pod), stroke: `hsl(${(i * 137) % 360} 65% ${light}%)`, width: 1.5 }));
  waiting.push(() => draw(report, place, 'bytes', uPlot.join(shown.map((pod) => [pod.times_ms, pod.values])), series));
}

function decisions(report, parent) {
  if (!report.decisions.length) parent.append(element('p', { class: 'faint' }, 'None under pressure.'));
  report.decisions.forEach((it, i) => {
    const key = `${it.at} ${it.title}`;
    const title = element('span', it.evicted.length ? { class: 'evicted' } : {}, it.title);
    const details = element('details', {}, element('summary', {}, time(it.at), ' ', title));
    if (it.explanation) {
      details.append(element('pre', { tabindex: '0', role: 'region', 'aria-label': `Explanation ${i + 1}` }, it.explanation));
    } else {
      const rows = it.candidates.map((pod, rank) => [amount('', rank + 1), podName(pod), String(pod.priority), amount('bytes', pod.usage), pod.request || '-', pod.result]);
      details.append(...table(`candidates-${i}`, `Order ${i + 1}`, ['#rank', 'pod', '#priority', '#use', '#request', 'result'], rows, it.candidates_omitted));
    }
    details.open = opened.has(key) || (it.evicted.length > 0 && i === report.decisions.findLastIndex((other) => other.evicted.length));
    details.addEventListener('toggle', () => (details.open ? opened.add(key) : opened.delete(key)));
    parent.append(details);
  });
  if (report.decisions_omitted) parent.append(element('p', { class: 'faint' }, `${report.decisions_omitted} more are left out.`));
}

function show(report) {
  charts.forEach(({ plot }) => plot.destroy());
  charts = [];
  const page = byId('page');
  page.replaceChildren();
  byId('about').replaceChildren(report.source, ', ', element('time', { datetime: report.from }, report.from), ' to ',
    element('time', { datetime: report.to }, report.to), ` (UTC); eviction-agent ${report.version}`);
  const section = (title, ...children) => {
    const it = element('section', {}, element('h2', {}, title), ...children);
    page.append(it);
    return it;
  };
  for (const warning of report.warnings) page.append(element('p', { class: 'warning' }, `Warning: ${warning}`));
  const grid = element('div', { class: 'charts' });
  section('Signals against thresholds', grid);
  signals(report, grid);
  pods(report, section('Memory of pods'));
  const rows = report.pods.map((pod) => [podName(pod), pod.qos, amount('bytes', pod.request), amount('bytes', pod.peak), amount('bytes', pod.last), pod.evicted ? time(pod.evicted) : '']);
  page.lastChild.append(...table('pods', 'Memory of pods', ['pod', 'QoS class', '#request', '#greatest use', '#last use', 'time'], rows, report.pods_omitted));
  page.lastChild.querySelectorAll('#pods th.time').forEach((it) => { it.textContent = 'evicted'; });
  const ranks = report.ranking.map((pod) => [pod.rank ? amount('', pod.rank) : '-', podName(pod), String(pod.priority), amount('bytes', pod.usage), amount('bytes', pod.request), amount('bytes', pod.over_request), pod.forecast]);
  section('Order of eviction for memory at the end', ...table('ranking', 'Order of eviction', ['#rank', 'pod', '#priority', '#use', '#request', '#above request', 'forecast'], ranks, report.ranking_omitted));
  const events = report.events.map((it) => [time(it.at), element('span', { class: it.severity }, it.severity), it.event, it.message]);
  section('Events', ...table('events', 'Events', ['time', 'severity', 'event', 'message'], events, report.events_omitted));
  decisions(report, section('Decisions'));
  waiting.splice(0).forEach((draw) => draw());
  document.documentElement.dataset.ready = 'true';
}

let report = JSON.parse(byId('data').textContent);
show(report);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => show(report));
addEventListener('resize', () => charts.forEach(({ plot, place }) => plot.setSize({ width: place.clientWidth - 4, height: 230 })));

// The live page asks for the present every two seconds.
if (report.live) {
  let paused = false;
  const button = element('button', { type: 'button', 'aria-pressed': 'false' }, 'Pause');
  button.addEventListener('click', () => { paused = !paused; button.setAttribute('aria-pressed', String(paused)); });
  byId('state').before(button);
  setInterval(async () => {
    if (paused) return;
    try {
      const answer = await fetch('data.json', { cache: 'no-store' });
      if (!answer.ok) throw new Error((await answer.text()).trim());
      report = await answer.json();
      byId('state').textContent = '';
      show(report);
    } catch (error) {
      byId('state').textContent = `No answer: ${error.message}`;
    }
  }, 2000);
}
