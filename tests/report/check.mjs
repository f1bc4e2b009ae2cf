// node check.mjs AGENT RECORDING FOLDER: opens the page of `report`, and that of `ui`, in Chromium. Fails if values on
// the page are not those of the recording, on a request to any server, on an error of the page, on a violation that
// axe-core finds in light or dark, on a page that is too large, and if somebody else is answered. Leaves pictures in FOLDER.
import { execFileSync, spawn } from 'node:child_process';
import { readFileSync, statSync, mkdirSync } from 'node:fs';
import { request } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

const [agent, recording, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const run = (...args) => execFileSync(agent, args, { encoding: 'utf8', maxBuffer: 1 << 30 });
const faults = [];
const expect = (what, found, wanted) => {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) faults.push(`${what}: ${JSON.stringify(found)}, expected ${JSON.stringify(wanted)}`);
};

const file = `${folder}/report.html`;
run('report', recording, '-O', file);
const json = JSON.parse(run('report', recording, '-o', 'json'));
// The values by another way, not by the report.
const rows = run('export', recording, '-o', 'csv').split('\n').slice(1).filter(Boolean).map((line) => line.split(','));
const leastOf = (signal) => Math.min(...rows.filter((row) => row[2] === signal).map((row) => Number(row.at(-1))));
// A name with commas or quotes is in quotes: take names without them.
const used = (pod) => rows.filter((row) => row[1].includes('pod_memory') && row[4] === pod).map((row) => Number(row.at(-1)));

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
async function open(url, scheme, allowed) {
  const context = await browser.newContext({ colorScheme: scheme, viewport: { width: 1280, height: 1000 } });
  const page = await context.newPage();
  page.on('pageerror', (error) => faults.push(`${url}, ${scheme}: ${error.message}`));
  page.on('console', (line) => line.type() === 'error' && faults.push(`${url}, ${scheme}: ${line.text()}`));
  page.on('request', (it) => !/^(file|data):/.test(it.url()) && !(allowed && it.url().startsWith(allowed)) && faults.push(`asks for ${it.url()}`));
  page.on('dialog', (dialog) => { faults.push(`a name became a script: ${dialog.message()}`); dialog.dismiss(); });
  const start = performance.now();
  await page.goto(url);
  await page.waitForFunction(() => document.documentElement.dataset.ready === 'true');
  return { page, context, ms: performance.now() - start };
}

const times = [];
for (const scheme of ['light', 'dark']) {
  const { page, context, ms } = await open(pathToFileURL(file).href, scheme);
  times.push(ms);
  for (const [place, signal] of json.signals.entries()) {
    const values = await page.locator('.charts figure').nth(place).locator('p data').evaluateAll((all) => all.map((it) => Number(it.value)));
    expect(`${signal.signal}: capacity and least`, values, [signal.capacity, leastOf(signal.signal)]);
  }
  const pods = await page.locator('table#pods tbody tr').evaluateAll((all) => all.map((row) => [row.cells[0].textContent, ...[...row.querySelectorAll('data')].map((it) => Number(it.value))]));
  expect('pods', pods, json.pods.map((pod) => [`${pod.namespace}/${pod.pod}`, pod.request, pod.peak, pod.last]));
  for (const [name, , peak, last] of pods.filter(([name], _, all) => !/[,"]/.test(name) && all.filter(([other]) => other === name).length === 1)) {
    const values = used(name.slice(name.indexOf('/') + 1));
    expect(`${name}: greatest and last use`, [peak, last], [Math.max(...values), values.at(-1)]);
  }
  const ranks = await page.locator('table#ranking tbody tr').evaluateAll((all) => all.map((row) => row.cells[1].textContent));
  expect('order of eviction', ranks, json.ranking.map((pod) => `${pod.namespace}/${pod.pod}`));
  expect('events', await page.locator('table#events tbody tr').count(), json.events.length);
  expect('decisions', await page.locator('details pre').allTextContents(), json.decisions.map((it) => it.explanation));
  expect('charts', await page.locator('.uplot canvas').count(), json.signals.length + 1);
  if (!json.decisions.length || !pods.some(([name]) => name.includes('<script>'))) faults.push('nothing was decided, or no name is hostile');
  await page.screenshot({ path: `${folder}/report-${scheme}.png` });
  await page.evaluate(() => document.querySelectorAll('details').forEach((it) => { it.open = true; }));
  // The page's own policy forbids to add a script element; this is run by the debugger.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run());
  violations.forEach((it) => faults.push(`${scheme}: ${it.id}: ${it.nodes.map((node) => `${node.target} ${node.failureSummary}`).slice(0, 3).join('; ')}`));
  await context.close();
}
const size = statSync(file).size;
if (size > 300 * 1024) faults.push(`the page has ${size} bytes`);

// The same page, served.
const ui = spawn(agent, ['ui', recording, '--listen-address', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'inherit'] });
const url = await new Promise((found) => ui.stdout.once('data', (line) => found(String(line).trim())));
const { page, context } = await open(url, 'light', url);
expect('events of ui', await page.locator('table#events tbody tr').count(), json.events.length);
await context.close();
const status = (path, host) => new Promise((found) => {
  const { port } = new URL(url);
  request({ host: '127.0.0.1', port, path, headers: { host } }, (answer) => { answer.resume(); found(answer.statusCode); }).end();
});
const { pathname, host } = new URL(url);
expect('status by host and path', [await status(pathname, host), await status(pathname, 'evil.example'), await status('/', host)], [200, 403, 404]);
ui.kill();
await browser.close();
faults.forEach((fault) => console.error(fault));
console.log(`${size} bytes; opened in ${times.map((ms) => ms.toFixed(0)).join(' and ')} ms (light, dark); ${faults.length} faults`);
process.exit(faults.length ? 1 : 0);
