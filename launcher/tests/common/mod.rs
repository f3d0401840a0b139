//! Runs `ucxrun` with a deadline, and plays ranks.
#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a run may take before the test fails.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Whether the ranks are to be on several hosts, for which agents of this machine pretend to be: the same tests, the
/// same outcomes.
pub fn pretending() -> bool {
    std::env::var_os("UCXRUN_TEST_HOSTS").is_some()
}

/// What starts such an agent.
pub const AGENT: &str = "sh -c {command}";

/// Pretended hosts for three ranks.
pub fn places() -> (Vec<ucxrun::Place>, ucxrun::Agents) {
    let hosts = ucxrun::hosts::parse_list("one,two:2").unwrap();
    let places = ucxrun::hosts::place(&hosts, None, ucxrun::Map::Slot).unwrap();
    let agents = ucxrun::Agents {
        command: Some(AGENT.split(' ').map(Into::into).collect()),
        program: env!("CARGO_BIN_EXE_ucxrun").into(),
        ..Default::default()
    };
    (places, agents)
}

/// The launcher, with its arguments.
pub fn ucxrun<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ucxrun"));
    if pretending() {
        command.args(["--host", "one,two:2,three", "--agent", AGENT]);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// The launcher with `ranks` ranks of a shell script.
pub fn ucxrun_sh(ranks: u32, script: &str) -> Command {
    ucxrun(["-n", &ranks.to_string(), "sh", "-c", script])
}

/// A process that ends before the deadline, or the test fails.
pub struct Running {
    pub child: Child,
    started: Instant,
    out: JoinHandle<Vec<u8>>,
    err: JoinHandle<Vec<u8>>,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; 128 + signal if it was killed.
    pub code: i32,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub took: Duration,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self {
            child,
            started: Instant::now(),
            out: collect(out),
            err: collect(err),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: &str) {
        kill(self.pid(), signal);
    }

    pub fn wait(mut self) -> Ended {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.started.elapsed() > DEADLINE {
                self.child.kill().unwrap();
                let (out, err) = (self.out.join().unwrap(), self.err.join().unwrap());
                panic!("no end: {} / {}", text(&out), text(&err));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let took = self.started.elapsed();
        let code = status
            .code()
            .or(status.signal().map(|signal| 128 + signal))
            .unwrap();
        Ended {
            code,
            out: self.out.join().unwrap(),
            err: self.err.join().unwrap(),
            took,
        }
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Ended {
    Running::start(command).wait()
}

impl Ended {
    pub fn out(&self) -> String {
        text(&self.out)
    }

    pub fn err(&self) -> String {
        text(&self.err)
    }

    /// Lines of output, sorted.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.out().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Fails unless the code is `code` and standard error has a line that contains all of `words`.
    #[track_caller]
    pub fn expect(&self, code: i32, words: &[&str]) -> &Self {
        assert_eq!(self.code, code, "{self}");
        let err = self.err();
        let found = err
            .lines()
            .any(|line| words.iter().all(|word| line.contains(word)));
        assert!(words.is_empty() || found, "no line with {words:?}: {self}");
        self
    }

    /// Fails if the launcher wrote more than one line of its own.
    #[track_caller]
    pub fn one_line(&self) -> &Self {
        let lines = self
            .err()
            .lines()
            .filter(|line| line.starts_with("ucxrun: "))
            .count();
        assert_eq!(lines, 1, "{self}");
        self
    }

    /// Fails if it took longer.
    #[track_caller]
    pub fn within(&self, seconds: f64) -> &Self {
        assert!(
            self.took.as_secs_f64() < seconds,
            "took {:?}: {self}",
            self.took
        );
        self
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "code {}\n--- out\n{}\n--- err\n{}",
            self.code,
            self.out(),
            self.err()
        )
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends a signal to one process.
pub fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill")
        .args(["-s", signal, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success(), "kill -s {signal} {pid}");
}

/// Whether a process runs: exists, and is no zombie.
pub fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// Waits until none of `pids` is alive.
#[track_caller]
pub fn expect_gone(pids: &[u32], within: Duration) {
    let start = Instant::now();
    while pids.iter().any(|&pid| alive(pid)) {
        let left: Vec<_> = pids.iter().filter(|&&pid| alive(pid)).collect();
        assert!(start.elapsed() < within, "still alive: {left:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a condition.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A directory of its own, removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ucxrun-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// An executable file in it.
    pub fn script(&self, name: &str, content: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        // Not written by this process: a rank forked at the wrong moment would hold it open for writing, and it could
        // not be executed.
        let mut cat = Command::new("sh");
        cat.args(["-c", "cat > \"$1\"", "sh"])
            .arg(&path)
            .stdin(Stdio::piped());
        let mut cat = cat.spawn().unwrap();
        cat.stdin
            .take()
            .unwrap()
            .write_all(content.as_bytes())
            .unwrap();
        assert!(cat.wait().unwrap().success());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub mod ranks;
