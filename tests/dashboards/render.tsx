// Draws a dashboard with Grafana's own components, from answers of Prometheus that the tests have kept.
// State timelines and heat maps are no part of @grafana/ui: of those the cells are drawn here.
// `require`: their ES modules take the default exports of CommonJS ones as node does, which is not what they mean.
import data = require('@grafana/data');
import ui = require('@grafana/ui');
import React = require('react');
import { createRoot } from 'react-dom/client';

type DataFrame = data.DataFrame;
type Field = data.Field;
const { createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayName, reduceField, standardTransformers, standardTransformersRegistry, ThemeContext, toDataFrame, transformDataFrame } = data;
const { BigValue, PanelChrome, Table, TimeSeries } = ui;

const theme = createTheme({ colors: { mode: 'dark' } });
const wanted = ['joinByFieldTransformer', 'organizeFieldsTransformer', 'sortByTransformer'];
standardTransformersRegistry.setInit(() =>
  wanted.map((name) => (standardTransformers as any)[name]).map((it) => ({ id: it.id, name: it.name, editor: () => null, transformation: async () => it }) as any)
);

const { board, answers, from, to } = (window as any).INPUT;
const timeRange: any = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: dateTime(from * 1000), to: dateTime(to * 1000) } };

const number = (text: string) => (text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));
const legend = (format: string | undefined, labels: any) =>
  (format ?? '').replace(/\{\{(\w+)\}\}/g, (_, label) => labels[label] ?? '') || JSON.stringify(labels);

// The settings of a field: the defaults of the panel, then what fits of its overrides.
function configure(panel: any, frame: DataFrame, frames: DataFrame[]) {
  frame.fields.forEach((field) => {
    if (field.type === FieldType.time) return;
    const { defaults, overrides } = panel.fieldConfig;
    const config: any = structuredClone({ color: { mode: 'palette-classic' }, ...defaults, ...field.config });
    const name = getFieldDisplayName(field, frame, frames);
    for (const { matcher, properties } of overrides) {
      if (matcher.options !== (matcher.id === 'byFrameRefID' ? frame.refId : name)) continue;
      for (const { id, value } of properties) {
        const path = id.split('.');
        const last = path.pop();
        path.reduce((at: any, key: string) => (at[key] ??= {}), config)[last] = value;
      }
    }
    field.config = config;
    const { min, max } = reduceField({ field, reducers: ['min', 'max'] });
    field.state = { ...field.state, seriesIndex: frames.indexOf(frame), range: { min, max, delta: max - min } };
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
  });
  return frame;
}

function framesOf(panel: any): DataFrame[] {
  return panel.targets.flatMap((target: any) => {
    const answer = answers.find((it: any) => it.panel === panel.title && it.refId === target.refId);
    const last = (it: any) => it.values[it.values.length - 1];
    // An instant query is one for the end.
    const series: any[] = (answer?.series ?? []).filter((it: any) => !target.instant || last(it)[0] === to);
    if (target.format === 'table') {
      // The last sample of each series, one row each.
      const labels = [...new Set(series.flatMap((it) => Object.keys(it.metric)))];
      const name = panel.targets.length > 1 ? `Value #${target.refId}` : 'Value';
      const fields = [
        { name: 'Time', type: FieldType.time, values: series.map((it) => last(it)[0] * 1000) },
        ...labels.map((label) => ({ name: label, type: FieldType.string, values: series.map((it) => it.metric[label]) })),
        { name, type: FieldType.number, values: series.map((it) => number(last(it)[1])) },
      ];
      return series.length ? [toDataFrame({ refId: target.refId, fields })] : [];
    }
    return series.map((it) =>
      toDataFrame({
        refId: target.refId,
        fields: [
          { name: 'Time', type: FieldType.time, values: it.values.map((sample: any) => sample[0] * 1000) },
          { name: 'Value', type: FieldType.number, labels: it.metric, config: { displayName: legend(target.legendFormat, it.metric) }, values: it.values.map((sample: any) => number(sample[1])) },
        ],
      })
    );
  });
}

const valueOf = (frame: DataFrame) => frame.fields.find((field) => field.type === FieldType.number)!;
const lastOf = (field: Field) => reduceField({ field, reducers: ['lastNotNull'] }).lastNotNull;

