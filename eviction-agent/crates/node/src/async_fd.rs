//! Waiting for a descriptor without blocking the thread.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes a descriptor known to the tokio runtime, which must have IO enabled.
pub fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same open descriptor for as long as it lives, and it
    // moves into the `AsyncFd`, which gives nobody leave to close or replace it.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

/// The same for what is told otherwise than by something to read.
pub(crate) fn register_for(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: as above.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}

/// Waits until the counter behind an eventfd or timerfd is not zero, and takes it.
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
