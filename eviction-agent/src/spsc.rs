//! A bounded channel between two threads. The sender never waits.
//!
//! The channel takes no lock, because the thread that holds a lock may get no CPU, and it does not allocate. The
//! sender writes to an eventfd, on which the receiver sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;

use eviction_node::notify::{register, take_count};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// The sending end, for the thread that must not wait.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    // This end of the ring is dropped before the last notification.
    ring: Option<Producer<T>>,
    eventfd: Arc<OwnedFd>,
}

/// The receiving end, for the thread that may sleep.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    ring: Consumer<T>,
    eventfd: Arc<OwnedFd>,
}

/// Returns a channel with room for `capacity` values.
///
/// # Errors
/// If the eventfd cannot be created.
pub(crate) fn channel<T>(capacity: usize) -> io::Result<(Sender<T>, Receiver<T>)> {
    let eventfd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (producer, consumer) = RingBuffer::new(capacity);
    let sender = Sender { ring: Some(producer), eventfd: Arc::clone(&eventfd) };
    Ok((sender, Receiver { ring: consumer, eventfd }))
}

impl<T> Sender<T> {
    /// Sends a value, or returns it if the channel is full.
    pub(crate) fn send(&mut self, value: T) -> Result<(), T> {
        let Some(ring) = &mut self.ring else { return Err(value) };
        ring.push(value).map_err(|rtrb::PushError::Full(value)| value)?;
        self.notify();
        Ok(())
    }

    /// Returns whether the channel is full. If it is not, the next value fits.
    pub(crate) fn is_full(&self) -> bool {
        self.ring.as_ref().is_none_or(Producer::is_full)
    }

    /// Touches the memory of the whole channel, so that later use causes no page faults. Call it only before the
    /// first value is sent.
    pub(crate) fn touch(&mut self, receiver: &mut Receiver<T>, value: impl Fn() -> T) {
        let Some(ring) = &mut self.ring else { return };
        while ring.push(value()).is_ok() {}
        while receiver.ring.pop().is_ok() {}
    }

    fn notify(&self) {
        // The write can only fail because the counter is full, and then the receiver is notified already.
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
    /// Takes the next value without waiting.
    ///
    /// # Errors
    /// `Empty` if there is no value now, `Disconnected` if the sender was dropped as well.
    pub(crate) fn try_recv(&mut self) -> Result<T, TryRecvError> {
        // In this order, because values sent before the end must not be lost.
        let is_abandoned = self.ring.is_abandoned();
        let empty = if is_abandoned { TryRecvError::Disconnected } else { TryRecvError::Empty };
        self.ring.pop().map_err(|_| empty)
    }

    /// Waits for the next value. Returns `None` when the channel is empty and the sender was dropped.
    pub(crate) fn wait(&mut self) -> Option<T> {
        loop {
            match self.try_recv() {
                Ok(value) => return Some(value),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            // The result of `poll` does not matter: the loop reads the channel again.
            let _ = poll(&mut [PollFd::new(&self.eventfd, PollFlags::IN)], None);
            self.clear();
        }
    }

    /// Clears the pending notifications. Read the channel afterwards.
    pub(crate) fn clear(&self) {
        while let Err(Errno::INTR) = rustix::io::read(&self.eventfd, &mut [0; 8]) {}
    }

    /// Registers the notifications with the tokio runtime, for [`recv`](Self::recv).
    ///
    /// # Errors
    /// If the eventfd cannot be copied or registered.
    pub(crate) fn wakeups(&self) -> io::Result<AsyncFd<OwnedFd>> {
        register(rustix::io::fcntl_dupfd_cloexec(&self.eventfd, 0)?)
    }

    /// Waits for the next value in a task, as [`wait`](Self::wait) does in a thread. May be cancelled.
    ///
    /// # Errors
    /// If the notifications cannot be read.
    pub(crate) async fn recv(&mut self, wakeups: &AsyncFd<OwnedFd>) -> io::Result<Option<T>> {
        loop {
            match self.try_recv() {
                Ok(value) => return Ok(Some(value)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => drop(take_count(wakeups).await?),
            }
        }
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
    use ::tests::allocations::count_allocations;

    #[test]
    fn send_returns_the_value_if_the_channel_is_full() {
        let (mut sender, mut receiver) = channel(2).unwrap();
        sender.touch(&mut receiver, || 0);
        assert_eq!((sender.send(1), sender.send(2), sender.send(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(1), Ok(2)));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(sender.send(4), Ok(()));
        drop(sender);
        assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(4), Err(TryRecvError::Disconnected)));
    }

    #[test]
    fn sending_allocates_nothing() {
        let (mut sender, _receiver) = channel(64).unwrap();
        let (sent, allocations) =
            count_allocations(|| (0..100).filter(|value| sender.send(*value).is_ok()).count());
        assert_eq!((sent, allocations), (64, 0));
    }

    #[test]
    fn receiver_wakes_for_each_value_and_when_the_sender_is_dropped() {
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
