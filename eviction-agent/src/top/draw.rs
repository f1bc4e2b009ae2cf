//! Draws the screen.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::text::{bytes, pad, plain, seconds, shorten, width, wrap};
use super::{Prompt, Screen, View, pods};
use crate::telemetry::live::state::{ContainerState, SignalState, ThresholdState};

/// The minimum size of the terminal. A smaller one shows only a message.
const MIN_SIZE: (u16, u16) = (60, 12);

const HELP: [&str; 17] = [
    "q Ctrl-C    quit",
    "1 Esc       pods, events and the explanation of the selected pod",
    "2 e         events",
    "3 Enter     the explanation: why the pod has its rank, and what would change it",
    "4 c         containers of each pod",
    "5 d         file systems, and what pods use of them",
    "Tab         the next of these",
    "j k g G     down, up, first, last; also arrows, PgUp, PgDn, Home, End",
    "/ n N       find a pod by a part of its name, the next one, the one before",
    "f           show pods with these words: part of the name, QoS class, >request",
    "o r         sort by the next column, in reverse",
    "space       pause and go on",
    "            In a recording:",
    "t T  [ ]    next and previous sample; previous and next event",
    "← →  : F    one second, with Shift one minute; to 22:10:29 or by -5m; to the end",
    "",
    "RANK is the order of eviction for memory.available. No key acts on a pod.",
];

type Text = Vec<Line<'static>>;