function Stat({ panel, frames, width, height }: any) {
  const { textMode, colorMode, graphMode } = panel.options;
  const each = width / frames.length;
  return (
    <div style={{ display: 'flex' }}>
      {frames.map((frame: DataFrame, index: number) => {
        const field = valueOf(frame);
        const value = { ...field.display!(lastOf(field)), title: field.config.displayName };
        const sparkline: any = graphMode === 'area' && field.values.length > 1 ? { y: field, x: frame.fields[0], timeRange } : undefined;
        return <BigValue key={index} value={value} width={each} height={height} theme={theme} textMode={textMode} colorMode={colorMode} graphMode={graphMode} sparkline={sparkline} />;
      })}
    </div>
  );
}

// Rows of cells, one cell a sample.
function Cells({ panel, frames, width, height }: any) {
  const isHeat = panel.type === 'heatmap';
  const sorted = isHeat ? [...frames].sort((a, b) => number(valueOf(b).labels!.le) - number(valueOf(a).labels!.le)) : frames;
  // A bucket counts those below it as well.
  const below = (index: number, at: number) => (isHeat && sorted[index + 1] ? valueOf(sorted[index + 1]).values[at] : 0);
  const cells = sorted.map((frame: DataFrame, index: number) => valueOf(frame).values.map((value: number, at: number) => value - below(index, at)));
  const most = Math.max(...cells.flat().filter(Number.isFinite), 1);
  return (
    <div style={{ height, width, display: 'flex', flexDirection: 'column', fontSize: 10 }}>
      {sorted.map((frame: DataFrame, index: number) => {
        const field = valueOf(frame);
        const color = (value: number) => (isHeat ? `rgba(255, 140, 0, ${value / most})` : field.display!(value).color);
        return (
          <div key={index} style={{ flex: 1, display: 'flex', marginBottom: 1, minHeight: 0 }}>
            <span style={{ width: 150, overflow: 'hidden' }}>{getFieldDisplayName(field, frame)}</span>
            {/* A sample is a second; a series may begin late. */}
            <i style={{ flex: frame.fields[0].values[0] / 1000 - from }} />
            {cells[index].map((value: number, at: number) => <i key={at} style={{ flex: 1, background: color(value) }} />)}
          </div>
        );
      })}
    </div>
  );
}

function Body({ panel, frames, width, height }: any) {
  if (!frames.length) return <div className="empty">{panel.fieldConfig.defaults.noValue}</div>;
  switch (panel.type) {
    case 'stat':
      return <Stat {...{ panel, frames, width, height }} />;
    case 'table':
      return <Table data={frames[0]} width={width} height={height} />;
    case 'timeseries':
      return <TimeSeries frames={frames} timeRange={timeRange} timeZone="utc" structureRev={1} width={width} height={height} legend={panel.options.legend} options={panel.options} />;
    default:
      return <Cells {...{ panel, frames, width, height }} />;
  }
}

function Panel({ panel }: any) {
  const [frames, setFrames] = React.useState<DataFrame[]>();
  React.useEffect(() => {
    const raw = framesOf(panel);
    const subscription = transformDataFrame(panel.transformations ?? [], raw).subscribe((all) => setFrames(all.map((frame) => configure(panel, frame, all))));
    return () => subscription.unsubscribe();
  }, []);
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * 60 - 8, h * 30 - 8];
  return (
    <div data-panel={panel.title} data-frames={frames?.length} style={{ position: 'absolute', left: x * 60, top: y * 30, width, height }}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
        {(innerWidth: number, innerHeight: number) => (frames ? <Body panel={panel} frames={frames} width={innerWidth} height={innerHeight} /> : null)}
      </PanelChrome>
    </div>
  );
}

const all = board.panels.flatMap((panel: any) => [panel, ...(panel.panels ?? [])]);
const bottom = Math.max(...all.map((panel: any) => panel.gridPos.y + panel.gridPos.h));
createRoot(document.getElementById('board')!).render(
  <ThemeContext.Provider value={theme}>
    <div style={{ position: 'relative', width: 24 * 60, height: bottom * 30, background: theme.colors.background.canvas, color: theme.colors.text.primary, fontFamily: theme.typography.fontFamily, fontSize: 14 }}>
      {all.map((panel: any) =>
        panel.type === 'row' ? (
          <b key={panel.id} style={{ position: 'absolute', top: panel.gridPos.y * 30 + 4, left: 8 }}>{panel.title}</b>
        ) : (
          <Panel key={panel.id} panel={panel} />
        )
      )}
    </div>
  </ThemeContext.Provider>
);
