//! A process that outlives us if we are killed, only to end what the ranks have started.
//!
//! A rank dies with the process that started it. A program that a rank has started does not: nobody tells it. So a
//! keeper, in a session of its own where nobody's Ctrl-C or hang-up finds it, holds a pipe from us. If the pipe ends
//! without a word, it kills what is left of the job: processes of our session that are in a rank's process group, or
//! have the job's identity in their environment. Other sessions (`setsid`) are left alone.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead, PipeWriter, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Result};
use crate::exec::{BeforeExec, before_exec};
use crate::proc::Stat;
use crate::segments;
use crate::wire::env;

/// The one argument that makes the `ucxrun` binary a keeper.
pub const KEEPER: &str = "--internal-keeper";
/// How long a keeper looks for processes that have not ended.
const SWEEP: Duration = Duration::from_secs(3);
const DISMISSED: &str = "dismissed";

/// Our end. Dropping it dismisses the keeper; only if we are killed does it see the pipe's end without a word.
pub(crate) struct Keeper {
    pipe: PipeWriter,
    child: Child,
}

impl Keeper {
    /// Starts `program`, which must be `ucxrun`, as keeper of this job.
    pub(crate) fn start(program: &Path, job: &str) -> Result<Self> {
        let failed = |e: io::Error| Error::io(format_args!("keeper {}", program.display()), &e);
        let (reader, mut pipe) = io::pipe().map_err(failed)?;
        let mut command = Command::new(program);
        command.arg(KEEPER).current_dir("/").stdin(reader);
        // It holds nothing of ours, neither output nor variables that would make it part of the job.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.env_clear();
        let session = BeforeExec {
            session: true,
            ..Default::default()
        };
        before_exec(&mut command, session);
        let child = command.spawn().map_err(failed)?;
        let ours = Stat::of_us().ok_or_else(|| failed(io::Error::other("/proc cannot be read")))?;
        writeln!(pipe, "{} {job}", ours.session).map_err(failed)?;
        Ok(Self { pipe, child })
    }

    /// Tells of a rank's process group.
    pub(crate) fn watch(&mut self, group: Pid) {
        // If somebody has killed the keeper, the job goes on without.
        let _ = writeln!(self.pipe, "{}", group.as_raw_nonzero());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = writeln!(self.pipe, "{DISMISSED}");
        // It ends at once. If it is stopped, the system will see to it when we end.
        let until = Instant::now() + Duration::from_millis(500);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// What a keeper does, until its pipe ends. Returns the exit code.
#[must_use]
pub fn keep() -> i32 {
    let mut lines = io::stdin().lock().lines();
    let Some(Ok(first)) = lines.next() else {
        return 1;
    };
    let Some((session, job)) = first.split_once(' ') else {
        return 1;
    };
    let Ok(session) = session.parse() else {
        return 1;
    };
    let mut groups = HashSet::new();
    for line in lines {
        match line {
            Ok(line) if line == DISMISSED => return 0,
            Ok(line) => groups.extend(line.parse::<i32>()),
            Err(_) => break,
        }
    }
    sweep(session, job, &groups);
    0
}

/// Kills what is left of a job in a session, until two looks find nothing; then removes what the killed had no time to.
pub(crate) fn sweep(session: i32, job: &str, groups: &HashSet<i32>) {
    let until = Instant::now() + SWEEP;
    let mark = format!("{}={job}", env::JOB);
    let mut ended: HashSet<i32> = groups.clone();
    let mut clean = 0;
    while clean < 2 && Instant::now() < until {
        let left = of_the_job(session, &mark, groups);
        clean = if left.is_empty() { clean + 1 } else { 0 };
        for pid in left {
            // It may have ended by now.
            let _ = kill_process(pid, Signal::KILL);
            ended.insert(pid.as_raw_nonzero().get());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    segments::remove_left(|creator| ended.contains(&creator));
}

fn of_the_job(session: i32, mark: &str, groups: &HashSet<i32>) -> Vec<Pid> {
    let mut found = Vec::new();
    let us = i32::try_from(std::process::id()).unwrap_or(0);
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some(stat) = Stat::of(entry.path()) else {
            continue;
        };
        if stat.session != session || pid == us || "ZX".contains(&stat.state) {
            continue;
        }
        let in_group = groups.contains(&stat.group);
        let marked = || {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            environment
                .split(|&byte| byte == 0)
                .any(|variable| variable == mark.as_bytes())
        };
        if in_group || marked() {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}
