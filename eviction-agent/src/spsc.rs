//! A bounded channel from one thread to another on which the sender never waits.
//!
//! No lock and no allocation: the thread that holds a lock may get no CPU. The sender writes to an eventfd, and the
//! receiver sleeps on that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

/// The end of the thread that must not wait.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    // Dropped before the last notification.
    ring: Option<Producer<T>>,
    eventfd: Arc<OwnedFd>,
}

/// The end of the thread that may sleep.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    ring: Consumer<T>,
    eventfd: Arc<OwnedFd>,
}

/// What the receiver finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    Value(T),
    /// Nothing at present.
    Empty,
    /// Nothing any more.
    Ended,
}

/// A channel with room for `capacity` values.
///
/// # Errors
/// If no eventfd can be made.
pub(crate) fn channel<T>(capacity: usize) -> io::Result<(Sender<T>, Receiver<T>)> {
    let eventfd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (producer, consumer) = RingBuffer::new(capacity);
    let sender = Sender { ring: Some(producer), eventfd: Arc::clone(&eventfd) };
    Ok((sender, Receiver { ring: consumer, eventfd }))
}

impl<T> Sender<T> {
    /// Hands a value over; gives it back if there is no room.
    pub(crate) fn send(&mut self, value: T) -> Result<(), T> {
        let Some(ring) = &mut self.ring else { return Err(value) };
        ring.push(value).map_err(|rtrb::PushError::Full(value)| value)?;
        self.notify();
        Ok(())
    }

    /// Touches the memory of the whole channel, so that no page of it is missing when it matters.
    /// Only before anything was sent.
    pub(crate) fn touch(&mut self, receiver: &mut Receiver<T>, value: impl Fn() -> T) {
        let Some(ring) = &mut self.ring else { return };
        while ring.push(value()).is_ok() {}
        while receiver.ring.pop().is_ok() {}
    }

    fn notify(&self) {
        // It can only fail because the counter is full, and then the receiver is notified already.
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.ring = None;
        self.notify();
    }
}

impl<T> Receiver<T> {
    /// Takes what is there without waiting.
    pub(crate) fn next(&mut self) -> Next<T> {
        // Read in this order: what was sent before the end is not lost.
        let ended = self.ring.is_abandoned();
        match self.ring.pop() {
            Ok(value) => Next::Value(value),
            Err(_) if ended => Next::Ended,
            Err(_) => Next::Empty,
        }
    }

    /// Sleeps until there is something; `None` when the sender is gone.
    pub(crate) fn wait(&mut self) -> Option<T> {
        loop {
            match self.next() {
                Next::Value(value) => return Some(value),
                Next::Ended => return None,
                Next::Empty => {}
            }
            // Interrupted or not: the channel is read again.
            let _ = poll(&mut [PollFd::new(&self.eventfd, PollFlags::IN)], None);
            self.clear();
        }
    }

    /// Clears the notifications so far. Read the channel after it.
    pub(crate) fn clear(&self) {
        while let Err(Errno::INTR) = rustix::io::read(&self.eventfd, &mut [0; 8]) {}
    }

    /// A copy of the eventfd, readable when something was sent.
    pub(crate) fn eventfd(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.eventfd, 0)?)
    }
}

impl<T> AsFd for Receiver<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::tests::allocations::counted;

    #[test]
    fn what_does_not_fit_comes_back() {
        let (mut sender, mut receiver) = channel(2).unwrap();
        sender.touch(&mut receiver, || 0);
        assert_eq!((sender.send(1), sender.send(2), sender.send(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((receiver.next(), receiver.next()), (Next::Value(1), Next::Value(2)));
        assert_eq!(receiver.next(), Next::Empty);
        assert_eq!(sender.send(4), Ok(()));
        drop(sender);
        assert_eq!((receiver.next(), receiver.next()), (Next::Value(4), Next::Ended));
    }

    #[test]
    fn sending_allocates_nothing() {
        let (mut sender, _receiver) = channel(64).unwrap();
        let (sent, allocations) = counted(|| (0..100).filter(|value| sender.send(*value).is_ok()).count());
        assert_eq!((sent, allocations), (64, 0));
    }

    #[test]
    fn a_sleeper_is_woken_by_each_value_and_by_the_end() {
        let (mut sender, mut receiver) = channel(4).unwrap();
        let sleeper = std::thread::spawn(move || std::iter::from_fn(|| receiver.wait()).collect::<Vec<_>>());
        for value in 0..1000 {
            let mut value = value;
            while let Err(back) = sender.send(value) {
                value = back;
                std::thread::yield_now();
            }
        }
        drop(sender);
        assert_eq!(sleeper.join().unwrap(), (0..1000).collect::<Vec<_>>());
    }
}
