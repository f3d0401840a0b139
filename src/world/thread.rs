//! Threads of the library's own, and how a process ends that has nobody left to tell.

#![expect(unsafe_code, reason = "signal masks and _exit")]

use crate::error::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that handles no signals: they are the program's, and arrive in its threads.
pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first set is filled, the second is written. A new thread inherits the mask.
    let masked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let thread = Builder::new().name(name.into()).spawn(body);
    if masked == 0 {
        // SAFETY: `before` was written by the successful call above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    thread.map_err(|error| Error::new(ErrorKind::Bootstrap, format!("starting a thread: {error}")))
}

/// Ends this process at once, without its exit handlers: other threads may be anywhere.
pub(super) fn die(code: i32, why: &str) -> ! {
    use std::io::Write as _;
    // There may be no standard error left.
    let _ = std::io::stderr().write_all(format!("pgas: {why}\n").as_bytes());
    // SAFETY: always allowed.
    unsafe { libc::_exit(code) }
}
