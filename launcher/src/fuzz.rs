//! Damaged bytes and texts for every decoder of this crate; see `tests/fuzz/mutate.rs`.

use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};

use crate::agent::link;
use crate::agent::remote::Hello;
use crate::agent::wire::{
    Branch, Brief, Failing, FromAgent, HELLO as HELLO_OF_AGENT, Remote, ToAgent, VERSION_DIGITS,
};
use crate::allocation;
use crate::auth::{CHALLENGE, Greeting, HELLO, PROOF, Secret, Step, introduce};
use crate::bind::Bind;
use crate::hosts;
use crate::output::Stream;
use crate::plan::{App, Plan, Surroundings};
use crate::process::Exit;
use crate::wire::{
    self, Frames, MAX_TO_LAUNCHER, MAX_TO_RANK, RankStats, ToLauncher, ToRank, Traffic,
};

#[path = "../../tests/fuzz/mutate.rs"]
#[expect(clippy::print_stdout, reason = "says how much it has tried")]
mod mutate;
use mutate::fuzz;

fn corpus(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    folder.join(name)
}

/// Cuts `bytes` into frames as they come, in pieces; a message that is read must be written as it is read.
fn frames<T: Serialize + DeserializeOwned>(bytes: &[u8], limit: usize) {
    let mut frames = Frames::default();
    for piece in bytes.chunks(7) {
        frames.push(piece);
        while let Ok(Some(message)) = frames.next::<T>(limit) {
            let again = wire::frame(&message, limit).unwrap();
            let mut frames = Frames::default();
            frames.push(&again);
            let message = frames.next::<T>(limit).unwrap().unwrap();
            assert_eq!(wire::frame(&message, limit).unwrap(), again);
        }
    }
}

#[test]
fn frames_of_ranks() {
    let identity = vec![1; 40];
    let seeds = [
        ToLauncher::Join {
            rank: 3,
            pid: 77,
            host: "node".to_owned(),
            identity,
        },
        ToLauncher::Gather {
            round: 2,
            blob: vec![9; 300],
        },
        ToLauncher::WhoIsMissing { round: 1 },
        ToLauncher::Leave,
        ToLauncher::Failed {
            code: 101,
            message: "boom".to_owned(),
        },
        ToLauncher::Doing {
            what: "barrier".to_owned(),
        },
        ToLauncher::Notice {
            text: "network".to_owned(),
        },
        ToLauncher::Stats(RankStats {
            traffic: vec![Traffic {
                rank: 1,
                operations: 300,
                bytes: 70_000,
            }],
            waited: std::time::Duration::from_micros(5),
        }),
    ];
    let seeds = seeds.map(|seed| wire::frame(&seed, MAX_TO_LAUNCHER).unwrap().to_vec());
    fuzz(&corpus("to-launcher"), seeds.into(), |bytes| {
        frames::<ToLauncher>(bytes, MAX_TO_LAUNCHER);
    });
}

#[test]
fn frames_of_launchers() {
    let message = "killed".to_owned();
    let seeds = [
        ToRank::Joined,
        ToRank::Refused {
            reason: "no".to_owned(),
        },
        ToRank::Gathered {
            round: 1,
            blobs: vec![vec![1; 30], Vec::new(), vec![2; 400]],
        },
        ToRank::Missing {
            round: 1,
            ranks: vec![0, 300, 70_000],
        },
        ToRank::PeerFailed {
            rank: Some(3),
            message,
        },
        ToRank::PeerLost {
            rank: 300,
            message: "exited".to_owned(),
        },
        ToRank::Goodbye,
        ToRank::Report,
    ];
    let seeds = seeds.map(|seed| wire::frame(&seed, MAX_TO_RANK).unwrap().to_vec());
    fuzz(&corpus("to-rank"), seeds.into(), |bytes| {
        frames::<ToRank>(bytes, MAX_TO_RANK);
    });
}

fn channel<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let mut frames = Frames::default();
    frames.push(bytes);
    while let Ok(Some(frame)) = frames.next_frame(1 << 20) {
        let host = link::host_of(&frame);
        if let Ok(message) = link::message::<T>(&frame) {
            let again = link::frame(host, &message).unwrap();
            assert_eq!(link::host_of(&again), host);
            link::message::<T>(&again).unwrap();
        }
    }
}

fn seeds<T: Serialize>(messages: impl IntoIterator<Item = T>) -> Vec<Vec<u8>> {
    let frame = |message| link::frame(5, &message).unwrap().to_vec();
    messages.into_iter().map(frame).collect()
}

