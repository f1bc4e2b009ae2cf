// node draw.mjs FOLDER ANSWERS BOARD.json…: bundles render.tsx, draws each board in each story with Chromium, and
// leaves pictures in FOLDER. Fails if a panel with data draws nothing, on an error of the page, and on a request
// to any server.
import { build } from 'esbuild';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { chromium } from 'playwright-core';

const [folder, answersFile, ...boards] = process.argv.slice(2).map((path) => resolve(path));
mkdirSync(folder, { recursive: true });
await build({
  entryPoints: ['render.tsx'], bundle: true, minify: true, jsx: 'automatic', outfile: `${folder}/render.js`,
  define: { 'process.env.NODE_ENV': '"production"' }, loader: { '.svg': 'dataurl', '.ttf': 'empty' }, logLevel: 'error',
});
const kept = JSON.parse(readFileSync(answersFile));
const stories = [...new Set(kept.map((answer) => answer.story))];
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
const faults = [];
let drawn = 0;
for (const file of boards) {
  const board = JSON.parse(readFileSync(file));
  const name = board.uid.replace('eviction-agent-', '');
  for (const story of stories) {
    const answers = kept.filter((answer) => answer.board === name && answer.story === story);
    const times = answers.flatMap((answer) => answer.series.flatMap((series) => series.values.map(([time]) => time)));
    const input = { board, answers, from: Math.min(...times), to: Math.max(...times) };
    const html = `${folder}/${name}-${story}.html`;
    const data = JSON.stringify(input).replaceAll('<', '\\u003c');
    writeFileSync(html, `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="render.css"><style>* { box-sizing: border-box } body { margin: 0 } button { color: inherit; background: none; border: 0; font: inherit }</style><div id="board"></div><script>window.INPUT = ${data}</script><script src="render.js"></script>`);
    const page = await browser.newPage({ viewport: { width: 1440, height: 2400 } });
    page.on('pageerror', (error) => faults.push(`${name}, ${story}: ${error.message}`));
    page.on('request', (request) => request.url().startsWith('http') && faults.push(`${name}, ${story}: asks for ${request.url()}`));
    await page.goto(`file://${html}`);
    const isReady = () => document.querySelector('[data-panel]') && !document.querySelector('[data-panel]:not([data-frames])');
    await page.waitForFunction(isReady).catch((error) => faults.push(`${name}, ${story}: ${error.message}`));
    await page.waitForTimeout(1000); // canvases are drawn a frame later
    const panels = await page.$$eval('[data-panel]', (all) => all.map((it) => ({
      panel: it.dataset.panel, frames: Number(it.dataset.frames), height: it.offsetHeight,
      empty: it.querySelector('.empty') !== null, marks: it.querySelectorAll('canvas, [role=row], i, span').length, text: it.innerText,
    })));
    for (const { panel, frames, empty, marks, text } of panels) {
      const isDrawn = frames > 0 ? !empty && marks > 0 : empty;
      if (!isDrawn || /NaN|undefined|\[object/.test(text)) {
        faults.push(`${name}, ${story}, ${panel}: ${frames} frames, ${marks} marks: ${text}`);
      }
      drawn += frames > 0;
    }
    await page.locator('#board').screenshot({ path: `${folder}/${name}-${story}.png` });
    // What the docs show.
    await page.screenshot({ path: `${folder}/${name}-${story}-top.png`, clip: { x: 0, y: 0, width: 1440, height: 1110 } });
    await page.close();
  }
}
await browser.close();
faults.forEach((fault) => console.error(fault));
console.log(`${drawn} panels drawn in ${boards.length * stories.length} boards, ${faults.length} faults`);
process.exit(faults.length || !drawn ? 1 : 0);
