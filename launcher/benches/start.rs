//! What starting a job costs, beside a shell that starts as many processes and beside MPICH's launcher if it is
//! installed, as ratios to the shell. `cargo bench -p ucxrun`.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ucxrun::Control;

const REPEATS: usize = 31;

fn main() {
    if std::env::var_os(ucxrun::wire::env::RANK).is_some() {
        rank();
        return;
    }
    let me = std::env::current_exe().expect("own path");
    let me = me.to_str().expect("own path");
    let ucxrun = env!("CARGO_BIN_EXE_ucxrun");
    println!("{:>6} {:<44} {:>10} {:>7}", "ranks", "", "median", "ratio");
    for ranks in ["1", "4", "16", "64"] {
        let shell = "for i in $(seq $0); do \"$@\" & done; wait";
        let run = [
            (
                "sh: true & wait",
                vec!["sh", "-c", shell, ranks, "/bin/true"],
            ),
            ("ucxrun true", vec![ucxrun, "-n", ranks, "/bin/true"]),
            (
                "mpiexec.hydra true",
                vec!["mpiexec.hydra", "-n", ranks, "/bin/true"],
            ),
            (
                "ucxrun, exit at once",
                vec![ucxrun, "-n", ranks, me, "nothing"],
            ),
            (
                "ucxrun, join, gather 300 bytes twice, leave",
                vec![ucxrun, "-n", ranks, me, "join"],
            ),
        ];
        let times = medians(&run.each_ref().map(|(_, command)| command.as_slice()));
        for ((name, _), time) in run.iter().zip(&times) {
            let Some(time) = time else { continue };
            let ratio = times[0].map_or(f64::NAN, |base| time.as_secs_f64() / base.as_secs_f64());
            let millis = time.as_secs_f64() * 1e3;
            println!("{ranks:>6} {name:<44} {millis:>7.1} ms {ratio:>7.2}");
        }
    }
}

fn rank() {
    if std::env::args().nth(1).as_deref() != Some("join") {
        return;
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut control = Control::from_env().expect("join").expect("a job");
    for _ in 0..2 {
        control.gather(&[1; 300], deadline).expect("gather");
    }
    control.leave(deadline).expect("leave");
}

/// Of each command's times, in turns, so that all see the same noise.
fn medians(commands: &[&[&str]]) -> Vec<Option<Duration>> {
    let mut times = vec![Vec::new(); commands.len()];
    for _ in 0..REPEATS {
        for (command, times) in commands.iter().zip(&mut times) {
            let start = Instant::now();
            let run = Command::new(command[0])
                .args(&command[1..])
                .stdout(Stdio::null())
                .status();
            // Missing rivals are left out.
            if run.is_ok_and(|status| status.success()) {
                times.push(start.elapsed());
            }
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times.get(times.len() / 2).copied()
    };
    times.iter_mut().map(median).collect()
}
