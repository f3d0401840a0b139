//! Signals to the launcher, and what is left afterwards: nothing.

mod common;

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{DEADLINE, Running, Scratch, eventually, expect_gone, run, ucxrun, ucxrun_sh};

/// A job whose ranks write their process number and control socket to files, and then do `what`.
struct Job {
    running: Running,
    pids: Vec<u32>,
    socket: String,
    _scratch: Scratch,
}

const RANKS: u32 = 4;

impl Job {
    fn start(name: &str, what: &str) -> Self {
        Self::start_by(name, what, Running::start)
    }

    fn start_by(name: &str, what: &str, start: impl FnOnce(&mut Command) -> Running) -> Self {
        let scratch = Scratch::new(name);
        let dir = scratch.0.to_str().unwrap();
        // `TRAPS; BODY=REST`, or only the rest.
        let (traps, body) = what.split_once("; BODY=").unwrap_or((":", what));
        let script = format!(
            "{traps}; echo $$ $PGAS_CONTROL > {dir}/new.$PGAS_RANK
             mv {dir}/new.$PGAS_RANK {dir}/pid.$PGAS_RANK; {body}"
        );
        let mut command = ucxrun_sh(RANKS, &script);
        let running = start(&mut command);
        let (mut pids, mut socket) = (Vec::new(), String::new());
        for rank in 0..RANKS {
            let file = format!("{dir}/pid.{rank}");
            eventually("a rank starts", || fs::exists(&file).unwrap());
            let line = fs::read_to_string(&file).unwrap();
            let (pid, control) = line.trim().split_once(' ').unwrap();
            pids.push(pid.parse().unwrap());
            socket = control.strip_prefix("unix:").unwrap().to_owned();
        }
        Self {
            running,
            pids,
            socket,
            _scratch: scratch,
        }
    }

    /// Nothing is left of the ranks, nor of the job's socket.
    fn expect_gone(&self, within: Duration) {
        expect_gone(&self.pids, within);
        // The launcher itself may take a moment longer.
        eventually("the socket is gone", || {
            !fs::read_to_string("/proc/net/unix")
                .unwrap()
                .contains(&self.socket)
        });
    }
}

const WAYS: [&str; 3] = [
    "exec sleep 60",
    "while :; do :; done",
    "sleep 60 & sleep 60 & wait; wait",
];

#[test]
fn one_signal_ends_the_job() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        for way in WAYS {
            let job = Job::start(&format!("one-{signal}"), way);
            job.running.signal(signal);
            let pids = job.pids.clone();
            let socket = job.socket.clone();
            let ended = job.running.wait();
            ended
                .expect(code, &["ucxrun: interrupted by signal", signal])
                .one_line();
            expect_gone(&pids, Duration::ZERO);
            assert!(
                !fs::read_to_string("/proc/net/unix")
                    .unwrap()
                    .contains(&socket)
            );
        }
    }
}

#[test]
fn ranks_that_ignore_signals_are_killed_after_the_grace() {
    let job = Job::start(
        "stubborn",
        "trap '' INT TERM HUP QUIT; BODY=while :; do :; done",
    );
    job.running.signal("INT");
    std::thread::sleep(Duration::from_millis(700));
    assert!(
        job.pids.iter().all(|&pid| common::alive(pid)),
        "killed before the grace was over"
    );
    let pids = job.pids.clone();
    job.running.wait().expect(130, &["SIGINT"]).within(5.0);
    expect_gone(&pids, Duration::ZERO);
}

#[test]
fn second_interrupt_kills_at_once() {
    let job = Job::start("double", "trap '' INT TERM; BODY=while :; do :; done");
    job.running.signal("INT");
    std::thread::sleep(Duration::from_millis(100));
    job.running.signal("INT");
    expect_gone(&job.pids, Duration::from_millis(600));
    job.running.wait().expect(130, &["SIGINT"]);
}

