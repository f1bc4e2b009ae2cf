//! The screen of `top`: the state of an agent or a recording, and the keys. Keys change only the screen.

mod draw;
mod pods;
#[cfg(test)]
mod tests;
pub(crate) mod text;
pub(crate) mod timeline;

use std::cell::Cell;
use std::collections::VecDeque;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use eviction_core::time::Timestamp;

use crate::telemetry::live::state::{NodeState, PodState};
use timeline::Timeline;

/// The maximum number of event lines to scroll through.
const EVENTS: usize = 1000;

/// The view that fills the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum View {
    /// Pods, events and the explanation.
    #[default]
    Overview,
    /// The event lines.
    Events,
    /// The explanation of the selected pod.
    Explain,
    /// The containers of each pod.
    Containers,
    /// The file systems, and their usage by pods.
    Disks,
    /// The keys.
    Help,
}

/// The sort key of the pods, each with the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// The eviction order.
    #[default]
    Rank,
    /// Memory in use.
    Usage,
    /// Usage above the request.
    Over,
    /// Growth.
    Rate,
    /// Time until the pod's limit is reached, the shortest first.
    LimitIn,
    /// The name.
    Name,
}

impl Sort {
    /// All sort keys, in the order of the key `o`.
    pub(crate) const ALL: [(Self, &str); 6] = [
        (Self::Rank, "rank"),
        (Self::Usage, "usage"),
        (Self::Over, "over"),
        (Self::Rate, "rate"),
        (Self::LimitIn, "limit-in"),
        (Self::Name, "name"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(sort, _)| *sort == self).map_or("", |(_, name)| name)
    }
}

/// The meaning of the text that is typed on the last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prompt {
    /// A part of the name of a pod to select.
    Find,
    /// The filter of the shown pods.
    Filter,
    /// A time of the recording.
    Jump,
}

/// The screen.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    /// The state.
    pub(crate) state: NodeState,
    filter: String,
    /// The times of the shown recording.
    timeline: Option<Timeline>,
    /// The time of the recording to show next.
    pub(crate) target: Option<Timestamp>,
    events: VecDeque<String>,
    /// The explanation of the selected pod's rank.
    pub(crate) explanation: Vec<String>,
    /// The error of the last request to the agent.
    pub(crate) error: Option<String>,
    view: View,
    sort: Sort,
    is_reversed: bool,
    /// Whether updates are paused.
    pub(crate) is_paused: bool,
    /// The UID of the selected pod, if one was selected.
    selected: Option<String>,
    /// The first line shown of containers or disks, or the number of events after the last one shown.
    scroll: usize,
    /// The greatest value of `scroll` with which the drawn view is full.
    scroll_end: Cell<usize>,
    /// The text to find in pod names.
    find: String,
    /// The prompt and the text that is being typed.
    prompt: Option<(Prompt, String)>,
    /// Whether a key has ended the program.
    pub(crate) is_ended: bool,
    /// Whether the terminal shows only ASCII.
    is_ascii: bool,
}

impl Screen {
    /// Returns an empty screen.
    pub(crate) fn new(sort: Sort, is_ascii: bool) -> Self {
        Self { sort, is_ascii, ..Self::default() }
    }

    /// Shows a recording, which is paused at first.
    pub(crate) fn of_recording(self, timeline: Timeline) -> Self {
        Self { timeline: Some(timeline), is_paused: true, ..self }
    }

    /// Shows a new state.
    pub(crate) fn update(&mut self, state: NodeState) {
        self.error = None;
        self.state = state;
        if let Some(timeline) = &self.timeline {
            let until = timeline.events.partition_point(|(at, _)| *at <= self.state.at);
            let lines = timeline.events[until.saturating_sub(EVENTS)..until].iter();
            self.events = lines.map(|(_, line)| line.clone()).collect();
        }
    }

