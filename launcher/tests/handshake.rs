//! Connections that do not belong to the job: refused, with a reason, while the job goes on. And the library's
//! `Job`, in the threads of this process.

mod common;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::ranks::play;
use common::{Scratch, eventually, text};
use ucxrun::wire::{self, ToRank, env};
use ucxrun::{Cause, Control, ErrorKind, Job, JobControl, Outcome, Output};

#[test]
#[ignore = "the ranks' program; started by the other tests"]
fn rank() {
    play();
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A job of three: ranks 0 and 1 join, gather and leave; rank 2 has a process, but is played by the test.
struct Live {
    job: JoinHandle<Outcome>,
    variables: HashMap<String, String>,
    notices: mpsc::Receiver<String>,
    handle: JobControl,
    scratch: Scratch,
}

/// This test binary as the program of a job.
fn this_binary(ranks: u32, script: &str) -> Job {
    let job = Job::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank", "--ignored", "--nocapture", "--quiet"])
        .ranks(ranks)
        .env("SCRIPT", script);
    if common::pretending() && ranks == 3 {
        let (places, agents) = common::places();
        return job.places(places, agents);
    }
    job
}

impl Live {
    fn start(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let (send, receive) = mpsc::channel();
        let (notice, notices) = mpsc::channel();
        let wait = "sh:env_|_grep_^PGAS sh:while_[_!_-e_$DONE_];_do_sleep_0.01;_done";
        let mut job = this_binary(3, "join gather:1 leave")
            .env("SCRIPT_2", wait)
            .env("DONE", scratch.0.join("done"))
            .timeout(Duration::from_secs(40))
            .notices(move |line| drop(notice.send(line.to_owned())))
            .output(Output::Each(Box::new(move |rank, _, bytes| {
                if rank == 2 {
                    drop(send.send(text(bytes)));
                }
            })));
        let handle = job.control().unwrap();
        let job = std::thread::spawn(move || job.run().unwrap());
        let mut variables = HashMap::new();
        while variables.len() < env::ALL.len() {
            let lines = receive.recv_timeout(Duration::from_secs(20)).unwrap();
            let lines = lines.lines().filter_map(|line| line.split_once('='));
            variables.extend(lines.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        Self {
            job,
            variables,
            notices,
            handle,
            scratch,
        }
    }

    fn name(&self) -> &str {
        self.variables[env::CONTROL].strip_prefix("unix:@").unwrap()
    }

    fn connect(&self) -> UnixStream {
        let address = SocketAddr::from_abstract_name(self.name()).unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// Tries to join, with some variables changed.
    fn join(&self, changes: &[(&str, &str)]) -> ucxrun::Result<Option<Control>> {
        let get = |name: &str| {
            let changed = changes.iter().find(|(change, _)| *change == name);
            let value = changed.map(|(_, value)| (*value).to_owned());
            value
                .or_else(|| self.variables.get(name).cloned())
                .map(OsString::from)
        };
        Control::from_vars(get, soon())
    }

    /// Plays rank 2 to the end: the job must not have been disturbed.
    fn finish(self) {
        let mut control = self.join(&[]).unwrap().unwrap();
        assert_eq!(control.gather(&[2], soon()).unwrap(), [[0], [1], [2]]);
        control.leave(soon()).unwrap();
        std::fs::write(self.scratch.0.join("done"), "").unwrap();
        let outcome = self.job.join().unwrap();
        assert!(outcome.success(), "{outcome}");
    }

    /// Waits until a notice has these words.
    fn expect_notice(&self, words: &str) {
        loop {
            let line = self.notices.recv_timeout(Duration::from_secs(20));
            if line
                .unwrap_or_else(|_| panic!("no notice of {words:?}"))
                .contains(words)
            {
                return;
            }
        }
    }
}

/// Everything until the other side closes.
fn rest(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    bytes
}

const HELLO: usize = 48;
const CHALLENGE: usize = 65;

/// A greeting as rank 2 would send it.
fn hello() -> Vec<u8> {
    let mut hello = b"pgas-ctl".to_vec();
    hello.extend_from_slice(&wire::VERSION.to_le_bytes());
    hello.extend_from_slice(&2_u32.to_le_bytes());
    hello.extend_from_slice(&[7; 32]);
    assert_eq!(hello.len(), HELLO);
    hello
}

#[test]
fn wrong_secret_job_rank_and_version() {
    let live = Live::start("wrong");
    let zeros = "0".repeat(64);
    for (name, value, words) in [
        (env::SECRET, zeros.as_str(), "disagree on the job's secret"),
        (env::JOB, &zeros[..32], "disagree on the job's secret"),
    ] {
        let error = live.join(&[(name, value)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = live
        .join(&[(env::RANK, "3"), (env::SIZE, "4")])
        .unwrap_err();
    assert!(error.to_string().contains("no such rank"), "{error}");
    // An older launcher, as a newer rank sees it, cannot be had here; an older rank can.
    let mut stream = live.connect();
    let mut old = hello();
    old[8] = old[8].wrapping_add(1);
    stream.write_all(&old).unwrap();
    let answer = rest(&mut stream);
    assert_eq!((answer.len(), answer[0]), (CHALLENGE, 1));
    assert_eq!(answer[1..5], wire::VERSION.to_le_bytes());
    live.expect_notice("refused: Version");
    live.finish();
}

#[test]
fn garbled_variables_are_named() {
    let good = [
        (env::RANK, "0"),
        (env::SIZE, "2"),
        (env::LOCAL_RANK, "0"),
        (env::LOCAL_SIZE, "2"),
        (env::CONTROL, "unix:@pgas-nobody-listens-here"),
        (
            env::SECRET,
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        ),
        (env::JOB, "0123456789abcdef0123456789abcdef"),
    ];
    let join = |change: &str, to: Option<&str>| {
        Control::from_vars(
            |name| {
                let value = good
                    .iter()
                    .find(|(good, _)| *good == name)
                    .map(|(_, value)| *value);
                if name == change { to } else { value }.map(OsString::from)
            },
            soon(),
        )
    };
    for name in env::ALL {
        for value in [None, Some(""), Some("x"), Some("-1"), Some("99999999999")] {
            let error = join(name, value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Environment, "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
    assert!(
        join(env::RANK, Some("2"))
            .unwrap_err()
            .to_string()
            .contains("PGAS_RANK")
    );
    let error = join("", None).unwrap_err();
    assert!(
        error.to_string().contains("has the launcher ended?"),
        "{error}"
    );
    assert!(Control::from_vars(|_| None, soon()).unwrap().is_none());
}

#[test]
fn replay_is_refused() {
    let live = Live::start("replay");
    // A man in the middle records what a true rank says.
    let between = format!("{}-between", live.name());
    let address = SocketAddr::from_abstract_name(&between).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let mut up = live.connect();
    let recorder = std::thread::spawn(move || {
        let (mut down, _) = listener.accept().unwrap();
        let (mut up2, mut down2) = (up.try_clone().unwrap(), down.try_clone().unwrap());
        let back = std::thread::spawn(move || drop(std::io::copy(&mut up2, &mut down2)));
        let mut said = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = down.read(&mut buffer) {
            said.extend_from_slice(&buffer[..n]);
            up.write_all(&buffer[..n]).unwrap();
        }
        let _ = up.shutdown(std::net::Shutdown::Both);
        back.join().unwrap();
        said
    });
    let mut control = live
        .join(&[(env::CONTROL, &format!("unix:@{between}"))])
        .unwrap()
        .unwrap();
    control.gather(&[2], soon()).unwrap();
    control.leave(soon()).unwrap();
    let said = recorder.join().unwrap();
    let mut stream = live.connect();
    stream.write_all(&said[..HELLO]).unwrap();
    stream.read_exact(&mut [0; CHALLENGE]).unwrap();
    // The launcher may close before it has all, which is as good.
    let _ = stream.write_all(&said[HELLO..]);
    assert_eq!(rest(&mut stream), [2]);
    live.expect_notice("refused: Secret");
    std::fs::write(live.scratch.0.join("done"), "").unwrap();
    let outcome = live.job.join().unwrap();
    assert!(outcome.success(), "{outcome}");
}

#[test]
fn garbage_and_oversize() {
    let live = Live::start("garbage");
    let mut state = 1_u64;
    for length in [1, 47, 48, 49, 1000, 1_000_000] {
        let garbage: Vec<u8> = (0..length)
            .map(|_| random(&mut state).to_be_bytes()[0])
            .collect();
        let mut stream = live.connect();
        // The launcher reads no more than a greeting, so most of this does not arrive.
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = rest(&mut stream);
        assert!(answer.is_empty() || answer[0] == 4, "{answer:?}");
    }
    // What comes after a good greeting is not parsed without the proof.
    let mut stream = live.connect();
    let mut bytes = hello();
    bytes.extend_from_slice(&[0xff; 100]);
    stream.write_all(&bytes).unwrap();
    let answer = rest(&mut stream);
    assert_eq!(answer.len(), CHALLENGE + 1, "{answer:?}");
    assert_eq!((answer[0], answer[CHALLENGE]), (0, 2));
    live.finish();
}

#[test]
fn frames_of_a_member_are_bounded_too() {
    // A rank that has proved itself and then sends a frame of 4 GiB: its own failure, and the job's.
    let live = Live::start("oversize");
    let control = live.join(&[]).unwrap().unwrap();
    let (mut reader, writer) = control.split();
    let raw = std::os::fd::AsFd::as_fd(&reader)
        .try_clone_to_owned()
        .unwrap();
    UnixStream::from(raw).write_all(&[0xff; 64]).unwrap();
    assert!(
        reader
            .next()
            .map_or(true, |message| !matches!(message, Some(ToRank::Joined)))
    );
    drop(writer);
    let outcome = live.job.join().unwrap();
    let failure = outcome.failure.unwrap();
    assert_eq!((failure.rank, outcome.code), (Some(2), 1));
    assert!(
        failure.to_string().contains("frame of 4294967295 bytes"),
        "{failure}"
    );
}

#[test]
fn slow_and_silent_connections_are_closed() {
    let live = Live::start("slow");
    // More than may be in their handshake at a time: some silent, some that send a byte now and then.
    let start = Instant::now();
    let mut streams: Vec<_> = (0..40).map(|_| live.connect()).collect();
    let greeting = hello();
    let mut sent = 0;
    while start.elapsed() < Duration::from_secs(4) {
        for stream in streams.iter_mut().step_by(2) {
            let _ = stream.write_all(&greeting[sent..=sent]);
        }
        sent += 1;
        std::thread::sleep(Duration::from_millis(400));
    }
    live.expect_notice("no handshake within 5s");
    // A true rank waits its turn and gets in.
    live.finish();
    assert!(start.elapsed() < Duration::from_secs(25));
}

#[test]
fn second_member_of_a_rank_is_refused() {
    let live = Live::start("second");
    let mut control = live.join(&[]).unwrap().unwrap();
    for _ in 0..3 {
        let error = live.join(&[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        let words = format!(
            "process {} has already joined the job as rank 2",
            std::process::id()
        );
        assert!(error.to_string().contains(&words), "{error}");
    }
    assert_eq!(control.gather(&[2], soon()).unwrap(), [[0], [1], [2]]);
    control.leave(soon()).unwrap();
    std::fs::write(live.scratch.0.join("done"), "").unwrap();
    assert!(live.job.join().unwrap().success());
}

#[test]
fn split_halves_and_the_end_of_the_job() {
    let live = Live::start("split");
    let control = live.join(&[]).unwrap().unwrap();
    let (mut reader, writer) = control.split();
    let listener = std::thread::spawn(move || {
        let first = reader.next();
        (first, reader.next())
    });
    std::thread::sleep(Duration::from_millis(50));
    writer.failed(7, "the test\nsays so").unwrap();
    let (first, second) = listener.join().unwrap();
    let expected = ToRank::PeerFailed {
        rank: Some(2),
        message: "the test says so".to_owned(),
    };
    assert_eq!(first.unwrap(), Some(expected));
    assert_eq!(second.unwrap(), None);
    let outcome = live.job.join().unwrap();
    assert_eq!(outcome.code, 7);
    assert!(
        outcome.to_string().ends_with(": the test says so"),
        "{outcome}"
    );
}

#[test]
fn interrupt_and_kill_by_handle() {
    let live = Live::start("handle");
    live.handle.interrupt(2);
    let outcome = live.job.join().unwrap();
    assert_eq!(outcome.code, 130);
    assert_eq!(
        outcome.failure.unwrap().cause,
        Cause::Interrupted { signal: 2 }
    );
    // Before it runs, and after it has.
    let mut job = Job::new("sleep").arg("60").ranks(2).output(Output::Null);
    let handle = job.control().unwrap();
    handle.kill();
    let start = Instant::now();
    assert_eq!(job.run().unwrap().code, 137);
    assert!(start.elapsed() < Duration::from_secs(2));
    handle.kill();
}

#[test]
fn jobs_in_many_threads() {
    let threads: Vec<_> = (0..12)
        .map(|number: u32| {
            std::thread::spawn(move || {
                let ranks = 1 + number % 5;
                let job = this_binary(ranks, "join gather:100 print:out leave");
                let outcome = job.output(Output::Capture).label(true).run().unwrap();
                assert!(outcome.success(), "{outcome}: {}", text(&outcome.stderr));
                let out = text(&outcome.stdout);
                for rank in 0..ranks {
                    assert!(out.contains(&format!("[{rank}] out\n")), "{out}");
                }
                let job = Job::new("sh")
                    .args(["-c", "exit $((PGAS_RANK + 1))"])
                    .ranks(1);
                assert_eq!(job.output(Output::Null).run().unwrap().code, 1);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn no_descriptor_is_left_open() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Other tests run in this process: the number must come back to what it was, not stay there.
    let before = count();
    for _ in 0..20 {
        let job = Job::new("true").ranks(4).output(Output::Capture);
        assert!(job.run().unwrap().success());
        assert!(Job::new("no-such-program").ranks(4).run().is_err());
    }
    eventually("descriptors are closed", || count() <= before + 40);
}

#[test]
fn launcher_errors_are_typed() {
    let kind = |job: Job| job.run().unwrap_err().kind();
    assert_eq!(kind(Job::new("no-such-program")), ErrorKind::NotFound);
    assert_eq!(kind(Job::new("/etc/passwd")), ErrorKind::NotExecutable);
    assert_eq!(kind(Job::new("true").ranks(0)), ErrorKind::Usage);
    assert_eq!(kind(Job::new("true").ranks(10_000_000)), ErrorKind::Limit);
    assert_eq!(kind(Job::new("tr\0ue")), ErrorKind::NotExecutable);
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