impl Screen {
    /// Draws the whole screen.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
            let text =
                format!("top needs {}x{}, this is {}x{}", MIN_SIZE.0, MIN_SIZE.1, area.width, area.height);
            frame.render_widget(Paragraph::new(text), area);
            return;
        }
        let (columns, mut left) = (usize::from(area.width), usize::from(area.height));
        let mut text = vec![self.title(columns)];
        if let Some(timeline) = &self.timeline {
            text.push(Line::from(timeline.slider(self.state.at, columns, self.is_ascii)));
        }
        if self.view != View::Help {
            text.extend(self.signals(columns).into_iter().take(left / 4));
            text.push(self.pressure());
        }
        left -= text.len() + 1;
        text.extend(match self.view {
            View::Overview => self.overview(columns, left),
            View::Events => self.framed("events", self.last_events(left - 1), columns, left),
            View::Explain => self.framed("explain", self.explanation(columns), columns, left),
            View::Containers => self.framed("containers", self.containers(left - 1), columns, left),
            View::Disks => self.framed("disk usage of pods", self.disks(left - 1), columns, left),
            View::Help => {
                let lines = HELP.map(|line| Line::from(self.plain(line)));
                self.framed("help", lines.to_vec(), columns, left)
            }
        });
        text.resize(usize::from(area.height) - 1, Line::default());
        text.push(self.footer());
        for (line, y) in text.iter().zip(area.top()..area.bottom()) {
            // Each line is drawn separately, so that long lines are cut off.
            frame.render_widget(Paragraph::new(line.clone()), Rect { y, height: 1, ..area });
        }
    }

    /// Returns a text that begins with a time without the date, if that is the current date.
    fn clock<'a>(&self, text: &'a str) -> &'a str {
        let today = self.state.at.to_string();
        let date = today.split_inclusive('T').next().unwrap_or_default();
        text.strip_prefix(date).unwrap_or(text)
    }

    fn plain(&self, text: &str) -> String {
        plain(text, self.is_ascii)
    }

    fn title(&self, columns: usize) -> Line<'static> {
        let state = &self.state;
        let name = self.timeline.as_ref().map(|it| &*it.name).or(state.node.as_deref());
        let name =
            name.map_or_else(String::new, |name| format!(" - {}", shorten(name, columns / 4, self.is_ascii)));
        let (mode, at) = match (self.is_paused, &self.timeline) {
            (true, None) => ("paused", format!("{:.0}", state.at)),
            (false, None) => ("live", format!("{:.0}", state.at)),
            (true, Some(_)) => ("paused", format!("{:.3}", state.at)),
            (false, Some(_)) => ("playing", format!("{:.3}", state.at)),
        };
        let left = self.plain(&format!("eviction-agent top{name}, {}, {mode}", self.clock(&at)));
        let dry = if matches!(&*state.dry_run, "" | "none") {
            String::new()
        } else {
            format!(", dry run {}", state.dry_run)
        };
        let action =
            if state.action.is_empty() { String::new() } else { format!(", action {}", state.action) };
        let right = self.plain(&format!("{} rules{action}{dry}", state.profile));
        let gap = columns.saturating_sub(width(&left) + width(&right)).max(1);
        let style = Style::new().add_modifier(Modifier::BOLD);
        Line::from(Span::styled(format!("{left}{}{right}", " ".repeat(gap)), style))
    }

    /// Returns the lines of all known signals.
    fn signals(&self, columns: usize) -> Text {
        self.state.signals.iter().flat_map(|signal| self.signal(signal, columns)).collect()
    }

    /// Returns one line for a signal, or two if the thresholds do not fit into the first.
    fn signal(&self, signal: &SignalState, columns: usize) -> Text {
        let is_bytes = signal.signal.ends_with(".available") && signal.signal != "pid.available";
        let amount = |number: i64| if is_bytes { bytes(number) } else { number.to_string() };
        let name = signal.signal.replace(".available", "").replace(".inodesFree", " inodes");
        let (available, capacity) = (signal.available, signal.capacity);
        let known = available.map_or_else(|| "unknown".to_owned(), amount);
        let whole = capacity.map_or_else(String::new, |capacity| format!(" of {}", amount(capacity)));
        let used = available.zip(capacity).filter(|(_, capacity)| *capacity > 0);
        let used = used.map(|(available, capacity)| 1.0 - available as f64 / capacity as f64);
        let percent = used.map_or_else(|| "   -".to_owned(), |used| format!("{:3.0}%", 100.0 * used));
        let begin = format!("{} {percent} used, {known}{whole} free", pad(&name, 18, false));
        let mut spans: Vec<Span<'static>> = Vec::new();
        let of_agent = || signal.thresholds.iter().filter(|threshold| threshold.source == "agent");
        for threshold in of_agent() {
            let style = match (threshold.met, threshold.eta_seconds) {
                (true, _) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
                (false, Some(eta)) if eta < 300.0 => Style::new().fg(Color::Yellow),
                (false, _) => Style::new(),
            };
            spans.push(Span::styled(format!("  {}", threshold_text(threshold, &amount)), style));
        }
        let text: usize = spans.iter().map(Span::width).sum();
        let free = columns.saturating_sub(width(&begin) + 3);
        // A shorter bar is not useful.
        let is_one_line = free >= text + 8;
        let room = if is_one_line { free - text } else { free };
        let mut line = vec![Span::raw(begin)];
        if let (Some(used), Some(capacity)) = (used, capacity) {
            line.push(Span::raw(format!(" [{}]", self.bar(used, capacity, of_agent(), room.min(40)))));
        }
        if is_one_line {
            line.extend(spans);
            return vec![Line::from(line)];
        }
        spans.insert(0, Span::raw(" ".repeat(17)));
        vec![Line::from(line), Line::from(spans)]
    }

    /// Returns a bar of the used share, with the thresholds as `S` and `H`.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place on the screen"
    )]
    fn bar<'a>(
        &self,
        used: f64,
        capacity: i64,
        thresholds: impl Iterator<Item = &'a ThresholdState>,
        columns: usize,
    ) -> String {
        let place = |part: f64| ((part.clamp(0.0, 1.0) * columns as f64) as usize).min(columns);
        let full = place(used);
        let (block, free) = if self.is_ascii { ('#', '.') } else { ('█', '░') };
        let mut bar: Vec<char> = (0..columns).map(|at| if at < full { block } else { free }).collect();
        for threshold in thresholds {
            let part = 1.0 - threshold.value as f64 / capacity.max(1) as f64;
            let letter = if threshold.threshold == "hard" { 'H' } else { 'S' };
            if let Some(at) = bar.get_mut(place(part).min(columns.saturating_sub(1))) {
                *at = letter;
            }
        }
        bar.into_iter().collect()
    }

    fn pressure(&self) -> Line<'static> {
        let psi = self.state.memory_pressure.map_or_else(
            || "PSI memory unknown".to_owned(),
            |psi| format!("PSI memory some {:.1}% full {:.1}%", psi.some_avg10, psi.full_avg10),
        );
        let conditions = match &*self.state.conditions {
            [] => "no pressure condition".to_owned(),
            some => some.join(" "),
        };
        let age = self.state.pods_at.map(|at| self.state.at.duration_since(at).as_secs_f64());
        let age = age
            .map_or_else(|| "no sample of pods yet".to_owned(), |age| format!("pods {} old", seconds(age)));
        Line::from(self.plain(&format!("{psi}   {conditions}   {age}")))
    }

    fn overview(&self, columns: usize, lines: usize) -> Text {
        let explanation = self.explanation(columns);
        let below_events = (explanation.len() + 1).min(2 * lines / 5);
        let events = (lines / 4).max(2);
        let table = lines - events - below_events;
        let mut text = self.table(columns, table);
        text.extend(self.framed("events", self.last_events(events - 1), columns, events));
        let name = self.selected().map_or_else(String::new, |pod| format!(" {}/{}", pod.namespace, pod.pod));
        text.extend(self.framed(&format!("explain{name}"), explanation, columns, below_events));
        text
    }

    fn table(&self, columns: usize, lines: usize) -> Text {
        let pods = self.visible_pods();
        let selected = self.selected_index(&pods);
        let mut text = pods::table(&pods, selected, columns, lines - 1, self.is_ascii);
        text.resize(lines - 1, Line::default());
        let shown = lines.saturating_sub(2).min(pods.len());
        let reverse = if self.is_reversed { ", reverse" } else { "" };
        let filter = if self.filter.is_empty() { String::new() } else { format!(", with {}", self.filter) };
        let all = self.state.pods.len() + self.state.pods_omitted;
        let more = self.plain(&format!("{shown} of {all} pods, by {}{reverse}{filter}", self.sort.name()));
        text.push(Line::from(Span::styled(more, Style::new().add_modifier(Modifier::DIM))));
        text
    }

    /// Returns a heading and the text, exactly `lines` lines.
    fn framed(&self, title: &str, text: Text, columns: usize, lines: usize) -> Text {
        let rule = if self.is_ascii { "-" } else { "─" };
        let title = shorten(&self.plain(title), columns.saturating_sub(4), self.is_ascii);
        let rest = columns.saturating_sub(width(&title) + 3);
        let mut framed = vec![Line::from(format!("{rule} {title} {}", rule.repeat(rest)))];
        framed.extend(text);
        framed.resize(lines, Line::default());
        framed
    }

    /// Returns the last events, or those at the scroll position.
    fn last_events(&self, lines: usize) -> Text {
        let newest = self.events.len().saturating_sub(lines);
        let scrolled = if self.view == View::Events { self.scroll } else { 0 };
        self.scroll_end.set(newest);
        let first = newest.saturating_sub(scrolled);
        let shown = self.events.iter().skip(first).take(lines);
        shown.map(|line| Line::from(self.plain(self.clock(line)))).collect()
    }

    fn explanation(&self, columns: usize) -> Text {
        let of_nothing = [if self.selected().is_none() { "no pod" } else { "" }.to_owned()];
        let lines = if self.explanation.is_empty() { &of_nothing[..] } else { &self.explanation };
        lines.iter().flat_map(|line| wrap(&self.plain(line), columns)).map(Line::from).collect()
    }

    fn containers(&self, lines: usize) -> Text {
        let mut text = Vec::new();
        let row = |name: &str, usage: Option<i128>, disk: Option<u64>| {
            let usage = usage.map_or_else(|| "?".to_owned(), bytes);
            let disk = disk.map_or_else(|| "?".to_owned(), bytes);
            let name = pad(&shorten(&self.plain(name), 44, self.is_ascii), 44, false);
            Line::from(format!("{name} {} {}", pad(&usage, 8, true), pad(&disk, 8, true)))
        };
        text.push(Line::from(format!("{:44} {:>8} {:>8}", "POD / CONTAINER", "MEMORY", "DISK")));
        let branch = if self.is_ascii { "`-" } else { "└ " };
        for pod in self.visible_pods() {
            let name = format!("{}/{}", pod.namespace, pod.pod);
            text.push(row(&name, pod.usage.map(i128::from), pod.disk_usage));
            for ContainerState { container, usage, disk_usage } in &pod.containers {
                text.push(row(&format!("  {branch} {container}"), usage.map(i128::from), *disk_usage));
            }
        }
        self.scroll_end.set(text.len().saturating_sub(lines));
        text.split_off(self.scroll.min(self.scroll_end.get()))
    }

    /// Returns the pods by disk usage, the largest first. Pods with unknown usage come last.
    fn disks(&self, lines: usize) -> Text {
        let mut pods = self.visible_pods();
        pods.sort_by_key(|pod| std::cmp::Reverse(pod.disk_usage));
        let row = |pod: &&crate::telemetry::live::state::PodState| {
            let used = pod.disk_usage.map_or_else(|| "not measured".to_owned(), bytes);
            let name = self.plain(&format!("{}/{}", pod.namespace, pod.pod));
            Line::from(format!("{} {used:>12}", pad(&shorten(&name, 44, self.is_ascii), 44, false)))
        };
        self.scroll_end.set(pods.len().saturating_sub(lines));
        pods.iter().skip(self.scroll.min(self.scroll_end.get())).take(lines).map(row).collect()
    }

    fn footer(&self) -> Line<'static> {
        if let Some((prompt, text)) = &self.prompt {
            let begin = match prompt {
                Prompt::Find => "/",
                Prompt::Filter => "filter: ",
                Prompt::Jump => ":",
            };
            return Line::from(self.plain(&format!("{begin}{text}")));
        }
        match &self.error {
            Some(error) => Line::from(Span::styled(self.plain(error), Style::new().fg(Color::Red))),
            None if self.timeline.is_some() => Line::from(
                self.plain("q quit  ? help  t/T sample  [/] event  ←/→ 1s  : jump  space play  f filter"),
            ),
            None => {
                Line::from("q quit  ? help  j/k move  / find  f filter  o sort  Enter explain  space pause")
            }
        }
    }
}

/// Returns a threshold as text, such as `soft <1.2Gi MET 24s of 30s` or `hard <512Mi in 11s`.
fn threshold_text(threshold: &ThresholdState, amount: &impl Fn(i64) -> String) -> String {
    let ThresholdState { threshold, source: _, value, met, met_seconds, grace_seconds, eta_seconds } =
        threshold;
    let begin = format!("{threshold} <{}", amount(*value));
    match (met, met_seconds, grace_seconds, eta_seconds) {
        (true, Some(met), Some(grace), _) if *grace > 0.0 => {
            format!("{begin} MET {} of {}", seconds(*met), seconds(*grace))
        }
        (true, Some(met), ..) => format!("{begin} MET {}", seconds(*met)),
        (true, None, ..) => format!("{begin} MET"),
        (false, .., Some(eta)) => format!("{begin} in {}", seconds(*eta)),
        (false, .., None) => begin,
    }
}
