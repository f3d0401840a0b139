//! What a process does, as the system sees it.

use std::fs;

use rustix::process::Pid;

/// Of the process's threads, one that runs counts: `running, 12.3 s of processor time`, `sleeping in futex_wait, …`.
pub(crate) fn doing(pid: Pid) -> String {
    let folder = format!("/proc/{}", pid.as_raw_nonzero());
    let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).unwrap_or_default();
    let stat = read("stat");
    // `pid (name) state …`; time in user and system mode are fields 14 and 15.
    let fields: Vec<&str> = match stat.rsplit_once(") ") {
        Some((_, rest)) => rest.split_whitespace().collect(),
        None => return "gone".to_owned(),
    };
    let threads = fs::read_dir(folder.clone() + "/task").into_iter().flatten();
    let runs = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('R'))
    };
    let running = threads.flatten().any(runs);
    let state = match fields.first().copied().unwrap_or_default() {
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
    let place = read("wchan");
    let place = match place.trim() {
        "" | "0" => String::new(),
        _ if running => String::new(),
        place => format!(" in {place}"),
    };
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let ticks = ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0);
    let per_second = rustix::param::clock_ticks_per_second();
    #[expect(clippy::cast_precision_loss, reason = "100, as a rule")]
    let seconds = ticks / per_second as f64;
    format!("{state}{place}, {seconds:.1} s of processor time")
}
