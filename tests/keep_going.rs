//! `ucxrun --keep-going`: a rank fails, the others go on. What can only end with it ends, and says so; nothing else does.

use pgas::{Any, ErrorKind, GlobalArray, GlobalMutex, Op, Result, Signals, Team, World};
use std::time::{Duration, Instant};

/// The rank that fails.
const LOST: usize = 3;
/// A worker's task.
const WORKER: &str = "KEEP_GOING_WORKER";

/// A job of four ranks, of which rank 3 does `what`: its code, and what ranks have written.
fn job(what: &str) -> (i32, String) {
    let began = Instant::now();
    let outcome = ucxrun::Job::new(std::env::current_exe().unwrap())
        .args(["worker", "--exact", "--nocapture"])
        .args(["--include-ignored", "--test-threads=1"])
        .ranks(4)
        .keep_going(true)
        .output(ucxrun::Output::Capture)
        .timeout(Duration::from_secs(60))
        .env(WORKER, what)
        .run()
        .unwrap();
    let text = [&outcome.stdout[..], &outcome.stderr[..]].concat();
    let text = format!("{outcome}\n{}", String::from_utf8_lossy(&text));
    // None has waited for a time limit.
    assert!(began.elapsed() < Duration::from_secs(30), "{text}");
    (outcome.code, text)
}

#[test]
fn others_go_on_without_a_rank_that_is_killed() {
    let (code, text) = job("kill");
    assert_eq!(code, 137, "{text}");
    assert!(text.contains("rank 3 on host"), "{text}");
    assert_eq!(text.matches("ended well").count(), 3, "{text}");
}

#[test]
fn others_go_on_without_a_rank_that_panics() {
    let (code, text) = job("panic");
    assert_eq!(code, 101, "{text}");
    assert!(text.contains("out of cheese"), "{text}");
    assert_eq!(text.matches("ended well").count(), 3, "{text}");
}

/// One that has not come yet keeps the others from starting.
#[test]
fn none_starts_without_a_rank_that_exits() {
    let (code, text) = job("exit");
    assert_eq!(code, 7, "{text}");
    let words = "PeerFailed, rank Some(3): joining the job";
    assert_eq!(text.matches(words).count(), 3, "{text}");
}

#[test]
#[ignore = "started by the others"]
fn worker() {
    let what = std::env::var(WORKER).unwrap();
    if what == "exit" && std::env::var("PGAS_RANK").unwrap() == LOST.to_string() {
        std::process::exit(7);
    }
    let run = World::run(|world| {
        let shared = Shared::new(world)?;
        world.barrier()?;
        match (world.rank(), &*what) {
            (LOST, "kill") => {
                // While some wait for it already, and others do not yet.
                std::thread::sleep(Duration::from_millis(200));
                let me = rustix::process::getpid();
                rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
                unreachable!();
            }
            (LOST, _) => panic!("out of cheese"),
            (rank, _) => go_on(world, &shared, rank)?,
        }
        Ok::<_, pgas::Error>(())
    });
    match run {
        Ok(()) => println!("ended well"),
        Err(error) => {
            println!("{:?}, rank {:?}: {error}", error.kind(), error.peer());
            std::process::exit(1);
        }
    }
    std::process::exit(0);
}

/// What ranks have in common.
struct Shared {
    /// Of all.
    array: GlobalArray<u64>,
    signals: Signals,
    mutex: GlobalMutex,
    /// Without the rank that fails.
    team: Team,
    of_team: GlobalArray<u64>,
}

impl Shared {
    fn new(world: &World) -> Result<Self> {
        let team = world.split(usize::from(world.rank() == LOST), 0)?;
        let shared = Self {
            array: GlobalArray::new(world, 400)?,
            signals: Signals::new(world, 1)?,
            mutex: GlobalMutex::new(world)?,
            of_team: GlobalArray::from_fn(&team, 300, |index| index as u64)?,
            team,
        };
        if world.rank() == LOST {
            std::mem::forget(shared.mutex.lock()?);
        }
        Ok(shared)
    }
}

fn go_on(world: &World, shared: &Shared, rank: usize) -> Result<()> {
    let Shared { team, of_team, .. } = shared;
    fn ended<R>(call: &str, result: Result<R>) {
        let error = result.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerFailed, "{call}: {error}");
        assert_eq!(error.peer(), Some(LOST), "{call}: {error}");
    }
    // Each begins with another wait for the rank that fails, and makes all of them.
    let calls: [&dyn Fn(); 9] = [
        &|| ended("barrier", world.barrier()),
        &|| ended("recv", world.recv::<u8>(LOST, 1)),
        &|| {
            ended(
                "wait_until",
                shared.array.wait_until(rank * 100, |&value| value == 1),
            )
        },
        &|| ended("recv from any", world.recv::<u8>(Any, 2)),
        &|| {
            ended(
                "irecv",
                world
                    .irecv::<u8>(LOST, 3)
                    .and_then(|received| received.wait()),
            )
        },
        &|| ended("signal", shared.signals.wait(0, |value| value > 0)),
        &|| ended("mutex", shared.mutex.lock()),
        &|| ended("all_reduce", world.all_reduce(1_u64, Op::Sum)),
        &|| ended("probe", world.probe(LOST, 4)),
    ];
    for turn in 0..calls.len() {
        calls[(turn + rank) % calls.len()]();
    }
    ended("send", world.send(LOST, 5, &[1_u8]));
    ended(
        "ibarrier",
        world.ibarrier().and_then(|barrier| barrier.wait()),
    );
    if !world.node_ranks().contains(&LOST) {
        ended("get", shared.array.get(LOST * 100));
        ended(
            "get_range",
            shared.array.get_range(LOST * 100..LOST * 100 + 90),
        );
        ended("gather", shared.array.gather(&[LOST * 100, 1]));
        ended("fetch_add", shared.array.fetch_add(LOST * 100, 1));
    }
    // All else goes on.
    let next = (rank + 1) % LOST;
    for round in 0..100_u64 {
        assert_eq!(
            team.all_reduce(rank as u64 + round, Op::Sum)?,
            3 + 3 * round
        );
        assert_eq!(of_team.get(next * 100 + 5)?, (next * 100 + 5) as u64);
        world.send(next, 7, &[round])?;
        let (values, _) = world.recv::<u64>((rank + 2) % LOST, 7)?;
        assert_eq!(values, [round]);
        let (values, _) = team.sendrecv(next, Any, 8, &[round; 10_000])?;
        assert_eq!(values, [round; 10_000]);
    }
    shared.array.put(next * 100 + 50, 8)?;
    let all: Vec<usize> = (0..300).collect();
    assert!(of_team.gather(&all)?.into_iter().eq(0..300));
    team.barrier()
}