#[test]
fn handler_has_a_second() {
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let what = format!(
            "trap 'sleep 0.8; echo handled; exit 0' {signal}; BODY=while :; do sleep 0.01; done"
        );
        let job = Job::start("handler", &what);
        job.running.signal(signal);
        let ended = job.running.wait();
        ended.expect(code, &[]).within(5.0);
        assert_eq!(ended.out(), "handled\n".repeat(RANKS as usize), "{ended}");
    }
}

#[test]
fn kill_of_the_launcher_leaves_no_rank() {
    // Without the last way: programs that ranks have started do not die with the launcher.
    for way in &WAYS[..2] {
        let job = Job::start("kill", way);
        job.running.signal("KILL");
        job.expect_gone(Duration::from_secs(3));
    }
}

#[test]
fn killed_ranks_end_the_job() {
    let job = Job::start("ranks", "exec sleep 60");
    for &pid in &job.pids {
        common::kill(pid, "KILL");
    }
    job.running
        .wait()
        .expect(137, &["ucxrun: rank ", "SIGKILL"])
        .one_line()
        .within(5.0);
}

#[test]
fn other_signals_are_passed_on() {
    let what = "trap 'echo usr1; exit 0' USR1; BODY=while :; do sleep 0.01; done";
    let job = Job::start("usr1", what);
    job.running.signal("USR1");
    let ended = job.running.wait();
    ended.expect(0, &[]);
    assert_eq!(ended.out(), "usr1\n".repeat(RANKS as usize));
}

#[test]
fn stop_and_continue() {
    let job = Job::start("stop", "exec sleep 60");
    job.running.signal("TSTP");
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next().unwrap()
    };
    eventually("all stop", || {
        state(job.running.pid()) == 'T' && job.pids.iter().all(|&pid| state(pid) == 'T')
    });
    job.running.signal("CONT");
    eventually("all go on", || {
        state(job.running.pid()) != 'T' && job.pids.iter().all(|&pid| state(pid) != 'T')
    });
    job.running.signal("TERM");
    job.running.wait().expect(143, &[]);
}