#[test]
fn channel_to_agents() {
    let app = App {
        program: "./p".into(),
        args: vec!["a b".into(), "".into()],
        ranks: 4,
        env: vec![("A".into(), "b".into())],
    };
    let plan = Plan {
        apps: vec![app],
        env: Vec::new(),
        wrap: vec!["gdb".into()],
        wrap_rank: Some(1),
    };
    let brief = Brief {
        secret: [7; 32],
        job: [8; 16],
        plan,
        surroundings: Surroundings::here(None).unwrap(),
        bind: Bind::List(vec![vec![0, 1], vec![2]]),
        stdin: Some(0),
        output: true,
        network: Some("eth0".to_owned()),
    };
    let remote = Remote {
        command: vec!["ssh".into()],
        program: "/usr/bin/ucxrun".into(),
        direct: Some(0),
        fan_out: 64,
        silence: std::time::Duration::from_secs(10),
    };
    let hosts = vec![(1, "a".to_owned()), (2, "b".to_owned())];
    let messages = [
        ToAgent::Grow(Branch { hosts, remote }),
        ToAgent::Job(Box::new(brief)),
        ToAgent::Ranks(vec![0, 5]),
        ToAgent::Frame {
            rank: Some(1),
            frame: vec![1; 90],
        },
        ToAgent::Close(4),
        ToAgent::Signal {
            signal: 15,
            wake: true,
            ranks: Some(vec![1, 2]),
        },
        ToAgent::Taken(70_000),
        ToAgent::CloseOutput(Stream::Stderr),
        ToAgent::Input(vec![b'x'; 100]),
        ToAgent::EndOfInput,
        ToAgent::Look,
        ToAgent::Finish,
    ];
    fuzz(&corpus("to-agent"), seeds(messages), channel::<ToAgent>);
}

#[test]
fn channel_from_agents() {
    let host = "node".to_owned();
    let messages = [
        FromAgent::Ready {
            host,
            networks: vec!["eth0 10.0.0.1".to_owned()],
            cores: 8,
        },
        FromAgent::Cannot {
            kind: Failing::NotFound,
            message: "p: no such".to_owned(),
        },
        FromAgent::Started {
            rank: 1,
            pid: 2,
            bound: Some("0-3".to_owned()),
        },
        FromAgent::Joined { rank: 1, pid: 2 },
        FromAgent::Frame {
            rank: 1,
            frame: vec![2; 200],
        },
        FromAgent::Closed(1),
        FromAgent::Broke {
            rank: 1,
            what: "odd".to_owned(),
        },
        FromAgent::Exited {
            rank: 1,
            exit: Exit::Signal {
                signal: 9,
                core_dumped: true,
            },
        },
        FromAgent::Output {
            rank: 1,
            stream: Stream::Stdout,
            bytes: vec![b'y'; 99],
        },
        FromAgent::OutputEnded {
            rank: 1,
            stream: Stream::Stderr,
        },
        FromAgent::InputTaken(4096),
        FromAgent::InputClosed,
        FromAgent::Notice("refused".to_owned()),
        FromAgent::Doing {
            rank: 1,
            what: "running".to_owned(),
        },
        FromAgent::Lost {
            reason: "gone".to_owned(),
        },
        FromAgent::Done,
    ];
    fuzz(&corpus("from-agent"), seeds(messages), channel::<FromAgent>);
}

#[test]
fn greetings() {
    /// A launcher whose bytes are given.
    struct Given<'a>(&'a [u8]);
    impl std::io::Read for Given<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer)
        }
    }
    impl std::io::Write for Given<'_> {
        fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
            Ok(buffer.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut hello = b"pgas-ctl".to_vec();
    hello.extend(wire::VERSION.to_le_bytes());
    hello.extend(vec![0; HELLO + PROOF]);
    fuzz(
        &corpus("greeting"),
        vec![hello, vec![0; CHALLENGE + 1]],
        |bytes| {
            let secret = Secret::from_bytes([5; 32]);
            let mut greeting = Greeting::new(secret.clone(), [6; 16], 3);
            let mut rest = bytes;
            while let Some((step, after)) = rest.split_at_checked(greeting.wants()) {
                rest = after;
                match greeting.step(step).unwrap() {
                    Step::Challenge(_) => {}
                    Step::Refuse(..) => break,
                    Step::Welcome(..) => panic!("nobody knows the secret"),
                }
            }
            assert!(introduce(&mut Given(bytes), &secret, [6; 16], 1, &[]).is_err());
        },
    );
}

#[test]
fn host_lists_and_files() {
    fuzz(&corpus("hosts"), Vec::new(), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        for hosts in [hosts::parse_list(&text), hosts::parse_file(&text)]
            .into_iter()
            .flatten()
        {
            assert!(!hosts.is_empty());
            for host in &hosts {
                assert!(host.slots > 0 && !host.name.is_empty() && !host.name.starts_with('-'));
                assert!(!host.name.contains(char::is_whitespace));
            }
            for map in [hosts::Map::Slot, hosts::Map::Node] {
                if let Ok(places) = hosts::place(&hosts, Some(50), map) {
                    let mut ranks: Vec<u32> =
                        places.into_iter().flat_map(|place| place.ranks).collect();
                    ranks.sort_unstable();
                    assert!(ranks.into_iter().eq(0..50));
                }
            }
        }
        // Ranges of processors come from the same hands.
        let _ = text.parse::<Bind>();
    });
}

#[test]
fn greetings_of_agents() {
    fuzz(&corpus("agent-hello"), Vec::new(), |bytes| {
        let Some(hello) = Hello::find(bytes) else {
            return;
        };
        let length = HELLO_OF_AGENT.len() + VERSION_DIGITS + 1;
        assert_eq!(hello.before.len() + length + hello.rest.len(), bytes.len());
        // More that comes changes nothing of it.
        let more = [bytes, b"\n"].concat();
        let again = Hello::find(&more).unwrap();
        assert_eq!((again.before, again.version), (hello.before, hello.version));
    });
}

#[test]
fn allocations_of_slurm() {
    fuzz(&corpus("slurm"), Vec::new(), |bytes| {
        allocation::digest(&String::from_utf8_lossy(bytes));
    });
}
