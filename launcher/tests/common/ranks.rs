//! Ranks as `pgas` will make them: the test binary itself, run again under `ucxrun`, does what a script says.
//!
//! A script is words: `join`, `gather:BYTES`, `leave`, `fail:CODE:TEXT`, `exit:CODE`, `sleep:MILLIS`, `kill:SIGNAL`,
//! `print:TEXT`, `sh:COMMAND` (with `_` for space), `forever`. Rank N runs `SCRIPT_N` if that is set, else `SCRIPT`.

use std::process::{Command, exit};
use std::time::{Duration, Instant};

use ucxrun::{Control, ControlWriter};

/// The launcher with `ranks` of this test binary. The binary must have a test `rank` that calls [`play`].
pub fn ucxrun_script(options: &[&str], ranks: u32, script: &str) -> Command {
    let mut command = super::ucxrun(["-n", &ranks.to_string()]);
    command.args(options).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "rank", "--ignored", "--nocapture", "--quiet"]);
    command.env("SCRIPT", script);
    command
}

/// What a rank does; does not return.
pub fn play() {
    let rank = std::env::var("PGAS_RANK").unwrap();
    let own = std::env::var(format!("SCRIPT_{rank}"));
    let script = own.or(std::env::var("SCRIPT")).unwrap();
    let mut player = Player::default();
    for word in script.split_whitespace() {
        player.act(word);
    }
    exit(0);
}

#[derive(Default)]
struct Player {
    control: Option<Control>,
    writer: Option<ControlWriter>,
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

impl Player {
    fn act(&mut self, word: &str) {
        let (verb, rest) = word.split_once(':').unwrap_or((word, ""));
        let text = rest.replace('_', " ");
        match verb {
            "join" => match Control::from_env() {
                Ok(control) => self.control = control,
                Err(error) => {
                    eprintln!("join: {error}");
                    exit(44);
                }
            },
            "gather" => self.gather(rest.parse().unwrap(), soon()),
            "gather-soon" => {
                self.gather(
                    rest.parse().unwrap(),
                    Instant::now() + Duration::from_millis(300),
                );
            }
            "leave" => {
                if let Err(error) = self.control.take().unwrap().leave(soon()) {
                    eprintln!("leave: {error}");
                    exit(45);
                }
            }
            "close" => drop(self.control.take()),
            "fail" => {
                let (code, message) = text.split_once(':').unwrap();
                if let Some(control) = self.control.take() {
                    let (reader, writer) = control.split();
                    std::mem::forget(reader);
                    self.writer = Some(writer);
                }
                self.writer
                    .as_ref()
                    .unwrap()
                    .failed(code.parse().unwrap(), message)
                    .unwrap();
            }
            "exit" => exit(rest.parse().unwrap()),
            "sleep" => std::thread::sleep(Duration::from_millis(rest.parse().unwrap())),
            "forever" => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            "kill" => super::kill(std::process::id(), rest),
            "segment" => std::fs::write(rest, format!("{}\n", segment())).unwrap(),
            "abort" => std::process::abort(),
            "print" => println!("{text}"),
            "sh" => {
                Command::new("sh").args(["-c", &text]).status().unwrap();
            }
            _ => panic!("no such word: {word}"),
        }
    }

    /// Rank r contributes `bytes` times the byte r.
    fn gather(&mut self, bytes: usize, deadline: Instant) {
        let control = self.control.as_mut().unwrap();
        let blob = vec![u8::try_from(control.rank() % 256).unwrap(); bytes];
        match control.gather(&blob, deadline) {
            Ok(blobs) => {
                assert_eq!(blobs.len(), control.size() as usize);
                for (rank, blob) in blobs.iter().enumerate() {
                    assert!(
                        blob.len() == bytes && blob.iter().all(|&b| usize::from(b) == rank % 256)
                    );
                }
            }
            Err(error) => {
                eprintln!("gather: {:?}: {error}", error.kind());
                exit(46);
            }
        }
    }
}

/// Makes a segment as UCX does when it starts, and returns its number.
#[expect(unsafe_code, reason = "System V shared memory has no safe wrapper")]
fn segment() -> i32 {
    let page = rustix::param::page_size();
    // SAFETY: no memory of ours is involved.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, page, libc::IPC_CREAT | 0o600) };
    assert!(id >= 0, "{}", std::io::Error::last_os_error());
    id
}
