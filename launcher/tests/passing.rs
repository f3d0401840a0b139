//! Arguments, environment, working directory, umask: as the caller has them.

mod common;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use common::{Scratch, run, text, ucxrun};

const RANKS: usize = 3;

/// The launcher with 3 ranks of `program`.
fn launch(program: impl AsRef<OsStr>) -> Command {
    let mut command = ucxrun(["-n", "3"]);
    command.arg(program);
    command
}

/// Prints its arguments, each ended by a null byte.
const PRINT: [&str; 4] = ["sh", "-c", "printf '%s\\0' \"$@\"; echo", "sh"];

#[test]
fn arguments() {
    let long = "x".repeat(100_000);
    let mut args: Vec<&OsStr> = [
        "",
        "a b",
        "x=y",
        "--help",
        "-n",
        "-np",
        "7",
        "--",
        "-",
        "*",
        "$HOME",
        "\\",
        "\"'",
        "\t",
        "-x",
        "A=1",
        &long,
        "",
        "ünïcödé",
    ]
    .map(OsStr::new)
    .into();
    args.push(OsStr::from_bytes(b"\xff\xfe bytes \x80"));
    let mut expected = Vec::new();
    for arg in &args {
        expected.extend_from_slice(arg.as_bytes());
        expected.push(0);
    }
    expected.push(b'\n');
    for options in [&["-n", "3"][..], &["-n", "3", "--"], &["-np", "3"]] {
        let ended = run(ucxrun(options).args(PRINT).args(&args));
        ended.expect(0, &[]);
        assert!(
            ended.out == expected.repeat(RANKS),
            "{}",
            text(&ended.out[..500])
        );
    }
}

/// What each rank gets from `command`'s options and variables.
fn environments(command: &mut Command) -> Vec<BTreeMap<Vec<u8>, Vec<u8>>> {
    let scratch = Scratch::new("env");
    // No shell between: it would drop names that it does not like.
    let mut args: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
    args.extend(["--output-dir".into(), scratch.0.clone().into_os_string()]);
    let mut all = Command::new(command.get_program());
    all.args(&args).args(["/usr/bin/env", "-0"]).env_clear();
    all.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    run(&mut all).expect(0, &[]);
    let read = |rank: usize| {
        let bytes = std::fs::read(scratch.0.join(format!("rank.{rank}.out"))).unwrap();
        let entries = bytes.split(|&b| b == 0).filter(|entry| !entry.is_empty());
        entries
            .map(|entry| {
                let at = entry.iter().position(|&b| b == b'=').unwrap();
                (entry[..at].to_vec(), entry[at + 1..].to_vec())
            })
            .collect()
    };
    (0..RANKS).map(read).collect()
}

/// Removes what `ucxrun` adds.
fn strip(environment: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    for name in ucxrun::wire::env::ALL {
        assert!(
            environment.remove(name.as_bytes()).is_some(),
            "{name} is not set"
        );
    }
}

#[test]
fn environment() {
    let mut wanted: BTreeMap<OsString, OsString> = BTreeMap::new();
    for (name, value) in [
        ("EQUALS", "a=b=c"),
        ("SPACES", "  a  b "),
        ("NEWLINE", "a\nb\n"),
        ("EMPTY", ""),
        ("BACKSLASH", "a\\"),
        ("UCX_TLS", "tcp,self"),
        ("UCX_LOG_LEVEL", "warn"),
        ("lower.case-name", "1"),
    ] {
        wanted.insert(name.into(), value.into());
    }
    wanted.insert("BYTES".into(), OsStr::from_bytes(b"\xff\x80").to_owned());
    for number in 0..2000 {
        wanted.insert(
            format!("VARIABLE_{number}").into(),
            format!("value {number}").into(),
        );
    }
    let mut command = ucxrun(["-n", "3"]);
    command.envs(&wanted);
    for mut environment in environments(&mut command) {
        strip(&mut environment);
        let added = environment.remove(&b"UCX_ERROR_SIGNALS"[..]);
        assert_eq!(added.as_deref(), Some(&b""[..]));
        // Neither HOME nor PATH appear from nowhere.
        let wanted = wanted.iter();
        let wanted: BTreeMap<_, _> = wanted
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        assert!(environment == wanted);
    }
}

#[test]
fn user_settings_win() {
    let mut command = ucxrun([
        "-n",
        "3",
        "-x",
        "ADDED=a=b c",
        "-x",
        "NONE=",
        "-x",
        "CHANGED=new",
    ]);
    command.args(["-x", "UCX_ERROR_SIGNALS"]);
    command
        .env("UCX_ERROR_SIGNALS", "SEGV")
        .env("CHANGED", "old")
        .env("PGAS_RANK", "77");
    for (rank, environment) in environments(&mut command).into_iter().enumerate() {
        let get = |name: &str| text(&environment[name.as_bytes()]);
        assert_eq!(get("UCX_ERROR_SIGNALS"), "SEGV");
        assert_eq!(get("ADDED"), "a=b c");
        assert_eq!(get("NONE"), "");
        assert_eq!(get("CHANGED"), "new");
        assert_eq!(get("PGAS_RANK"), rank.to_string());
        assert_eq!(get("PGAS_SIZE"), "3");
    }
}