#[test]
fn nohup_is_respected() {
    let script = "trap '' HUP; exec \"$@\"";
    let start = |command: &mut Command| {
        let mut nohup = Command::new("sh");
        nohup
            .args(["-c", script, "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        Running::start(&mut nohup)
    };
    let job = Job::start_by("nohup", "sleep 0.5", start);
    job.running.signal("HUP");
    for &pid in &job.pids {
        common::kill(pid, "HUP");
    }
    job.running.wait().expect(0, &[]);
}

#[test]
fn ignored_sigchld_loses_no_code() {
    // Not in sh, which does not pass on an ignored SIGCHLD.
    let perl = "$SIG{CHLD} = 'IGNORE'; exec @ARGV";
    let mut command = Command::new("perl");
    command.args([
        "-e",
        perl,
        env!("CARGO_BIN_EXE_ucxrun"),
        "-n",
        "2",
        "sh",
        "-c",
        "exit 3",
    ]);
    run(&mut command).expect(3, &["exited with code 3"]);
}

#[test]
fn timeout_command_and_a_closed_shell() {
    let mut timeout = Command::new("timeout");
    timeout.args([
        "0.5",
        env!("CARGO_BIN_EXE_ucxrun"),
        "-n",
        "4",
        "sleep",
        "60",
    ]);
    run(&mut timeout).expect(124, &["SIGTERM"]).within(5.0);
    // The parent shell goes away: the job goes on, and can still be ended.
    let job = Job::start_by("orphan", "exec sleep 60", |command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$@\" & echo launcher $!", "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        Running::start(&mut shell)
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(job.pids.iter().all(|&pid| common::alive(pid)));
    let launcher = parent(job.pids[0]);
    common::kill(launcher, "TERM");
    expect_gone(&job.pids, Duration::from_secs(3));
    job.running.wait();
}

fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ")
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// A new terminal: our end, and the other as a file for a process that becomes its session's leader.
fn terminal() -> (fs::File, fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(name)
        .unwrap();
    (ours.into(), theirs)
}

/// Starts a shell script in a session of its own on a terminal, as its foreground job.
fn on_terminal(script: &str) -> (std::process::Child, fs::File) {
    let (ours, theirs) = terminal();
    let mut command = Command::new("setsid");
    command.args([
        "--ctty",
        "--wait",
        "sh",
        "-c",
        script,
        env!("CARGO_BIN_EXE_ucxrun"),
    ]);
    command
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs.try_clone().unwrap());
    command.stderr(Stdio::from(theirs)).process_group(0);
    (command.spawn().unwrap(), ours)
}

/// Reads from a terminal until `words` have come.
fn read_until(terminal: &mut fs::File, words: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    let start = std::time::Instant::now();
    while !text.contains(words) {
        assert!(start.elapsed() < DEADLINE, "no {words:?} in {text:?}");
        match terminal.read(&mut buffer) {
            Ok(n) if n > 0 => text.push_str(&String::from_utf8_lossy(&buffer[..n])),
            _ => panic!("end before {words:?}: {text:?}"),
        }
    }
    text
}

#[test]
fn interrupt_from_a_terminal() {
    use std::io::Write;
    let script = "\"$0\" -n 4 sh -c 'echo pid $$.; exec sleep 60'; echo code $?.";
    let (mut child, mut terminal) = on_terminal(script);
    let mut text = String::new();
    while text.matches(".\r\n").count() < 4 {
        text += &read_until(&mut terminal, ".");
    }
    // The terminal sends the signal to its foreground process group: launcher and shell, not the ranks.
    terminal.write_all(b"\x03").unwrap();
    let pids: Vec<u32> = text
        .split("pid ")
        .filter_map(|rest| rest.split('.').next()?.parse().ok())
        .collect();
    assert_eq!(pids.len(), 4, "{text:?}");
    expect_gone(&pids, Duration::from_secs(3));
    child.wait().unwrap();
}

#[test]
fn input_from_a_terminal() {
    use std::io::Write;
    let script = "\"$0\" -n 2 sh -c 'read line && echo got $line.'; echo code $?.";
    let (mut child, mut terminal) = on_terminal(&script.replace("&& echo", "; echo"));
    terminal.write_all(b"hello\n").unwrap();
    let text = read_until(&mut terminal, "code 0.");
    assert!(text.contains("got hello."), "{text:?}");
    child.wait().unwrap();
    // Nobody types anything: the job ends all the same.
    let (mut child, mut terminal) = on_terminal("\"$0\" -n 2 true; echo code $?.");
    read_until(&mut terminal, "code 0.");
    child.wait().unwrap();
    // End of file, and a rank that reads to the end.
    let (mut child, mut terminal) = on_terminal("\"$0\" -n 2 wc -c; echo code $?.");
    terminal.write_all(b"12345\n\x04").unwrap();
    let text = read_until(&mut terminal, "code 0.");
    assert!(text.contains("6\r\n"), "{text:?}");
    child.wait().unwrap();
}

#[test]
fn fifty_interrupted_jobs_and_a_good_one() {
    for round in 0..50 {
        let signal = ["INT", "TERM", "KILL", "HUP", "QUIT"][round % 5];
        let job = Job::start("fifty", "exec sleep 60");
        job.running.signal(signal);
        job.expect_gone(Duration::from_secs(3));
        job.running.wait();
    }
    run(&mut ucxrun(["-n", "4", "true"])).expect(0, &[]);
}

#[test]
fn signal_while_starting() {
    // At any moment, also before the signals are handled or in the middle of the ranks' start.
    for delay in 0..20 {
        let running = Running::start(&mut ucxrun(["-n", "8", "sleep", "60"]));
        std::thread::sleep(Duration::from_millis(delay));
        running.signal("TERM");
        running.wait().expect(143, &[]).within(5.0);
    }
}