    /// Adds an event line.
    pub(crate) fn event(&mut self, line: String) {
        self.events.push_back(line);
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Returns the selected pod, whose explanation is shown.
    pub(crate) fn selected(&self) -> Option<&PodState> {
        let pods = self.visible_pods();
        pods.get(self.selected_index(&pods)).copied()
    }

    /// Advances a recording that is not paused. At the end, the recording is paused.
    pub(crate) fn play(&mut self, by: jiff::SignedDuration) {
        let Some(timeline) = self.timeline.as_ref().filter(|_| !self.is_paused) else { return };
        let to = timeline.later(self.state.at, by);
        self.is_paused = to == timeline.ends().1;
        self.target = Some(to);
    }

    /// Returns the pods that have each word of the filter in their name or as their QoS class, in order. `>request`
    /// selects usage above the request.
    fn visible_pods(&self) -> Vec<&PodState> {
        let fits = |pod: &&PodState| {
            self.filter.split_whitespace().all(|word| match word {
                ">request" => pod.over_request.is_some_and(|over| over > 0),
                word => has_name(pod, word) || pod.qos.eq_ignore_ascii_case(word),
            })
        };
        let mut pods: Vec<_> = self.state.pods.iter().filter(fits).collect();
        let descending = |a: Option<f64>, b: Option<f64>| {
            b.unwrap_or(f64::NEG_INFINITY).total_cmp(&a.unwrap_or(f64::NEG_INFINITY))
        };
        match self.sort {
            // Pods that are not evicted come last, in the order of the agent's response.
            Sort::Rank => pods.sort_by_key(|pod| pod.rank.unwrap_or(usize::MAX)),
            Sort::Usage => pods.sort_by_key(|pod| std::cmp::Reverse(pod.usage)),
            Sort::Over => pods.sort_by_key(|pod| std::cmp::Reverse(pod.over_request)),
            Sort::Rate => pods.sort_by(|a, b| descending(a.usage_per_second, b.usage_per_second)),
            Sort::LimitIn => pods.sort_by(|a, b| {
                let left = |pod: &PodState| pod.limit_eta_seconds.map(|seconds| -seconds);
                descending(left(a), left(b))
            }),
            Sort::Name => pods.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod))),
        }
        if self.is_reversed {
            pods.reverse();
        }
        pods
    }

    /// Returns the index of the selected pod among these, or 0 if it is not one of them.
    fn selected_index(&self, pods: &[&PodState]) -> usize {
        let selected = self.selected.as_deref();
        pods.iter().position(|pod| Some(&*pod.pod_uid) == selected).unwrap_or(0)
    }

    /// Moves the selection, or scrolls a view that has no selection.
    fn move_or_scroll(&mut self, down: bool, by: usize) {
        let moved = |from: usize| if down { from.saturating_add(by) } else { from.saturating_sub(by) };
        match self.view {
            View::Overview | View::Explain => {
                let pods = self.visible_pods();
                let index = moved(self.selected_index(&pods)).min(pods.len().saturating_sub(1));
                self.selected = pods.get(index).map(|pod| pod.pod_uid.clone());
            }
            View::Containers | View::Disks | View::Help => {
                self.scroll = moved(self.scroll.min(self.scroll_end.get()));
            }
            // The newest events are the last lines.
            View::Events => {
                let end = self.scroll_end.get();
                self.scroll = end.saturating_sub(moved(end.saturating_sub(self.scroll)));
            }
        }
    }

    /// Selects the next pod whose name contains the searched text.
    fn find_next(&mut self, backwards: bool) {
        let pods = self.visible_pods();
        let (count, from) = (pods.len(), self.selected_index(&pods));
        let next = |step: usize| pods[(from + if backwards { count - step } else { step }) % count];
        let fits = |pod: &&PodState| !self.find.is_empty() && has_name(pod, &self.find);
        if let Some(pod) = (1..=count).map(next).find(fits) {
            self.selected = Some(pod.pod_uid.clone());
        }
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            self.is_ended = true;
        } else if let Some((prompt, text)) = self.prompt.take() {
            self.type_key(prompt, text, key.code);
        } else if let Some(target) = self.timeline.as_ref().and_then(|it| it.target(self.state.at, key)) {
            self.target = Some(target);
        } else {
            self.command(key.code);
        }
    }

    fn type_key(&mut self, prompt: Prompt, mut text: String, code: KeyCode) {
        match code {
            KeyCode::Enter => return self.submit_prompt(prompt, text),
            KeyCode::Esc => return,
            KeyCode::Backspace => drop(text.pop()),
            // No pod name is longer.
            KeyCode::Char(letter) if text.len() < 512 => text.push(letter),
            _ => {}
        }
        self.prompt = Some((prompt, text));
    }

    fn submit_prompt(&mut self, prompt: Prompt, text: String) {
        match prompt {
            Prompt::Find => {
                self.find = text;
                self.find_next(false);
            }
            Prompt::Filter => self.filter = text,
            Prompt::Jump => {
                self.target = self.timeline.as_ref().and_then(|it| it.parse(self.state.at, text.trim()));
                if self.target.is_none() {
                    self.error = Some(format!("no time: {text} (22:10:29, -5m, 2026-01-05T22:10:29Z)"));
                }
            }
        }
    }

    fn command(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('q') => self.is_ended = true,
            KeyCode::Char('?' | 'h') => self.show(View::Help),
            KeyCode::Char('1') | KeyCode::Esc => self.show(View::Overview),
            KeyCode::Char('2' | 'e') => self.show(View::Events),
            KeyCode::Char('3') | KeyCode::Enter => self.show(View::Explain),
            KeyCode::Char('4' | 'c') => self.show(View::Containers),
            KeyCode::Char('5' | 'd') => self.show(View::Disks),
            KeyCode::Tab => self.show(match self.view {
                View::Overview => View::Events,
                View::Events => View::Explain,
                View::Explain => View::Containers,
                View::Containers => View::Disks,
                View::Disks | View::Help => View::Overview,
            }),
            KeyCode::Char('j') | KeyCode::Down => self.move_or_scroll(true, 1),
            KeyCode::Char('k') | KeyCode::Up => self.move_or_scroll(false, 1),
            KeyCode::PageDown => self.move_or_scroll(true, 10),
            KeyCode::PageUp => self.move_or_scroll(false, 10),
            KeyCode::Char('g') | KeyCode::Home => self.move_or_scroll(false, usize::MAX),
            KeyCode::Char('G') | KeyCode::End => self.move_or_scroll(true, usize::MAX),
            KeyCode::Char('/') => self.prompt = Some((Prompt::Find, String::new())),
            KeyCode::Char('f') => self.prompt = Some((Prompt::Filter, self.filter.clone())),
            KeyCode::Char(':') if self.timeline.is_some() => {
                self.prompt = Some((Prompt::Jump, String::new()));
            }
            KeyCode::Char('n') => self.find_next(false),
            KeyCode::Char('N') => self.find_next(true),
            KeyCode::Char('o') | KeyCode::F(6) => {
                let index = Sort::ALL.iter().position(|(sort, _)| *sort == self.sort).unwrap_or(0);
                self.sort = Sort::ALL[(index + 1) % Sort::ALL.len()].0;
            }
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.scroll = 0;
    }
}

/// Returns whether the name of a pod contains this text.
fn has_name(pod: &PodState, text: &str) -> bool {
    format!("{}/{}", pod.namespace, pod.pod).contains(text)
}
