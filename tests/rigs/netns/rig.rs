//! The rig in tests: hosts in name spaces of this machine, gone when dropped.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Hosts `host1` to `hostN`.
pub struct Rig {
    script: Child,
    dir: PathBuf,
}

impl Rig {
    /// Starts `hosts` hosts; `script` is the path of `rig`.
    pub fn up(script: &Path, hosts: u32) -> Self {
        let mut script = Command::new(script)
            .arg(hosts.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut dir = String::new();
        let out = script.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut dir).unwrap();
        assert!(
            !dir.is_empty(),
            "the rig does not start: {:?}",
            script.wait()
        );
        let dir = dir.trim_end().into();
        Self { script, dir }
    }

    /// A command on a host, in the present folder.
    pub fn on(&self, host: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(self.dir.join("on"));
        command.arg(host).arg(program).stdin(Stdio::null());
        command
    }

    /// Takes a host's link away, or loses what goes between two.
    pub fn cut(&self, hosts: &[&str]) {
        self.does("cut", hosts);
    }

    /// Gives it back.
    pub fn join(&self, hosts: &[&str]) {
        self.does("join", hosts);
    }

    /// Throttles what comes from a host.
    pub fn slow(&self, host: &str, rate: &str) {
        self.does("slow", &[host, rate]);
    }

    fn does(&self, what: &str, args: &[&str]) {
        let status = Command::new(self.dir.join(what)).args(args).status();
        assert!(status.unwrap().success(), "{what} {args:?}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The end of its input takes everything down.
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}
