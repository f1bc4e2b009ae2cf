//! Kernel notifications of memory growth that need no BPF, and the timer that covers what they miss. The functions
//! of this module itself wait for any descriptor without blocking the thread.

pub mod memcg_v1;
pub mod memory_events;
pub mod psi;
pub mod sample_interval;
pub mod timer;

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the tokio runtime, which must have IO enabled.
pub fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` refers to the same open descriptor as long as it exists. It moves into the
    // `AsyncFd`, which does not let it be closed or replaced.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

/// Registers a descriptor whose readiness is not about data to read.
pub(crate) fn register_for(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: as in [`register`].
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}

/// Waits until the counter of an eventfd or timerfd is not zero, and takes it.
pub async fn take_count(counter: &AsyncFd<OwnedFd>) -> io::Result<u64> {
    loop {
        let mut ready = counter.readable().await?;
        let read = ready.try_io(|counter| {
            let mut count = [0; 8];
            match rustix::io::read(counter, &mut count) {
                Ok(_) => Ok(u64::from_ne_bytes(count)),
                Err(Errno::INTR) => Ok(0),
                Err(errno) => Err(errno.into()),
            }
        });
        match read {
            Ok(Ok(0)) | Err(_) => {}
            Ok(result) => return result,
        }
    }
}
