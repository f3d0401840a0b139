//! Tests on several ranks, under plain `cargo test` or `cargo nextest`.
//!
//! ```no_run
//! use pgas::{GlobalArray, testing::on_ranks};
//!
//! #[test]
//! fn every_rank_sees_every_element() {
//!     on_ranks(4, |world| {
//!         let array = GlobalArray::<u64>::from_fn(world, 100, |i| i as u64)?;
//!         assert_eq!(array.get(99)?, 99);
//!         Ok(())
//!     });
//! }
//! # fn main() {}
//! ```
//!
//! The test starts its own executable once for each rank, through the launcher's library, with
//! arguments that make it run this one test again. There, [`on_ranks`] runs its body as a rank
//! of the job and ends the process. What stands before the call runs in every process.

use crate::error::Result;
use crate::world::World;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use ucxrun::{Job, Outcome, Output};

/// Says which call in the test a started process is for. Its presence marks such a process.
const CALL: &str = "PGAS_TEST_CALL";
/// Printed by a process that got to the body, so that none passes by not running it.
const REACHED: &str = "pgas::testing: this process runs as a rank\n";

/// Runs `body` on `ranks` ranks; returns when all have left the job.
///
/// # Panics
/// If a rank panics, returns an error, exits or is killed: with its cause and the output of all.
#[track_caller]
pub fn on_ranks<F>(ranks: usize, body: F)
where
    F: FnOnce(&World) -> Result<()>,
{
    Ranks::new(ranks).run(body);
}

/// A test job that needs more settings than [`on_ranks`] has.
#[derive(Clone, Debug)]
#[must_use = "call run() or outcome()"]
pub struct Ranks {
    ranks: usize,
    env: Vec<(OsString, OsString)>,
    timeout: Duration,
}

impl Ranks {
    /// A job of `ranks` ranks, with this process's environment. It may take 120 seconds.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            env: Vec::new(),
            timeout: Duration::from_secs(120),
        }
    }

    /// Sets an environment variable for the ranks.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// How long the job may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs `body` on all ranks.
    ///
    /// # Panics
    /// As [`on_ranks`].
    #[track_caller]
    pub fn run<F>(self, body: F)
    where
        F: FnOnce(&World) -> Result<()>,
    {
        let outcome = self.start(Skip::Pass, || World::run(body));
        assert!(
            outcome.success(),
            "{outcome}\n--- standard output of all ranks\n{}--- standard error of all ranks\n{}",
            String::from_utf8_lossy(&outcome.stdout),
            String::from_utf8_lossy(&outcome.stderr),
        );
    }

    /// Runs `body` on all ranks and tells how that ended, for tests of failures. Once in a test,
    /// before any other call: the ranks run the test from its beginning, and do not know how
    /// earlier jobs ended.
    ///
    /// # Panics
    /// If the ranks cannot be started.
    #[track_caller]
    pub fn outcome<F>(self, body: F) -> Outcome
    where
        F: FnOnce(&World) -> Result<()>,
    {
        self.processes(|| World::run(body))
    }

    /// Starts the processes and runs `body` in each, which may join the job by itself. Once in a
    /// test, as [`Ranks::outcome`].
    ///
    /// # Panics
    /// If the ranks cannot be started.
    #[track_caller]
    pub fn processes<F>(self, body: F) -> Outcome
    where
        F: FnOnce() -> Result<()>,
    {
        self.start(Skip::Refuse, body)
    }

    #[track_caller]
    fn start<F>(self, skip: Skip, body: F) -> Outcome
    where
        F: FnOnce() -> Result<()>,
    {
        if let Some(wanted) = std::env::var_os(CALL) {
            return be_a_rank(&wanted.to_string_lossy(), skip, body);
        }
        let name = test_name::<F>();
        let call = count_call(&name);
        let program = std::env::current_exe().expect("the test's own executable");
        let mut job = Job::new(program)
            .arg(&*name)
            .args([
                "--exact",
                "--nocapture",
                "--test-threads=1",
                "--include-ignored",
            ])
            .ranks(u32::try_from(self.ranks).expect("a number of ranks"))
            .output(Output::Capture)
            .timeout(self.timeout)
            .env_default("PGAS_TIMEOUT", "60")
            .default_environment()
            .env(CALL, call.to_string());
        for (name, value) in self.env {
            job = job.env(name, value);
        }
        let outcome = job.run().expect("starting the ranks");
        let reached = String::from_utf8_lossy(&outcome.stderr)
            .matches(REACHED.trim_end())
            .count();
        assert!(
            reached > 0,
            "no process of test {name:?} got to its body ({outcome}): call pgas::testing in the \
             test function itself, or run the tests without --test-threads=1\n{}{}",
            String::from_utf8_lossy(&outcome.stdout),
            String::from_utf8_lossy(&outcome.stderr),
        );
        outcome
    }
}

/// What a started process does at a call that is not the one it is for.
enum Skip {
    /// The process that runs the test saw it succeed, or there would be no later call.
    Pass,
    /// How it ended is known only there.
    Refuse,
}

/// In a started process: skips calls before the wanted one, runs that, and ends the process.
#[track_caller]
fn be_a_rank(wanted: &str, skip: Skip, body: impl FnOnce() -> Result<()>) -> Outcome {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    if call.to_string() != wanted {
        match skip {
            Skip::Pass => return Outcome::default(),
            Skip::Refuse => panic!("outcome() and processes() can be called once in a test"),
        }
    }
    eprint!("{REACHED}");
    match body() {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("Error: {error}");
            std::process::exit(1)
        }
    }
}

/// The running test's name, as its executable takes it.
fn test_name<F>() -> String {
    // cargo nextest starts each test by name.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--exact") {
        let mut names = args.iter().filter(|arg| !arg.starts_with('-'));
        if let (Some(name), None) = (names.next(), names.next()) {
            return name.clone();
        }
    }
    // cargo test gives each test a thread of its name …
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_string(),
        // … unless it runs one at a time. The closure's path is that of the function it is in.
        _ => {
            let path = std::any::type_name::<F>();
            let (_crate_name, path) = path.split_once("::").unwrap_or(("", path));
            let end = path.find("::{{closure}}").unwrap_or(path.len());
            path[..end].to_string()
        }
    }
}

/// Which call of this test it is, from 0.
fn count_call(name: &str) -> usize {
    static CALLS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = calls
        .get_or_insert_default()
        .entry(name.to_string())
        .or_default();
    *count += 1;
    *count - 1
}
