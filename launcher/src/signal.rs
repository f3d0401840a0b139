//! Signals of the launcher: a thread that hands them to the job.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::Signals;
use ucxrun::JobControl;

/// Hands the process's signals to `control` from now on. Those that the caller has set to be ignored (`nohup`) stay
/// so, for the ranks too.
pub(crate) fn handle(control: JobControl) -> io::Result<()> {
    let ignored = ignored();
    let wanted = [
        SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
    ];
    let wanted = wanted
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(wanted)?;
    // If it were ignored, the system would not keep the ranks' exit codes.
    signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)))?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGINT | SIGTERM | SIGHUP | SIGQUIT => control.interrupt(signal),
                    SIGTSTP => control.suspend(),
                    _ => control.forward(signal),
                }
            }
        })?;
    Ok(())
}

/// The signals that are ignored, one bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
