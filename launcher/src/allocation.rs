//! A Slurm allocation that `ucxrun` was started in: its hosts, and the way to them.

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{Host, MAX_HOSTS, MAX_RANKS};
use std::ffi::OsString;
use std::process::{Command, Stdio};

/// Agents are started as steps of the allocation; what follows is a program and its arguments.
const AGENT: [&str; 11] = [
    "srun",
    "--quiet",
    // Else it waits for the ends of lines.
    "--unbuffered",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--mpi=none",
    "--nodelist={host}",
    "sh",
    "-c",
    "{command}",
];

/// The hosts of the allocation that this process is in, if it is in one: in a shell of `salloc`, or
/// a script of `sbatch`. None for a task of `srun`, which has hosts of its own.
///
/// # Errors
/// If the variables make no sense, or `scontrol` does not say which hosts they mean.
pub fn hosts(get: impl Fn(&str) -> Option<String>) -> Result<Option<Vec<Host>>> {
    let Some(list) = get("SLURM_JOB_NODELIST") else {
        return Ok(None);
    };
    // A task has this; an interactive step of salloc has it, too, with a name for its number.
    let is_task =
        get("SLURM_STEP_ID").is_some_and(|step| step.parse::<u32>().is_ok_and(|it| it < STEPS));
    if is_task {
        return Ok(None);
    }
    // As many as were asked for, or as there are processors.
    let tasks = get("SLURM_TASKS_PER_NODE").or_else(|| get("SLURM_JOB_CPUS_PER_NODE"));
    let names = expand(&list)?;
    let slots = match tasks {
        Some(tasks) => counts(&tasks)?,
        None => vec![1; names.len()],
    };
    together(names, slots).map(Some)
}

fn together(names: Vec<String>, slots: Vec<u32>) -> Result<Vec<Host>> {
    if slots.len() != names.len() {
        return Err(wrong(&format!(
            "{} hosts and {} numbers of tasks",
            names.len(),
            slots.len()
        )));
    }
    let host = |(name, slots)| Host { name, slots };
    Ok(names.into_iter().zip(slots).map(host).collect())
}

/// Numbers above are special steps: batch, interactive, extern.
const STEPS: u32 = 0xffff_fff0;

/// How agents are started on the hosts of an allocation.
#[must_use]
pub fn agent() -> Vec<OsString> {
    AGENT.map(OsString::from).to_vec()
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("this Slurm allocation: {what}"))
}

/// `n[1-3,7]` as names, by Slurm itself.
fn expand(list: &str) -> Result<Vec<String>> {
    let output = Command::new("scontrol")
        .args(["show", "hostnames", list])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| wrong(&format!("scontrol show hostnames {list}: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(wrong(&format!(
            "scontrol show hostnames {list}: {}",
            said.trim()
        )));
    }
    names(&String::from_utf8_lossy(&output.stdout))
}

/// Host names, one a line.
fn names(text: &str) -> Result<Vec<String>> {
    let name = |line: &str| {
        let name = line.trim();
        let plain = !name.is_empty()
            && !name.starts_with('-')
            && !name.contains(|c: char| c.is_whitespace() || c.is_control());
        match plain {
            true => Ok(name.to_owned()),
            false => Err(wrong(&format!("{line:?} is no host"))),
        }
    };
    text.lines().map(name).collect()
}

/// `2(x3),1` as 2, 2, 2, 1.
fn counts(text: &str) -> Result<Vec<u32>> {
    let mut counts = Vec::new();
    for entry in text.split(',') {
        let (count, times) = match entry.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').unwrap_or("")),
            None => (entry, "1"),
        };
        match (count.parse(), times.parse::<usize>()) {
            (Ok(count @ 1..=MAX_RANKS), Ok(times @ 1..=MAX_HOSTS))
                if counts.len() + times <= MAX_HOSTS =>
            {
                counts.extend(std::iter::repeat_n(count, times));
            }
            _ => return Err(wrong(&format!("{text:?} is no list of numbers of tasks"))),
        }
    }
    Ok(counts)
}

/// What Slurm tells, from the hands of whoever.
#[cfg(test)]
pub(crate) fn digest(text: &str) {
    let (names, counts) = (names(text), counts(text));
    for name in names.iter().flatten() {
        assert!(!name.is_empty() && !name.starts_with('-') && !name.contains(char::is_whitespace));
    }
    if let Ok(counts) = counts {
        assert!((1..=MAX_HOSTS).contains(&counts.len()));
        assert!(counts.iter().all(|count| (1..=MAX_RANKS).contains(count)));
        let same = names
            .as_ref()
            .is_ok_and(|names| names.len() == counts.len());
        assert_eq!(together(names.unwrap_or_default(), counts).is_ok(), same);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tasks() {
        assert_eq!(counts("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert_eq!(counts("4").unwrap(), [4]);
        for text in [
            "",
            "0",
            "2(x",
            "2(x0)",
            "a",
            "2,,3",
            "1(x10001)",
            "1(x6000),1(x6000)",
        ] {
            assert!(counts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn outside_and_in_a_task() {
        assert_eq!(hosts(|_| None).unwrap(), None);
        let task = |name: &str| match name {
            "SLURM_JOB_NODELIST" => Some("n1".to_owned()),
            "SLURM_STEP_ID" => Some("0".to_owned()),
            _ => None,
        };
        assert_eq!(hosts(task).unwrap(), None);
    }
}
