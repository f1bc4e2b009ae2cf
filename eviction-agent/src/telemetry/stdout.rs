//! Standard output, behind a thread that may be held up by whoever reads it.
//!
//! A reader that stops, a pipe that is full: only this thread waits. When its queue is full, lines
//! are lost and counted.

use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::telemetry::metrics::Metrics;

use crate::error::Failure;

/// Lines that wait for the reader: with the notes before them, a storm of some thousand kills.
/// That channel takes memory as it fills.
const LINES: usize = 2048;

/// Takes lines for standard output.
#[derive(Debug)]
pub(crate) struct Printer {
    lines: Sender<String>,
    thread: JoinHandle<()>,
    metrics: Arc<Metrics>,
}

impl Printer {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// If there can be none.
    pub(crate) fn start(out: impl Write + Send + 'static, metrics: Arc<Metrics>) -> Result<Self, Failure> {
        let (lines, mut receiver) = channel(LINES);
        let counted = Arc::clone(&metrics);
        let thread = std::thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || print(out, &mut receiver, &counted))
            .map_err(|error| Failure::because("start the thread that prints", &error))?;
        Ok(Self { lines, thread, metrics })
    }

    /// Has a line written, or loses it.
    pub(crate) fn print(&self, line: String) {
        if self.lines.try_send(line).is_err() {
            self.metrics.telemetry_dropped.with(["output"]).inc();
        }
    }

    /// Waits until all is written. Blocks as long as the reader does.
    pub(crate) fn finish(self) {
        let Self { lines, thread, metrics: _ } = self;
        drop(lines);
        drop(thread.join());
    }
}

fn print(mut out: impl Write, lines: &mut Receiver<String>, metrics: &Metrics) {
    let mut was_lost = false;
    let mut write = |lines: &str| {
        // The agent's work does not depend on it; who counts on the lines has to know.
        let Err(error) = out.write_all(lines.as_bytes()).and_then(|()| out.flush()) else {
            was_lost = false;
            return;
        };
        metrics.telemetry_dropped.with(["output"]).inc_by(lines.lines().count() as u64);
        if !std::mem::replace(&mut was_lost, true) {
            tracing::warn!(%error, "lines cannot be written: they are lost, and counted");
        }
    };
    let mut batch = String::new();
    while let Some(first) = lines.blocking_recv() {
        batch.push_str(&first);
        batch.push('\n');
        loop {
            match lines.try_recv() {
                Ok(line) if batch.len() < 16 << 10 => {
                    batch.push_str(&line);
                    batch.push('\n');
                }
                Ok(line) => {
                    write(&batch);
                    batch.clear();
                    batch.push_str(&line);
                    batch.push('\n');
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        write(&batch);
        batch.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order() {
        let page = Page::default();
        let metrics = Arc::new(Metrics::new("0", "0"));
        let printer = Printer::start(page.clone(), Arc::clone(&metrics)).unwrap();
        let lines: Vec<String> = (0..1000).map(|number| format!("{number:0>40}")).collect();
        lines.iter().for_each(|line| printer.print(line.clone()));
        printer.finish();
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        assert_eq!(metrics.telemetry_dropped.with(["output"]).get(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let metrics = Arc::new(Metrics::new("0", "0"));
        let printer = Printer::start(full, Arc::clone(&metrics)).unwrap();
        (0..10).for_each(|number| printer.print(number.to_string()));
        printer.finish();
        assert_eq!(metrics.telemetry_dropped.with(["output"]).get(), 10);
    }

    #[test]
    fn a_reader_that_stopped_costs_lines_and_nothing_else() {
        let page = Page::default();
        let metrics = Arc::new(Metrics::new("0", "0"));
        let stopped = page.0.lock().unwrap();
        let printer = Printer::start(page.clone(), Arc::clone(&metrics)).unwrap();
        let many = 2 * LINES as u64 + 1000;
        (0..many).for_each(|number| printer.print(number.to_string()));
        let dropped = metrics.telemetry_dropped.with(["output"]).get();
        assert!(dropped > 0 && dropped < many, "{dropped} of {many}");
        drop(stopped);
        printer.finish();
        let written = page.0.lock().unwrap().iter().filter(|byte| **byte == b'\n').count() as u64;
        assert_eq!(written + dropped, many, "each is written or counted");
    }
}
