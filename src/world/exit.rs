//! A program that exits in the middle of a job, with any code, while no launcher of ours watches: the job is told to end.
//! Process managers take an exit with 0 for a good end, or sometimes do.

#![expect(unsafe_code, reason = "an exit handler that sees the exit code")]

use super::bootstrap::manager::Manager;
use super::control::abort;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The manager of this process's job, for the end of which this module and the world compete.
static WATCHED: OnceLock<Watched> = OnceLock::new();
/// Whether this rank's end has been told, one way or the other.
static TOLD: AtomicBool = AtomicBool::new(false);

struct Watched {
    manager: Arc<Mutex<Box<dyn Manager>>>,
    /// A forked child's exit is not the rank's.
    process: u32,
}

/// From now on, an exit before [`told`] ends the job.
pub(super) fn watch(manager: Arc<Mutex<Box<dyn Manager>>>) {
    let watched = Watched {
        manager,
        process: std::process::id(),
    };
    if WATCHED.set(watched).is_err() {
        return; // A process joins once.
    }
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void)
            -> c_int;
        }
        // SAFETY: the handler has this type, and uses no argument. If it cannot be registered,
        // the manager's own rules hold.
        unsafe { on_exit(at_exit, std::ptr::null_mut()) };
    }
}

/// This rank has ended well, or its failure has been told.
pub(super) fn told() {
    TOLD.store(true, Ordering::Release);
}

#[cfg_attr(not(target_env = "gnu"), expect(dead_code, reason = "glibc's on_exit"))]
extern "C" fn at_exit(code: c_int, _: *mut c_void) {
    let Some(watched) = WATCHED.get() else { return };
    if watched.process != std::process::id() || TOLD.swap(true, Ordering::AcqRel) {
        return;
    }
    // Held by a thread that waits for the manager: then its own rules hold.
    let Ok(mut manager) = watched.manager.try_lock() else {
        return;
    };
    let message = format!("exited with code {code} in the middle of the job");
    let code = match code {
        0 => ucxrun::wire::exit::BROKEN,
        code => code,
    };
    abort(&mut **manager, code, &message);
}
