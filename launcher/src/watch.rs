//! What a process does, as the system sees it.

use std::fs;

use rustix::process::Pid;

use crate::proc::Stat;

/// Of the process's threads, one that runs counts: `running, 12.3 s of processor time`, `sleeping in futex_wait, …`.
pub(crate) fn doing(pid: Pid) -> String {
    let folder = format!("/proc/{}", pid.as_raw_nonzero());
    let Some(stat) = Stat::of(&folder) else {
        return "gone".to_owned();
    };
    let threads = fs::read_dir(folder.clone() + "/task").into_iter().flatten();
    let runs = |thread: fs::DirEntry| Stat::of(thread.path()).is_some_and(|stat| stat.state == "R");
    let running = threads.flatten().any(runs);
    let state = match stat.state.as_str() {
        "S" | "D" if running => "R",
        state => state,
    };
    let state = match state {
        "R" => "running",
        "S" => "sleeping",
        "D" => "waiting for the system",
        "T" | "t" => "stopped",
        "Z" | "X" => return "ended".to_owned(),
        _ => "in an unknown state",
    };
    let place = fs::read_to_string(folder + "/wchan").unwrap_or_default();
    let place = match place.trim() {
        "" | "0" => String::new(),
        _ if running => String::new(),
        place => format!(" in {place}"),
    };
    let per_second = rustix::param::clock_ticks_per_second();
    #[expect(clippy::cast_precision_loss, reason = "100 a second, as a rule")]
    let seconds = stat.ticks as f64 / per_second as f64;
    format!("{state}{place}, {seconds:.1} s of processor time")
}
