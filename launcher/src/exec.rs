//! What a new process does between fork and exec.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{
    Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit, setsid,
};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Beside this: the new process gets the signal mask of the thread that starts it.
#[derive(Clone, Default)]
pub(crate) struct BeforeExec {
    /// Killed when the thread that starts it ends.
    pub(crate) dies_with_us: bool,
    /// In a session of its own.
    pub(crate) session: bool,
    /// With these limits.
    pub(crate) limits: Vec<(Resource, Rlimit)>,
    /// On these processors.
    pub(crate) cpus: Option<CpuSet>,
}

/// Does `what` in the process that `command` starts.
#[expect(unsafe_code, reason = "runs code between fork and exec")]
pub(crate) fn before_exec(command: &mut Command, what: BeforeExec) {
    let us = getpid();
    let mask = signal_mask();
    let hook = move || {
        if what.session {
            setsid()?;
        }
        if what.dies_with_us {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // If we died before that call, nobody will send the signal.
            if getppid() != Some(us) {
                return Err(io::Error::from(rustix::io::Errno::SRCH));
            }
        }
        for &(resource, limit) in &what.limits {
            setrlimit(resource, limit)?;
        }
        if let Some(cpus) = &what.cpus {
            sched_setaffinity(None, cpus)?;
        }
        if let Some(mask) = &mask {
            // SAFETY: `mask` is a set that `signal_mask` got from the system; the old set is not asked for.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
        }
        Ok(())
    };
    // SAFETY: the hook only makes system calls that are allowed between fork and exec, and allocates and frees
    // nothing: it borrows what it uses, and all errors it returns are plain numbers.
    unsafe { command.pre_exec(hook) };
}

/// The signals that this thread blocks; the standard library would empty the set.
#[expect(unsafe_code, reason = "no safe call reads the signal mask")]
fn signal_mask() -> Option<libc::sigset_t> {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: a null set changes nothing, and `mask` has room for the present one.
    let error =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: the call has succeeded, so it has written the set.
    (error == 0).then(|| unsafe { mask.assume_init() })
}
