//! Arrays over three hosts and a real network: what works on one machine works there, and a rank that is out of reach
//! is an error that names it, within the launcher's limit.
//!
//! Needs root and `cargo xtask setup`: run by `cargo xtask test --only hosts`.

#[path = "rigs/netns/rig.rs"]
mod rig;

use pgas::{Dist, GlobalArray, GlobalMutex, Op, Signals, Team, World};
use rig::Rig;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Ranks 0, 1 and 2, 3.
const HOSTS: &str = "host1,host2:2,host3";
/// Tells the worker what to do.
const WORKER: &str = "HOSTS_WORKER";
/// What `--lost-after` says, in seconds.
const LOST: u64 = 2;
/// How long ranks between which the link is cut leave it idle, in seconds.
const PAUSE: u64 = 6;

fn up() -> Rig {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    Rig::up(&folder.join("tests/rigs/netns/rig"), 3)
}

fn ucxrun() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.parent().unwrap().parent().unwrap().join("ucxrun")
}

/// This file's worker on the hosts, launched from the first; `trap` is what its shell does before.
fn workers(rig: &Rig, what: &str, options: &[&str], trap: &str) -> Command {
    let mut command = rig.on("host1", ucxrun());
    command
        .args(["--host", HOSTS, "--timeout", "60"])
        .args(options);
    // Whatever transports the tests run over, this is about those that are found here.
    command.env_remove("UCX_TLS").env(WORKER, what);
    let run = format!("{trap}; exec \"$0\" worker --exact --nocapture --test-threads=1");
    command
        .args(["sh", "-c", &run])
        .arg(std::env::current_exe().unwrap());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
#[ignore = "needs the rig"]
fn arrays_work() {
    let rig = up();
    let six = ["-x", "UCX_TCP_AF_PRIO=inet6"];
    for options in [&["-v"][..], &["--net", "eth0"], &["--map", "node"], &six] {
        let what = if options.len() == 2 && options[0] == "--map" {
            "turns"
        } else {
            "blocks"
        };
        let (code, text) = output(&mut workers(&rig, what, options, ":"));
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(text.matches("worked through").count(), 4, "{text}");
        // What UCX has chosen, once, for those who want to hear it.
        let chosen = "ucxrun: rank 0: network to rank 1 on host host2: tcp/eth0\n";
        let told = usize::from(options == ["-v"]);
        assert_eq!(text.matches(chosen).count(), told, "{text}");
        assert_eq!(text.matches("network to rank").count(), told, "{text}");
    }
}

/// Cuts host 3 off while the others do `what`, and returns what they say until the job has ended.
fn cut_during(what: &str) -> String {
    let rig = up();
    let lost = LOST.to_string();
    // They shall have the time to say how their call has ended.
    let mut command = workers(&rig, what, &["--lost-after", &lost], "trap '' TERM");
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while text.matches("under way").count() < 4 {
        assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
    }
    std::thread::sleep(Duration::from_millis(200));
    rig.cut(&["host3"]);
    let cut = Instant::now();
    out.read_to_string(&mut text).unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let status = child.wait().unwrap();
    // The limit, and a second's grace.
    let taken = cut.elapsed();
    assert!(taken < Duration::from_secs(LOST + 3), "{taken:?}: {text}");
    assert_eq!(status.code(), Some(125), "{text}");
    assert!(
        text.contains("ucxrun: host host3: no sign of life for 2s"),
        "{text}"
    );
    rig.join(&["host3"]);
    let (code, again) = output(&mut workers(&rig, "blocks", &[], ":"));
    assert_eq!(code, Some(0), "{again}");
    text
}

#[test]
#[ignore = "needs the rig"]
fn link_cut_during_a_get() {
    let text = cut_during("get");
    // Rank 0 gets from rank 3, and hears who is lost.
    let words = "rank 0: get ended: PeerFailed, rank Some(3)";
    assert!(text.contains(words), "{text}");
}

/// Loses what goes between hosts 2 and 3, whose ranks 2 and 3 do `what`, while the launcher reaches both. The job ends
/// within `limit`, and each of the two says that its get has ended so, naming the other.
fn cut_between_two(what: &str, options: &[&str], limit: Duration, how: &str) {
    let rig = up();
    let mut child = workers(&rig, what, options, "trap '' TERM")
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while text.matches("under way").count() < 4 {
        assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
    }
    std::thread::sleep(Duration::from_millis(200));
    rig.cut(&["host2", "host3"]);
    let cut = Instant::now();
    out.read_to_string(&mut text).unwrap();
    let mut said = child.stderr.take().unwrap();
    said.read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    let taken = cut.elapsed();
    assert!(taken < limit, "{taken:?}: {text}");
    assert_eq!(status.code(), Some(1), "{text}");
    for (rank, other) in [(2, 3), (3, 2)] {
        let words = format!("rank {rank}: get ended: {how}, rank Some({other}): get of index");
        assert!(text.contains(&words), "{words}: {text}");
    }
    let blamed = |rank: usize| {
        text.contains(&format!(
            "ucxrun: rank {rank} on host host{rank}: get of index"
        ))
    };
    assert!(blamed(2) || blamed(3), "{text}");
    assert_eq!(workers_alive(what), [""; 0]);
    rig.join(&["host2", "host3"]);
    let (code, again) = output(&mut workers(&rig, "blocks", &[], ":"));
    assert_eq!(code, Some(0), "{again}");
}

/// TCP goes on sending what nobody answers for longer than a rank waits: the time limit of waits ends it.
#[test]
#[ignore = "needs the rig"]
fn link_cut_between_two_hosts_during_a_get() {
    let options = ["-x", "PGAS_TIMEOUT=4"];
    cut_between_two("between", &options, Duration::from_secs(4 + 3), "Timeout");
}

/// Of a link that is idle when it is cut UCX finds out, and the next get fails at once.
#[test]
#[ignore = "needs the rig"]
fn link_cut_between_two_hosts_before_a_get() {
    let options = [
        "-x",
        "UCX_TCP_KEEPIDLE=1s",
        "-x",
        "UCX_TCP_KEEPINTVL=1s",
        "-x",
        "UCX_TCP_KEEPCNT=2",
    ];
    let limit = Duration::from_secs(PAUSE + 3);
    cut_between_two("between after a pause", &options, limit, "Ucx");
}

#[test]
#[ignore = "needs the rig"]
fn link_cut_during_a_barrier() {
    let text = cut_during("barrier");
    each_hears(&text, "rank 3 failed: host host3: no sign of life for 2s");
}

/// Whatever a rank waits in for one that is out of reach.
#[test]
#[ignore = "needs the rig"]
fn link_cut_during_anything() {
    let text = cut_during("anything");
    for (call, _) in CALLS {
        let words = format!("rank 0: {call} ended: PeerFailed, rank Some(3)");
        assert!(text.contains(&words), "{call}: {text}");
    }
}

/// The barrier of each rank but 3 has failed, for this reason.
fn each_hears(text: &str, reason: &str) {
    for rank in [0, 1, 2] {
        let begin = format!("rank {rank}: barrier ended: PeerFailed, rank Some(3): ");
        let line = text.lines().find(|line| line.contains(&begin));
        assert!(
            line.is_some_and(|line| line.contains(reason)),
            "{rank}: {text}"
        );
    }
}

#[test]
#[ignore = "needs the rig"]
fn killed_rank_on_another_host() {
    let rig = up();
    let (code, text) = output(&mut workers(&rig, "killed", &[], "trap '' TERM"));
    assert_eq!(code, Some(137), "{text}");
    let line = "ucxrun: rank 3 on host host3: killed by signal 9 (SIGKILL)";
    assert!(text.contains(line), "{text}");
    each_hears(&text, "rank 3 failed: killed by signal 9 (SIGKILL)");
}

/// Nobody started these ranks together: rank 0 keeps the job, and finds out that a machine has vanished.
#[test]
#[ignore = "needs the rig"]
fn host_that_vanishes_from_a_job_of_rank_0() {
    let rig = up();
    let mut ranks: Vec<_> = (0..3)
        .map(|rank| {
            let mut command = rig.on(
                &format!("host{}", rank + 1),
                std::env::current_exe().unwrap(),
            );
            command
                .args(["worker", "--exact", "--nocapture", "--test-threads=1"])
                .env_remove("UCX_TLS")
                .env(WORKER, "alone")
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", "3")
                .env("MASTER_ADDR", "host1")
                .env("MASTER_PORT", "7777")
                .env("PGAS_SECRET", "a secret of these tests")
                .env("PGAS_LOST_AFTER", LOST.to_string())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let mut texts = [String::new(), String::new(), String::new()];
    for (rank, text) in ranks.iter_mut().zip(&mut texts) {
        let mut out = BufReader::new(rank.stdout.as_mut().unwrap());
        while !text.contains("under way") {
            assert!(out.read_line(text).unwrap() > 0, "{text}");
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    rig.cut(&["host3"]);
    let cut = Instant::now();
    for (number, (rank, text)) in ranks.iter_mut().zip(&mut texts).enumerate() {
        rank.stdout.take().unwrap().read_to_string(text).unwrap();
        rank.stderr.take().unwrap().read_to_string(text).unwrap();
        let code = rank.wait().unwrap().code();
        // The limit, a probe that comes late, and the grace that ranks have.
        let taken = cut.elapsed();
        assert!(taken < Duration::from_secs(LOST + 5), "{taken:?}: {text}");
        let (right, words) = match number {
            2 => (125, "the launcher is gone"),
            _ => (1, "barrier ended: PeerFailed, rank Some(2): "),
        };
        assert_eq!(code, Some(right), "rank {number}: {text}");
        assert!(text.contains(words), "rank {number}: {text}");
    }
}

/// Processes with `what` as a worker's task in their environment.
fn workers_alive(what: &str) -> Vec<String> {
    let mark = format!("{WORKER}={what}");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let marked = entries.filter(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        environment
            .split(|&byte| byte == 0)
            .any(|one| one == mark.as_bytes())
    });
    marked
        .map(|entry| entry.path().display().to_string())
        .collect()
}

#[test]
#[ignore = "needs the rig"]
fn killed_launcher_leaves_no_rank_and_no_memory() {
    let rig = up();
    let shared = || {
        ["host1", "host2", "host3"].map(|host| {
            let mut list = rig.on(host, "sh");
            output(list.args(["-c", "ls -A /dev/shm; tail -n +2 /proc/sysvipc/shm"])).1
        })
    };
    let before = shared();
    for signal in ["KILL", "INT"] {
        let what = format!("barrier, then {signal}");
        let mut child = workers(&rig, &what, &[], "trap '' TERM").spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        while text.matches("under way").count() < 4 {
            assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
        }
        assert!(workers_alive(&what).len() >= 4);
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
        let ended = Instant::now();
        while !workers_alive(&what).is_empty() {
            let left = workers_alive(&what);
            assert!(
                ended.elapsed() < Duration::from_secs(3),
                "{signal}: {left:?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait().unwrap();
        assert_eq!(shared(), before, "{signal}");
    }
}

#[test]
#[ignore = "needs the rig"]
fn host_without_the_library() {
    let rig = up();
    // Hides UCX from host 2 alone.
    let hide = "for lib in $(ldconfig -p | grep -o '/[^ ]*libucp.so.0$'); do \
         mount --bind /dev/null $lib || exit 1; done";
    let status = rig.on("host2", "sh").args(["-c", hide]).status().unwrap();
    assert!(status.success());
    let began = Instant::now();
    let mut command = workers(&rig, "blocks", &[], ":");
    command.env_remove("LD_LIBRARY_PATH");
    let (code, text) = output(&mut command);
    assert!(began.elapsed() < Duration::from_secs(10), "{text}");
    assert_eq!(code, Some(127), "{text}");
    assert!(
        text.contains("on host host2: exited with code 127"),
        "{text}"
    );
    assert!(text.contains("libucp.so.0"), "{text}");
}

#[test]
#[ignore = "needs the rig"]
fn slow_network() {
    let rig = up();
    rig.slow("host3", "2mbit");
    // Signs of life come through beside the data.
    let (code, text) = output(&mut workers(&rig, "bulk", &["--lost-after", "2"], ":"));
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches("worked through").count(), 4, "{text}");
}

#[test]
#[ignore = "needs the rig"]
fn ranks_kept_apart() {
    let rig = up();
    for wrap in [
        "unshare --user --map-root-user",
        "unshare --ipc",
        "unshare --pid --fork",
    ] {
        let (code, text) = output(&mut workers(&rig, "bulk", &["--wrap", wrap], ":"));
        assert_eq!(code, Some(0), "{wrap}: {text}");
        assert_eq!(text.matches("worked through").count(), 4, "{wrap}: {text}");
    }
}

#[test]
#[ignore = "needs the rig"]
fn what_ranks_have_done() {
    let rig = up();
    let prefix = std::env::temp_dir().join(format!("hosts-stats-{}", std::process::id()));
    let option = format!("--stats={}", prefix.display());
    let (code, text) = output(&mut workers(&rig, "bulk", &[&option], ":"));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1.0 MiB"), "{text}");
    let file = |end: &str| PathBuf::from(format!("{}{end}", prefix.display()));
    let json = std::fs::read_to_string(file(".json")).unwrap();
    let from_host_3 = "{\"with\": 3, \"operations\": 1, \"bytes\": 1048576}";
    assert!(json.contains(from_host_3), "{json}");
    for end in [".json", ".svg"] {
        std::fs::remove_file(file(end)).unwrap();
    }
}

#[test]
fn worker() {
    // Not a test: what the ranks of others do.
    let Ok(what) = std::env::var(WORKER) else {
        return;
    };
    let run = World::run(|world| {
        match &*what {
            "blocks" => work(world, &[&[0], &[1, 2], &[3]])?,
            "turns" => work(world, &[&[0], &[1, 3], &[2]])?,
            "bulk" => bulk(world)?,
            "anything" => {
                call_everything(world);
                // Until the launcher ends it.
                std::thread::sleep(Duration::from_secs(60));
            }
            "alone" => alone(world)?,
            "between" | "between after a pause" => between(world, &what)?,
            what => wait(world, what),
        }
        println!("worked through");
        Ok::<_, pgas::Error>(())
    });
    if let Err(error) = run {
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

fn work(world: &World, hosts: &[&[usize]]) -> pgas::Result<()> {
    let me = world.rank();
    let mine = hosts.iter().find(|ranks| ranks.contains(&me)).unwrap();
    // Ranks of a host share memory, and no others do.
    assert_eq!(world.node_ranks(), *mine);
    let sum = world.all_reduce(me as u64, Op::Sum)?;
    assert_eq!(sum, 6);
    for dist in [Dist::Block, Dist::Cyclic] {
        let array = GlobalArray::<u64>::builder(world, 4_000)
            .dist([dist])
            .build()?;
        world.barrier()?;
        for index in (me..4_000).step_by(4 * 37) {
            array.put(index, index as u64 + 1)?;
            array.fetch_add(index, 10)?;
        }
        world.barrier()?;
        let indices: Vec<usize> = (0..4_000).collect();
        let right = |index: usize| {
            if index % 148 < 4 {
                index as u64 + 11
            } else {
                0
            }
        };
        for (index, value) in array.gather(&indices)?.into_iter().enumerate() {
            assert_eq!(value, right(index), "{index}");
        }
        assert_eq!(
            array.get((me * 148 + 148) % 4_000)?,
            right((me * 148 + 148) % 4_000)
        );
        world.barrier()?;
        array.close()?;
    }
    let (values, _) = world.sendrecv((me + 1) % 4, (me + 3) % 4, 1, &vec![me; 50_000])?;
    assert!(values.iter().all(|&value| value == (me + 3) % 4));
    world.barrier()
}

/// A megabyte from host 3, which takes longer than a host may be silent.
fn bulk(world: &World) -> pgas::Result<()> {
    let array = GlobalArray::<u64>::from_fn(world, 4 << 17, |index| index as u64)?;
    if world.rank() == 0 {
        let values = array.get_range(3 << 17..4 << 17)?;
        assert!(
            values
                .iter()
                .zip(3_u64 << 17..)
                .all(|(&value, right)| value == right)
        );
    }
    world.barrier()
}

/// What ranks 0 and 3 have in common, which rank 3 does nothing with.
struct Shared {
    array: GlobalArray<u64>,
    teams: [Team; 5],
    signals: Signals,
    mutex: GlobalMutex,
}

type Call = fn(&World, &Shared) -> pgas::Result<()>;
/// Calls that rank 0 makes again and again until one fails.
const CALLS: &[(&str, Call)] = &[
    ("put", |_, shared| {
        shared.array.put(399, 1)?;
        shared.array.flush()
    }),
    ("fetch_add", |_, shared| {
        shared.array.fetch_add(398, 1).map(drop)
    }),
    ("gather", |_, shared| {
        shared.array.gather(&[301, 17, 399]).map(drop)
    }),
    ("scatter_with", |_, shared| {
        shared.array.scatter_with(&[302, 397], &[1, 2], Op::Sum)
    }),
    ("get_range", |_, shared| {
        shared.array.get_range(290..400).map(drop)
    }),
    ("wait_until", |_, shared| {
        shared.array.wait_until(350, |&value| value == 1).map(drop)
    }),
    ("send", |world, _| world.send(3, 1, &vec![1_u64; 1 << 18])),
    ("recv", |world, _| world.recv::<u8>(3, 2).map(drop)),
    ("irecv", |world, _| {
        world.irecv::<u8>(3, 3)?.wait().map(drop)
    }),
    ("signal", |_, shared| {
        shared.signals.wait(0, |value| value > 0).map(drop)
    }),
    ("mutex", |_, shared| shared.mutex.lock()?.unlock()),
    ("all_reduce", |_, shared| {
        shared.teams[0].all_reduce_slice(&mut vec![1.5; 20_000], Op::Sum)
    }),
    ("broadcast", |_, shared| {
        shared.teams[1].broadcast_slice(3, &mut vec![1.5; 200_000])
    }),
    ("ibarrier", |_, shared| shared.teams[2].ibarrier()?.wait()),
    ("split", |_, shared| shared.teams[3].split(0, 0).map(drop)),
    ("new", |_, shared| {
        GlobalArray::<u8>::new(&shared.teams[4], 100).map(drop)
    }),
];

/// All of these at once, each by a thread of rank 0.
fn call_everything(world: &World) {
    let team = || world.split(0, 0).unwrap();
    let shared = Shared {
        array: GlobalArray::new(world, 400).unwrap(),
        teams: [team(), team(), team(), team(), team()],
        signals: Signals::new(world, 1).unwrap(),
        mutex: GlobalMutex::new(world).unwrap(),
    };
    if world.rank() == 3 {
        std::mem::forget(shared.mutex.lock().unwrap());
    }
    world.barrier().unwrap();
    println!("under way");
    if world.rank() != 0 {
        std::thread::sleep(Duration::from_secs(60));
    }
    std::thread::scope(|scope| {
        for &(call, make) in CALLS {
            let shared = &shared;
            scope.spawn(move || {
                let error = loop {
                    if let Err(error) = make(world, shared) {
                        break error;
                    }
                };
                say_how(0, call, &error);
            });
        }
    });
}

fn say_how(rank: usize, call: &str, error: &pgas::Error) {
    println!(
        "rank {rank}: {call} ended: {:?}, rank {:?}: {error}",
        error.kind(),
        error.peer()
    );
}

/// A barrier that rank 2 does not come to.
fn alone(world: &World) -> pgas::Result<()> {
    world.barrier()?;
    println!("under way");
    if world.rank() == 2 {
        std::thread::sleep(Duration::from_secs(60));
    }
    world
        .barrier()
        .inspect_err(|error| say_how(world.rank(), "barrier", error))
}

/// Ranks 2 and 3 get from each other until that fails, which they say and end with; the others wait for them.
fn between(world: &World, what: &str) -> pgas::Result<()> {
    let (me, array) = (world.rank(), GlobalArray::<u64>::new(world, 400)?);
    // Of the other.
    let index = if me == 2 { 399 } else { 299 };
    if me >= 2 {
        array.get(index)?;
    }
    world.barrier()?;
    println!("under way");
    if me < 2 {
        return world.barrier();
    }
    if what != "between" {
        std::thread::sleep(Duration::from_secs(PAUSE));
    }
    let error = loop {
        if let Err(error) = array.get(index) {
            break error;
        }
    };
    say_how(me, "get", &error);
    // So that the other has the time to say it, too.
    std::thread::sleep(Duration::from_millis(500));
    Err(error)
}

/// Waits until something goes wrong, and says what; the job is ended then.
fn wait(world: &World, what: &str) {
    let me = world.rank();
    let array = GlobalArray::<u64>::new(world, 400).unwrap();
    world.barrier().unwrap();
    println!("under way");
    let (call, error) = match (what, me) {
        ("get", 0) => loop {
            if let Err(error) = array.get(399) {
                break ("get", error);
            }
        },
        ("killed", 3) => {
            std::thread::sleep(Duration::from_millis(200));
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
            unreachable!();
        }
        (_, 3) => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        _ => ("barrier", world.barrier().unwrap_err()),
    };
    say_how(me, call, &error);
    // Until the launcher ends it.
    std::thread::sleep(Duration::from_secs(60));
}
