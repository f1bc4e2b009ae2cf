//! The log, behind a thread that may be held up by whoever reads standard error.
//!
//! The control loop logs like any other thread, but never waits for it: neither for the reader nor
//! for a thread that is just logging. What it cannot leave at once is lost and counted, as is
//! every line while the queue is full.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

use crate::spsc::{Receiver, Sender, channel};

/// Lines that wait for the reader.
const LINES: usize = 512;

static LOST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_HURRIED: Cell<bool> = const { Cell::new(false) };
}

/// Lines that were lost since the last question.
pub(crate) fn lost() -> u64 {
    LOST.swap(0, Ordering::Relaxed)
}

/// From now on the calling thread waits for nobody in order to log.
pub(crate) fn hurry() {
    IS_HURRIED.with(|hurried| hurried.set(true));
}

/// Where the log is written to.
#[derive(Clone, Debug)]
pub struct LogQueue(Arc<Mutex<Sender<Box<[u8]>>>>);

/// The thread that writes the log; dropped, it waits a little until all is written.
#[derive(Debug)]
pub struct LogWriter {
    queue: LogQueue,
    thread: Option<JoinHandle<()>>,
}

impl LogWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there can be none.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = channel(LINES)?;
        let thread =
            std::thread::Builder::new().name("log".to_owned()).spawn(move || write(out, receiver))?;
        Ok(Self { queue: LogQueue(Arc::new(Mutex::new(sender))), thread: Some(thread) })
    }

    /// For the subscriber.
    pub fn queue(&self) -> LogQueue {
        self.queue.clone()
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_millis(200);
        // The subscriber keeps its end for ever: an empty line is the last.
        let end = Instant::now() + PATIENCE;
        let Some(thread) = self.thread.take() else { return };
        let mut sent = false;
        while !thread.is_finished() && Instant::now() < end {
            sent = sent || self.queue.offer(Box::default());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl LogQueue {
    fn push(&self, line: Box<[u8]>) {
        if !self.offer(line) {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn offer(&self, line: Box<[u8]>) -> bool {
        match self.0.try_lock() {
            Ok(mut sender) => sender.send(line).is_ok(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().send(line).is_ok(),
            Err(TryLockError::WouldBlock) if IS_HURRIED.with(Cell::get) => false,
            Err(TryLockError::WouldBlock) => {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).send(line).is_ok()
            }
        }
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine(self)
    }
}

/// Takes one line.
#[derive(Debug)]
pub struct LogLine<'a>(&'a LogQueue);

impl Write for LogLine<'_> {
    /// The subscriber writes a whole line at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !line.is_empty() {
            self.0.push(line.into());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(mut out: impl Write, mut lines: Receiver<Box<[u8]>>) {
    while let Some(line) = lines.wait().filter(|line| !line.is_empty()) {
        // There is nowhere left to complain.
        let _ = out.write_all(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_hurried_thread_waits_neither_for_the_reader_nor_for_another_writer() {
        let page = Page::default();
        let writer = LogWriter::start(page.clone()).unwrap();
        let log = |text: &'static str| {
            let queue = writer.queue();
            std::thread::spawn(move || {
                hurry();
                queue.make_writer().write_all(text.as_bytes()).unwrap();
            })
        };
        let another = writer.queue.0.lock().unwrap();
        log("lost\n").join().unwrap();
        drop(another);
        let stopped = page.0.lock().unwrap();
        (0..2 * LINES).for_each(|_| writer.queue().make_writer().write_all(b"some\n").unwrap());
        log("kept or lost\n").join().unwrap();
        drop(stopped);
        drop(writer);
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        let written = text.lines().filter(|line| *line == "some").count();
        assert!(!text.contains("lost\n") || text.contains("kept or lost\n"), "{text}");
        assert!(written >= LINES, "{written}");
        // Other tests lose nothing: they write to no queue.
        let kept = usize::from(text.contains("kept or lost\n"));
        assert_eq!(lost(), (2 + 2 * LINES - written - kept) as u64);
    }
}
