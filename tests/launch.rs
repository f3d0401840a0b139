//! Programs under the real `ucxrun`: many ranks with few descriptors (C37), and what a rank
//! sees of the caller (C39).

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::Ranks;
use pgas::{GlobalArray, World};
use std::time::{Duration, Instant};

/// Start, barrier, a put to the next rank, exit.
fn neighbour(world: &World) -> pgas::Result<()> {
    let array = GlobalArray::<u32>::new(world, world.size())?;
    let next = (world.rank() + 1) % world.size();
    array.put(next, world.rank() as u32 + 1)?;
    world.barrier()?;
    let before = (world.rank() + world.size() - 1) % world.size();
    assert_eq!(array.get(world.rank())?, before as u32 + 1);
    Ok(())
}

fn start_many(ranks: usize, descriptors: u64) {
    let started = Instant::now();
    Ranks::new(ranks)
        .timeout(Duration::from_secs(60))
        .run(move |world| {
            use rustix::process::{Resource, Rlimit, setrlimit};
            let limit = Some(descriptors);
            setrlimit(
                Resource::Nofile,
                Rlimit {
                    current: limit,
                    maximum: limit,
                },
            )
            .unwrap();
            neighbour(world)
        });
    let taken = started.elapsed();
    assert!(
        taken < Duration::from_secs(30),
        "{ranks} ranks took {taken:?}"
    );
}

#[test]
fn ranks_8() {
    start_many(8, 64);
}

#[test]
fn ranks_32() {
    start_many(32, 256);
}

#[test]
fn ranks_64() {
    start_many(64, 256);
}

/// A launcher and ranks that have few descriptors from the start: they work, or the limit is named
/// in one line of the launcher's, soon, and no process is left.
#[test]
fn few_descriptors_from_the_start() {
    let good = Ok::<(), &str>(());
    for transports in [None, Some("tcp,self")] {
        for (limits, ranks, of_ranks, expected) in [
            ("-Sn 64", 32, "-Sn 64", good),
            ("-Sn 16", 8, "-Sn 16", good),
            ("-n 64", 4, "-n 64", good),
            (
                "-n 64",
                32,
                "-n 64",
                Err("the hard limit (ulimit -Hn) is 64"),
            ),
            ("-Sn 64", 4, "-n 24", Err("its limit (ulimit -Hn) is 24")),
            ("-Sn 64", 2, "-n 16", Err("its limit (ulimit -Hn) is 16")),
        ] {
            let case = format!("{transports:?}, {ranks} ranks, ulimit {limits}, {of_ranks}");
            let mark = format!("{} {case}", std::process::id());
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &format!("ulimit {limits} && exec \"$0\" \"$@\"")]);
            command
                .arg(std::env::current_exe().unwrap())
                .args(FEW)
                .env("FEW_MARK", &mark)
                .env("FEW_RANKS", ranks.to_string())
                .env("FEW_OF_RANKS", of_ranks)
                .env("PGAS_TIMEOUT", "20");
            if let Some(transports) = transports {
                command.env("UCX_TLS", transports);
            }
            let started = Instant::now();
            let output = command.output().unwrap();
            let text =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let took = started.elapsed();
            assert!(took < Duration::from_secs(30), "{case}: {took:?}: {text}");
            let lines: Vec<&str> = text
                .lines()
                .filter(|line| line.contains("ucxrun: "))
                .collect();
            match expected {
                Ok(()) => {
                    assert!(
                        output.status.success() && lines.is_empty(),
                        "{case}: {text}"
                    );
                    assert_eq!(
                        text.matches("neighbours met").count(),
                        ranks,
                        "{case}: {text}"
                    );
                }
                Err(words) => {
                    assert_eq!(output.status.code(), Some(3), "{case}: {text}");
                    assert!(
                        lines.len() == 1 && lines[0].contains(words),
                        "{case}: {text}"
                    );
                    // UCX has said nothing, and nobody has been killed by it.
                    assert!(
                        !text.contains("UCX ") && !text.contains("signal"),
                        "{case}: {text}"
                    );
                }
            }
            let left = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
                let path = entry.ok()?.path();
                let environment = std::fs::read(path.join("environ")).ok()?;
                let text = String::from_utf8_lossy(&environment).into_owned();
                text.contains(&mark).then_some(path)
            });
            let left: Vec<_> = left.collect();
            assert!(left.is_empty(), "{case}: {left:?}");
        }
    }
}

const FEW: [&str; 5] = [
    "few_descriptors_worker",
    "--exact",
    "--nocapture",
    "--include-ignored",
    "--test-threads=1",
];

/// What `ucxrun` does with its own limit and its ranks'.
#[test]
#[ignore = "started by few_descriptors_from_the_start"]
fn few_descriptors_worker() {
    if std::env::var_os("FEW_RANK").is_some() {
        let done = World::run(|world| -> pgas::Result<()> {
            neighbour(world)?;
            println!("neighbours met");
            Ok(())
        });
        std::process::exit(i32::from(done.is_err()));
    }
    let ranks: u32 = std::env::var("FEW_RANKS").unwrap().parse().unwrap();
    let run = || {
        let open_files = ucxrun::limits::raise(ranks)?;
        let limits = std::env::var("FEW_OF_RANKS").unwrap();
        ucxrun::Job::new("sh")
            .args(["-c", &format!("ulimit {limits} && exec \"$0\" \"$@\"")])
            .arg(std::env::current_exe().unwrap())
            .args(FEW)
            .ranks(ranks)
            .open_files(open_files)
            .env("FEW_RANK", "1")
            .timeout(Duration::from_secs(25))
            .run()
    };
    match run() {
        Ok(outcome) if outcome.success() => {}
        Ok(outcome) => {
            eprintln!("\nucxrun: {outcome}");
            std::process::exit(3);
        }
        Err(error) => {
            eprintln!("\nucxrun: {error}");
            std::process::exit(3);
        }
    }
}

