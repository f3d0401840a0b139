//! The rig in tests: a Slurm of four nodes on this machine, gone when dropped.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// Nodes `n1` to `n4`.
pub struct Rig {
    script: Child,
    /// The value of `SLURM_CONF`.
    pub conf: String,
}

impl Rig {
    pub fn up() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rigs/slurm/rig");
        let mut script = Command::new(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut conf = String::new();
        let out = script.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut conf).unwrap();
        assert!(
            !conf.is_empty(),
            "the rig does not start: {:?}",
            script.wait()
        );
        let conf = conf.trim_end().to_owned();
        Self { script, conf }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The end of its input takes everything down.
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}
