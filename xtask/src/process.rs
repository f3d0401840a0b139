//! Runs a command: shown as a line to repeat by hand, and ended with all its children if it hangs.

use crate::{Result, root};
use std::collections::HashMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The cargo that runs this program, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs `command` to its end and within `limit`; anything but success is an error.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<()> {
    let line = describe(command);
    eprintln!("\n$ {line}");
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start `{line}`: {error}"))?;
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("`{line}`: {status}")),
            Ok(None) if start.elapsed() < limit => thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                kill_tree(child.id());
                // It has just been killed: what it says no longer matters.
                let _ = child.wait();
                return Err(format!("`{line}`: not finished after {limit:?}, killed"));
            }
            Err(error) => return Err(format!("`{line}`: {error}")),
        }
    }
}

/// What `command` prints, for short commands; `None` if it does not exist or fails.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// As one would type it in the workspace's folder: `NAME=value program arguments`.
pub(crate) fn describe(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default();
        words.push(format!("{}={}", name.display(), value.display()));
    }
    let program = command.get_program();
    let is_cargo = env::var_os("CARGO").is_some_and(|cargo| cargo == program);
    let program = if is_cargo {
        OsStr::new("cargo")
    } else {
        program
    };
    words.push(program.display().to_string());
    words.extend(command.get_args().map(|word| word.display().to_string()));
    words
        .join(" ")
        .replace(&format!("{}/", root().display()), "")
}

/// Kills a process and its descendants. They share our process group, so that Ctrl-C reaches
/// all of them; a group of their own, which could be killed as one, would not hear it.
fn kill_tree(root: u32) {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_string_lossy().parse();
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // `pid (name) state parent …`, where the name may hold anything.
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let (Ok(pid), Some(parent)) = (pid, parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(pid) = tree.get(next) {
        tree.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    let pids: Vec<String> = tree.iter().map(u32::to_string).collect();
    // The shell's own `kill`: no package is needed, and no unsafe code. Some may be gone by now.
    let _ = Command::new("sh")
        .args(["-c", "kill -9 \"$@\" 2>/dev/null", "sh"])
        .args(&pids)
        .status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        // The shell's child says who it is, and sleeps.
        let file = env::temp_dir().join(format!("xtask-{}", std::process::id()));
        let script = "sh -c 'echo $$ > \"$0\"; exec sleep 60' \"$0\" & wait";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&file);
        let message = run(&mut command, Duration::from_secs(1)).unwrap_err();
        assert!(
            message.ends_with("not finished after 1s, killed"),
            "{message}"
        );
        let child = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        // Until someone takes notice of its end a process still has a number, but no memory.
        let memory = || fs::read_to_string(format!("/proc/{}/statm", child.trim()));
        let begin = Instant::now();
        while memory().is_ok_and(|text| !text.starts_with("0 ")) {
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "{child} is alive"
            );
        }
    }
}