/// Descriptors of a rank do not grow with the ranks, as long as it speaks to few.
#[test]
fn descriptors_of_a_rank() {
    let open = |ranks| {
        let outcome = Ranks::new(ranks).outcome(|world| {
            neighbour(world)?;
            if world.rank() == world.size() - 1 {
                println!(
                    "open: {}",
                    std::fs::read_dir("/proc/self/fd").unwrap().count()
                );
            }
            world.barrier()
        });
        assert!(outcome.success(), "{outcome}");
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let line = text
            .lines()
            .find_map(|line| line.split("open: ").nth(1))
            .unwrap();
        line.parse::<usize>().unwrap()
    };
    // One job a test process; the second in another test would compare nothing.
    let few = open(8);
    assert!(few < 64, "{few} descriptors");
}

/// C21: a launcher that is killed leaves no rank, also of programs behind a shell.
#[test]
fn a_killed_launcher_leaves_no_rank() {
    let place = std::env::temp_dir().join(format!("pgas-test-{}", std::process::id()));
    std::fs::create_dir(&place).unwrap();
    let mut launcher = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "launcher_worker",
            "--exact",
            "--nocapture",
            "--include-ignored",
            "--test-threads=1",
        ])
        .env("LAUNCHER_WORKER", &place)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let pids = loop {
        let pids: Vec<i32> = std::fs::read_dir(&place)
            .unwrap()
            .map(|entry| {
                entry
                    .unwrap()
                    .file_name()
                    .to_str()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        if pids.len() == 4 {
            break pids;
        }
        assert!(Instant::now() < deadline, "the ranks did not start");
        std::thread::sleep(Duration::from_millis(20));
    };
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(3);
    let alive = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state follows the name in parentheses; Z has ended but was not waited for.
        status
            .rsplit(") ")
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    };
    while pids.iter().any(alive) {
        assert!(Instant::now() < deadline, "ranks are left");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_dir_all(&place).unwrap();
}

/// A job of four ranks, two of them behind a shell, that wait in every way until they are ended.
#[test]
#[ignore = "started by a_killed_launcher_leaves_no_rank"]
fn launcher_worker() {
    let place = std::env::var("LAUNCHER_WORKER").unwrap();
    if std::env::var_os("LAUNCHER_WORKER_RANK").is_none() {
        let me = std::env::current_exe().unwrap();
        let outcome = ucxrun::Job::new("sh")
            .args([
                "-c",
                "if [ $PGAS_RANK -lt 2 ]; then \"$0\" \"$@\"; true; else exec \"$0\" \"$@\"; fi",
            ])
            .arg(me)
            .args([
                "launcher_worker",
                "--exact",
                "--nocapture",
                "--include-ignored",
                "--test-threads=1",
            ])
            .ranks(4)
            .output(ucxrun::Output::Null)
            .timeout(Duration::from_secs(60))
            .env("LAUNCHER_WORKER_RANK", "1")
            .run()
            .unwrap();
        panic!("nobody killed this launcher: {outcome}");
    }
    let _ = World::run(|world| {
        let array = GlobalArray::<u64>::new(world, 100)?;
        world.barrier()?;
        let mine = std::path::Path::new(&place).join(std::process::id().to_string());
        std::fs::write(mine, "").unwrap();
        match world.rank() {
            0 => world.barrier(),
            1 => {
                std::thread::sleep(Duration::from_secs(60));
                Ok(())
            }
            2 => loop {
                array.put(99, 1)?;
                array.flush()?;
            },
            _ => loop {
                std::hint::spin_loop();
            },
        }
    });
}

/// Somebody who wants to know hears which transports UCX has chosen, once; nobody else does.
#[test]
fn transports_are_told_to_those_who_ask() {
    for ask in [true, false] {
        let (said, lines) = std::sync::mpsc::channel();
        let mut job = ucxrun::Job::new(std::env::current_exe().unwrap())
            .args(["curious_worker", "--exact", "--nocapture"])
            .args(["--include-ignored", "--test-threads=1"])
            .ranks(3)
            .output(ucxrun::Output::Null)
            .timeout(Duration::from_secs(60))
            .env("CURIOUS_WORKER", "1")
            .notices(move |line| said.send(line.to_owned()).unwrap());
        if ask {
            job = job.env(ucxrun::wire::env::NOTICES, "1");
        }
        let outcome = job.run().unwrap();
        assert_eq!(outcome.code, 0, "{outcome}");
        let lines: Vec<String> = lines.iter().collect();
        let told: Vec<&String> = lines
            .iter()
            .filter(|line| line.contains("network"))
            .collect();
        assert_eq!(told.len(), usize::from(ask), "{lines:?}");
        for line in told {
            assert!(
                line.contains("rank 0: network to rank 1 on host "),
                "{line}"
            );
            // In a job of one machine, whatever it is told to use.
            let transports = match std::env::var("UCX_TLS") {
                Ok(only) if only.starts_with("tcp") => "tcp/",
                _ => "/memory",
            };
            assert!(line.contains(transports), "{line}");
        }
    }
}

#[test]
#[ignore = "started by transports_are_told_to_those_who_ask"]
fn curious_worker() {
    std::env::var("CURIOUS_WORKER").unwrap();
    World::run(|world| world.barrier()).unwrap();
}
