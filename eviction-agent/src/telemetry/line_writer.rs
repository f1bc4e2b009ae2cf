//! Writers of standard output and of the log. Each has a thread, because a slow reader may block it.
//!
//! The control loop logs like any other thread, but waits neither for the reader nor for another thread
//! that logs. A line that it cannot queue at once is dropped and counted, like every line that comes
//! while the queue is full and every line that cannot be written.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tracing_subscriber::fmt::MakeWriter;

use crate::spsc::{Receiver, Sender, channel};

/// The number of lines that can wait for the reader: with the events in the telemetry queue, enough for
/// some thousand kills.
const LINES: usize = 2048;

/// The size in bytes from which a batch is written.
const BATCH: usize = 16 << 10;

/// The time that the log waits for its reader at the end.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// The number of dropped log lines. A static, because the log starts before the metrics exist.
pub(crate) static LOG_DROPPED: LazyLock<Counter> = LazyLock::new(Counter::default);

thread_local! {
    static IS_NONBLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread never wait when it logs.
pub(crate) fn never_wait() {
    IS_NONBLOCKING.with(|nonblocking| nonblocking.set(true));
}

/// A thread that writes lines, and the queue in which it gets them from any thread. Clones share both.
#[derive(Clone, Debug)]
pub struct LineWriter {
    sender: Arc<Mutex<Sender<Box<[u8]>>>>,
    dropped: Counter,
    thread: Arc<JoinHandle<()>>,
}

impl LineWriter {
    /// Starts a thread with this name. It counts dropped lines in `dropped`.
    ///
    /// # Errors
    /// If the queue or the thread cannot be created.
    pub(crate) fn start(name: &str, out: impl Write + Send + 'static, dropped: Counter) -> io::Result<Self> {
        let (sender, receiver) = channel(LINES)?;
        let lost = dropped.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || write(out, receiver, &lost))?;
        Ok(Self { sender: Arc::new(Mutex::new(sender)), dropped, thread: Arc::new(thread) })
    }

    /// Starts the thread of the log.
    ///
    /// # Errors
    /// If the queue or the thread cannot be created.
    pub fn start_log() -> io::Result<Self> {
        Self::start("log", io::stderr(), LOG_DROPPED.clone())
    }

    /// Queues a line, or drops and counts it.
    pub(crate) fn print(&self, mut line: String) {
        line.push('\n');
        self.push(line.into_bytes().into());
    }

    /// Waits until all lines are written, however long the reader takes.
    pub(crate) fn finish(self) {
        self.wait_until(None);
    }

    /// Waits for a short time until all lines are written.
    pub fn finish_log(self) {
        self.wait_until(Some(Instant::now() + LOG_FLUSH_TIMEOUT));
    }

    fn wait_until(self, end: Option<Instant>) {
        // The log subscriber keeps its clone for ever, so an empty line marks the end.
        let mut is_sent = false;
        while !self.thread.is_finished() && end.is_none_or(|end| Instant::now() < end) {
            is_sent = is_sent || self.try_push(Box::default());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn push(&self, line: Box<[u8]>) {
        if !self.try_push(line) {
            self.dropped.inc();
        }
    }

    fn try_push(&self, line: Box<[u8]>) -> bool {
        match self.sender.try_lock() {
            Ok(mut sender) => sender.send(line).is_ok(),
            Err(TryLockError::WouldBlock) if IS_NONBLOCKING.with(Cell::get) => false,
            Err(_) => self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(line).is_ok(),
        }
    }
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

impl Write for &LineWriter {
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

/// Writes lines until it receives an empty one or the senders were dropped.
fn write(mut out: impl Write, mut lines: Receiver<Box<[u8]>>, dropped: &Counter) {
    let mut was_lost = false;
    let mut has_ended = false;
    while !has_ended {
        let (mut batch, mut count) = (Vec::new(), 0);
        let mut next = lines.wait();
        has_ended = next.is_none();
        while let Some(line) = next {
            has_ended = line.is_empty();
            if was_lost && batch.is_empty() && !has_ended {
                // The write that failed may have ended within a line, which must not spoil this one.
                batch.push(b'\n');
            }
            batch.extend_from_slice(&line);
            count += u64::from(!has_ended);
            let has_room = !has_ended && batch.len() < BATCH;
            next = if has_room { lines.try_recv().ok() } else { None };
        }
        let Err(error) = out.write_all(&batch).and_then(|()| out.flush()) else {
            was_lost = false;
            continue;
        };
        // The agent works without this output, but readers of the lines must see that some are missing.
        dropped.inc_by(count);
        if !std::mem::replace(&mut was_lost, true) {
            tracing::warn!(%error, "lines cannot be written: they are dropped, and counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

    impl SharedBuffer {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for SharedBuffer {
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
        let buffer = SharedBuffer::default();
        let (writer, dropped) = start(buffer.clone());
        let lines: Vec<String> = (0..1000).map(|number| format!("{number:0>40}")).collect();
        lines.iter().for_each(|line| writer.print(line.clone()));
        writer.finish();
        assert_eq!(buffer.text().lines().collect::<Vec<_>>(), lines);
        assert_eq!(dropped.get(), 0);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (writer, dropped) = start(full);
        (0..10).for_each(|number| writer.print(number.to_string()));
        writer.finish();
        assert_eq!(dropped.get(), 10);
    }

    /// Writes one byte, fails once, and then writes everything.
    struct FailsOnce(SharedBuffer, u32);

    impl Write for FailsOnce {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            match self.1 {
                1 => self.0.write(&bytes[..1]),
                2 => Err(io::ErrorKind::StorageFull.into()),
                _ => self.0.write(bytes),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_after_a_partly_written_one_is_whole() {
        let buffer = SharedBuffer::default();
        let (writer, dropped) = start(FailsOnce(buffer.clone(), 0));
        writer.print("one".to_owned());
        while dropped.get() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        writer.print("two".to_owned());
        writer.finish();
        assert_eq!((buffer.text().as_str(), dropped.get()), ("o\ntwo\n", 1));
    }

    #[test]
    fn lines_are_dropped_and_counted_while_the_reader_is_blocked() {
        let buffer = SharedBuffer::default();
        let stopped = buffer.0.lock().unwrap();
        let (writer, dropped) = start(buffer.clone());
        let many = 2 * LINES as u64 + 1000;
        (0..many).for_each(|number| writer.print(number.to_string()));
        let lost = dropped.get();
        assert!(lost > 0 && lost < many, "{lost} of {many}");
        drop(stopped);
        writer.finish();
        let written = buffer.text().lines().count() as u64;
        assert_eq!(written + lost, many, "each is written or counted");
    }

    #[test]
    fn nonblocking_thread_waits_for_neither_reader_nor_other_writers() {
        let buffer = SharedBuffer::default();
        let (writer, dropped) = start(buffer.clone());
        let log = |text: &'static str| {
            let writer = writer.clone();
            std::thread::spawn(move || {
                never_wait();
                writer.make_writer().write_all(text.as_bytes()).unwrap();
            })
        };
        let another = writer.sender.lock().unwrap();
        log("lost\n").join().unwrap();
        drop(another);
        let stopped = buffer.0.lock().unwrap();
        (0..2 * LINES).for_each(|_| writer.make_writer().write_all(b"some\n").unwrap());
        log("kept or lost\n").join().unwrap();
        drop(stopped);
        writer.finish();
        let text = buffer.text();
        let written = text.lines().filter(|line| *line == "some").count();
        assert!(!text.contains("lost\n") || text.contains("kept or lost\n"), "{text}");
        assert!(written >= LINES, "{written}");
        let kept = usize::from(text.contains("kept or lost\n"));
        assert_eq!(dropped.get(), (2 + 2 * LINES - written - kept) as u64);
    }
}
