//! Standard output and the log, each written by a thread that a slow reader may block.
//!
//! The control loop logs like any other thread, but never waits for it: neither for the reader nor for a
//! thread that is just logging. What it cannot leave at once is lost and counted, as is every line while
//! the queue is full and what cannot be written.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tracing_subscriber::fmt::MakeWriter;

use crate::spsc::{Next, Receiver, Sender, channel};

/// Lines that wait for the reader: with the events before them, a storm of some thousand kills.
const LINES: usize = 2048;

/// Bytes that are written at once.
const BATCH: usize = 16 << 10;

/// How long the log waits for its reader in the end.
const PATIENCE: Duration = Duration::from_millis(200);

/// Lines of the log that were lost. The log starts before there are metrics.
pub(crate) static LOG_DROPPED: LazyLock<Counter> = LazyLock::new(Counter::default);

thread_local! {
    static IS_HURRIED: Cell<bool> = const { Cell::new(false) };
}

/// From now on the calling thread never waits in order to log.
pub(crate) fn hurry() {
    IS_HURRIED.with(|hurried| hurried.set(true));
}

/// Takes lines from any thread.
#[derive(Clone, Debug)]
pub struct LineQueue {
    sender: Arc<Mutex<Sender<Box<[u8]>>>>,
    dropped: Counter,
}

/// The thread that writes lines.
#[derive(Debug)]
pub struct LineWriter {
    queue: LineQueue,
    thread: JoinHandle<()>,
}

impl LineWriter {
    /// Starts a thread of that name, which counts what is lost.
    ///
    /// # Errors
    /// If there can be none.
    pub(crate) fn start(name: &str, out: impl Write + Send + 'static, dropped: Counter) -> io::Result<Self> {
        let (sender, receiver) = channel(LINES)?;
        let lost = dropped.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || write(out, receiver, &lost))?;
        Ok(Self { queue: LineQueue { sender: Arc::new(Mutex::new(sender)), dropped }, thread })
    }

    /// Starts the thread of the log.
    ///
    /// # Errors
    /// If there can be none.
    pub fn start_log() -> io::Result<Self> {
        Self::start("log", io::stderr(), LOG_DROPPED.clone())
    }

    /// For the subscriber.
    pub fn queue(&self) -> LineQueue {
        self.queue.clone()
    }

    /// Has a line written, or loses it.
    pub(crate) fn print(&self, mut line: String) {
        line.push('\n');
        self.queue.push(line.into_bytes().into());
    }

    /// Waits until all lines are written, as long as the reader takes.
    pub(crate) fn finish(self) {
        self.wait_until(None);
    }

    /// Waits a little until all lines are written.
    pub fn finish_log(self) {
        self.wait_until(Some(Instant::now() + PATIENCE));
    }

    fn wait_until(self, end: Option<Instant>) {
        // The subscriber keeps its end for ever: an empty line is the last.
        let mut is_sent = false;
        while !self.thread.is_finished() && end.is_none_or(|end| Instant::now() < end) {
            is_sent = is_sent || self.queue.offer(Box::default());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl LineQueue {
    fn push(&self, line: Box<[u8]>) {
        if !self.offer(line) {
            self.dropped.inc();
        }
    }

    fn offer(&self, line: Box<[u8]>) -> bool {
        match self.sender.try_lock() {
            Ok(mut sender) => sender.send(line).is_ok(),
            Err(TryLockError::WouldBlock) if IS_HURRIED.with(Cell::get) => false,
            Err(_) => self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(line).is_ok(),
        }
    }
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

impl Write for &LineQueue {
    /// The subscriber writes a whole line at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !line.is_empty() {
            self.push(line.into());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes lines until an empty one comes, or none can come.
fn write(mut out: impl Write, mut lines: Receiver<Box<[u8]>>, dropped: &Counter) {
    let mut was_lost = false;
    let mut has_ended = false;
    while !has_ended {
        let (mut batch, mut count) = (Vec::new(), 0);
        let mut next = lines.wait();
        has_ended = next.is_none();
        while let Some(line) = next {
            has_ended = line.is_empty();
            batch.extend_from_slice(&line);
            count += u64::from(!has_ended);
            let has_room = !has_ended && batch.len() < BATCH;
            next = if has_room && let Next::Value(line) = lines.next() { Some(line) } else { None };
        }
        let Err(error) = out.write_all(&batch).and_then(|()| out.flush()) else {
            was_lost = false;
            continue;
        };
        // The agent's work does not depend on it; who counts on the lines has to know.
        dropped.inc_by(count);
        if !std::mem::replace(&mut was_lost, true) {
            tracing::warn!(%error, "lines cannot be written: they are lost, and counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Page {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start(out: impl Write + Send + 'static) -> (LineWriter, Counter) {
        let dropped = Counter::default();
        (LineWriter::start("test", out, dropped.clone()).unwrap(), dropped)
    }

    #[test]
    fn lines_are_written_in_order() {
        let page = Page::default();
        let (writer, dropped) = start(page.clone());
        let lines: Vec<String> = (0..1000).map(|number| format!("{number:0>40}")).collect();
        lines.iter().for_each(|line| writer.print(line.clone()));
        writer.finish();
        assert_eq!(page.text().lines().collect::<Vec<_>>(), lines);
        assert_eq!(dropped.get(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (writer, dropped) = start(full);
        (0..10).for_each(|number| writer.print(number.to_string()));
        writer.finish();
        assert_eq!(dropped.get(), 10);
    }

    #[test]
    fn a_reader_that_stopped_costs_lines_and_nothing_else() {
        let page = Page::default();
        let stopped = page.0.lock().unwrap();
        let (writer, dropped) = start(page.clone());
        let many = 2 * LINES as u64 + 1000;
        (0..many).for_each(|number| writer.print(number.to_string()));
        let lost = dropped.get();
        assert!(lost > 0 && lost < many, "{lost} of {many}");
        drop(stopped);
        writer.finish();
        let written = page.text().lines().count() as u64;
        assert_eq!(written + lost, many, "each is written or counted");
    }

    #[test]
    fn a_hurried_thread_waits_neither_for_the_reader_nor_for_another_writer() {
        let page = Page::default();
        let (writer, dropped) = start(page.clone());
        let log = |text: &'static str| {
            let queue = writer.queue();
            std::thread::spawn(move || {
                hurry();
                queue.make_writer().write_all(text.as_bytes()).unwrap();
            })
        };
        let another = writer.queue.sender.lock().unwrap();
        log("lost\n").join().unwrap();
        drop(another);
        let stopped = page.0.lock().unwrap();
        (0..2 * LINES).for_each(|_| writer.queue().make_writer().write_all(b"some\n").unwrap());
        log("kept or lost\n").join().unwrap();
        drop(stopped);
        writer.finish();
        let text = page.text();
        let written = text.lines().filter(|line| *line == "some").count();
        assert!(!text.contains("lost\n") || text.contains("kept or lost\n"), "{text}");
        assert!(written >= LINES, "{written}");
        let kept = usize::from(text.contains("kept or lost\n"));
        assert_eq!(dropped.get(), (2 + 2 * LINES - written - kept) as u64);
    }
}