#[test]
fn ranks_know_their_place_and_the_secret_is_in_no_command_line() {
    let script = "echo $PGAS_RANK $PGAS_LOCAL_RANK $PGAS_SIZE $PGAS_LOCAL_SIZE $PGAS_JOB
        case $(tr '\\0' ' ' < /proc/$PPID/cmdline) in *$PGAS_SECRET*) echo leaked;; esac";
    let ended = run(launch("sh").args(["-c", script]));
    ended.expect(0, &[]);
    let lines = ended.lines();
    assert_eq!(lines.len(), 3, "{ended}");
    let job = lines[0].rsplit(' ').next().unwrap();
    assert_eq!(job.len(), 32);
    let places = match common::pretending() {
        false => ["0 0 3 3", "1 1 3 3", "2 2 3 3"],
        true => ["0 0 3 1", "1 0 3 2", "2 1 3 2"],
    };
    for (place, line) in places.iter().zip(&lines) {
        assert_eq!(*line, format!("{place} {job}"));
    }
}

const HELLO: &str = "#!/bin/sh\necho \"hello $1\"\n";

fn says_hello(command: &mut Command) {
    let ended = run(command.arg("you"));
    ended.expect(0, &[]);
    assert_eq!(ended.out(), "hello you\n".repeat(RANKS));
}

#[test]
fn programs_are_found_as_execvp_does() {
    let scratch = Scratch::new("find");
    let dir = &scratch.0;
    let plain = scratch.script("p", HELLO);
    says_hello(&mut launch(&plain));
    says_hello(launch("./p").current_dir(dir));
    let spaced = scratch.script("p with  spaces", HELLO);
    says_hello(&mut launch(&spaced));
    says_hello(launch("./p with  spaces").current_dir(dir));
    std::os::unix::fs::symlink("p", dir.join("link")).unwrap();
    says_hello(&mut launch(dir.join("link")));
    let path = |first: &Path| {
        let mut path = first.as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap());
        path
    };
    says_hello(launch("p").env("PATH", path(dir)));
    // Without #!, the shell runs it.
    says_hello(&mut launch(scratch.script("bare", "echo \"hello $1\"\n")));
    // The current directory is not searched, and what is not executable is not run.
    run(launch("p").current_dir(dir)).expect(127, &["p: no such program"]);
    std::fs::write(dir.join("data"), HELLO).unwrap();
    run(&mut launch(dir.join("data"))).expect(126, &["data: Permission denied"]);
    // Without PATH there is still the system's.
    let ended = run(launch("echo").arg("hi").env_clear());
    ended.expect(0, &[]);
    assert_eq!(ended.lines(), ["hi"; RANKS]);
    run(launch("true").env_remove("HOME")).expect(0, &[]);
}

#[test]
fn working_directory_and_umask() {
    let scratch = Scratch::new("cwd");
    let ended = run(launch("pwd").current_dir(&scratch.0));
    ended.expect(0, &[]);
    let here = scratch.0.canonicalize().unwrap();
    assert_eq!(ended.lines(), vec![here.to_str().unwrap(); RANKS]);
    let script = "umask 077; exec \"$0\" -n 3 sh -c umask";
    let ended = run(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_ucxrun")]));
    ended.expect(0, &[]);
    assert_eq!(ended.lines(), ["0077"; RANKS]);
}

#[test]
fn deleted_working_directory() {
    let scratch = Scratch::new("deleted");
    let inner = scratch.0.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let script = "cd \"$1\" && rmdir \"$1\" && exec \"$0\" -n 3 sh -c 'readlink /proc/self/cwd'";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_ucxrun")])
        .arg(&inner);
    let ended = run(&mut command);
    ended.expect(0, &[]);
    assert!(
        ended
            .lines()
            .iter()
            .all(|line| line.ends_with("inner (deleted)")),
        "{ended}"
    );
}

#[test]
fn signals_that_the_caller_blocks_stay_blocked() {
    let perl = "use POSIX; sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGUSR1)); exec @ARGV";
    let mut command = Command::new("perl");
    command.args(["-e", perl, env!("CARGO_BIN_EXE_ucxrun"), "-n", "2"]);
    command.args(["grep", "SigBlk", "/proc/self/status"]);
    let ended = run(&mut command);
    ended.expect(0, &[]);
    assert_eq!(ended.lines(), ["SigBlk:\t0000000000000200"; 2]);
}
