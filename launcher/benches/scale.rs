//! What the start of a large job costs, without a cluster: 64 pretended hosts with real agents, and up to 64 ranks on each
//! that speak to their launcher as ranks of pgas do, without UCX. `cargo bench -p ucxrun --bench scale [RANKS A HOST]…`.
//!
//! Rank 0 is a process that keeps what it gathers, as a rank does. The ranks of a host are played by one of its processes;
//! the others only wait for their end. So 4,096 ranks fit a small machine. Fails if something grows faster than it may.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ucxrun::wire::{ToLauncher, ToRank, env};
use ucxrun::{Control, ControlReader, ControlWriter};

const HOSTS: u32 = 64;
/// What the library gathers: identities, addresses and keys, whether memory could be mapped, second addresses.
const BLOBS: [usize; 4] = [250, 200, 1, 120];
/// Memory that must be free, in MiB.
const ROOM: u64 = 6 << 10;
const DEADLINE: Duration = Duration::from_secs(300);

fn main() {
    if std::env::var_os(env::RANK).is_some() {
        return rank();
    }
    let words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut sizes: Vec<u32> = words
        .map(|word| word.parse().expect("ranks of a host"))
        .collect();
    if sizes.is_empty() {
        sizes = vec![1, 4, 16, 64];
    }
    let free = field("/proc/meminfo", "MemAvailable:") >> 10;
    assert!(
        free > ROOM,
        "{free} MiB of memory are free, {ROOM} are needed"
    );
    println!(
        "{:>6} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8}",
        "ranks", "time", "launcher", "sent", "received", "launcher", "agent", "rank 0", "a rank"
    );
    println!(
        "{:>6} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8}",
        "", "s", "cpu s", "MiB", "MiB", "MiB", "MiB", "MiB", "bytes"
    );
    let costs: Vec<Cost> = sizes.iter().map(|&ranks| measure(ranks)).collect();
    for pair in costs.windows(2) {
        pair[1].check_against(&pair[0]);
    }
}

/// Of one job.
struct Cost {
    ranks: u32,
    time: f64,
    cpu: f64,
    sent: f64,
    received: f64,
    launcher: f64,
    agent: f64,
    rank: f64,
}

impl Cost {
    /// More ranks by some factor may cost so much more, and a half besides for noise.
    fn check_against(&self, fewer: &Self) {
        let factor = f64::from(self.ranks) / f64::from(fewer.ranks);
        for (what, cost, before, floor) in [
            ("the launcher's processor time", self.cpu, fewer.cpu, 0.2),
            ("bytes sent by the launcher", self.sent, fewer.sent, 1.0),
            (
                "bytes received by the launcher",
                self.received,
                fewer.received,
                1.0,
            ),
            ("the launcher's memory", self.launcher, fewer.launcher, 8.0),
            ("an agent's memory", self.agent, fewer.agent, 8.0),
            ("a rank's memory", self.rank, fewer.rank, 2.0),
        ] {
            let most = before.max(floor) * factor * 1.5;
            assert!(
                cost <= most,
                "{what}: {before} for {} ranks, {cost} for {}",
                fewer.ranks,
                self.ranks
            );
        }
    }
}

/// Runs a job and watches it.
fn measure(per_host: u32) -> Cost {
    let folder = std::env::temp_dir().join(format!("ucxrun-scale-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let fifo = folder.join("end");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo").success());
    // As long as somebody could write to it, its readers wait.
    let open = File::options()
        .read(true)
        .write(true)
        .open(&fifo)
        .expect("the fifo");
    let hosts: Vec<String> = (0..HOSTS)
        .map(|host| format!("h{host}:{per_host}"))
        .collect();
    let script = "case $PGAS_RANK,$PGAS_LOCAL_RANK in \
         0,*|1,1|*,0) exec \"$0\";; *) read x < \"$END\"; exit 0;; esac";
    let start = Instant::now();
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_ucxrun"))
        .args(["--agent", "sh -c 'exec {command}'", "--stdin", "none"])
        .args([
            "--host",
            &hosts.join(","),
            "--timeout",
            "300",
            "sh",
            "-c",
            script,
        ])
        .arg(std::env::current_exe().expect("own path"))
        .env("END", &fifo)
        .env("PER_HOST", per_host.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("ucxrun");
    let watch = Watch::default();
    let cost = std::thread::scope(|scope| {
        let (id, watch) = (launcher.id(), &watch);
        let watched = scope.spawn(move || watch.over(id));
        let said = lines(&mut launcher);
        watch.end.store(true, Ordering::Relaxed);
        let seen = watched.join().expect("the watch");
        let time = start.elapsed().as_secs_f64();
        let rank = said.unwrap_or_default();
        Cost {
            ranks: HOSTS * per_host,
            time,
            rank,
            ..seen
        }
    });
    drop(open);
    let status = launcher.wait().expect("ucxrun");
    fs::remove_dir_all(&folder).expect("the folder");
    assert!(status.success(), "ucxrun: {status}");
    println!(
        "{:>6} {:>8.2} {:>9.2} {:>9.1} {:>9.1} {:>9.1} {:>8.1} {:>8.1} {:>8.0}",
        cost.ranks,
        cost.time,
        cost.cpu,
        cost.sent,
        cost.received,
        cost.launcher,
        cost.agent,
        cost.rank,
        cost.rank * f64::from(1 << 20) / f64::from(cost.ranks),
    );
    cost
}

/// What rank 0 says of its memory, in MiB, once all have left.
fn lines(launcher: &mut Child) -> Option<f64> {
    let out = launcher.stdout.take()?;
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    let mut said = lines.filter_map(|line| line.strip_prefix("rank 0: ")?.parse().ok());
    said.next()
}

#[derive(Default)]
struct Watch {
    end: AtomicBool,
}

impl Watch {
    /// The most that a launcher and its agents take.
    fn over(&self, launcher: u32) -> Cost {
        let mut cost = Cost {
            ranks: 0,
            time: 0.0,
            cpu: 0.0,
            sent: 0.0,
            received: 0.0,
            launcher: 0.0,
            agent: 0.0,
            rank: 0.0,
        };
        let mebibytes = |kibibytes: u64| precise(kibibytes) / 1024.0;
        loop {
            let last = self.end.load(Ordering::Relaxed);
            let of = |name: &str| format!("/proc/{launcher}/{name}");
            cost.launcher = mebibytes(field(of("status"), "VmHWM:")).max(cost.launcher);
            cost.sent = precise(field(of("io"), "wchar:")) / f64::from(1 << 20);
            cost.received = precise(field(of("io"), "rchar:")) / f64::from(1 << 20);
            let stat = fs::read_to_string(of("stat")).unwrap_or_default();
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
            let ticks = |at: usize| {
                fields
                    .get(at)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0.0)
            };
            // In hundredths of a second, by custom.
            cost.cpu = (ticks(11) + ticks(12)) / 100.0;
            let children = fs::read_to_string(of(&format!("task/{launcher}/children")));
            for agent in children.unwrap_or_default().split_whitespace() {
                let memory = field(format!("/proc/{agent}/status"), "VmHWM:");
                cost.agent = mebibytes(memory).max(cost.agent);
            }
            if last {
                return cost;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A number behind a word in a file of /proc; 0 if it is not there.
fn field(path: impl AsRef<Path>, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let number = value.and_then(|value| value.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn precise(number: u64) -> f64 {
    number as f64
}

fn variable(name: &str) -> u32 {
    let text = std::env::var(name).expect("a variable of the job");
    text.parse().expect("a number")
}

/// What the processes do that do not only wait.
fn rank() {
    let (rank, local, per_host) = (
        variable(env::RANK),
        variable(env::LOCAL_RANK),
        variable("PER_HOST"),
    );
    match rank {
        0 => keep(),
        // On the first host, all but rank 0.
        _ => play(rank, local, per_host),
    }
    exit(0);
}

fn soon() -> Instant {
    Instant::now() + DEADLINE
}

/// A rank as the library's: keeps what has been gathered.
fn keep() {
    let before = field("/proc/self/status", "VmRSS:");
    let mut control = Control::from_env().expect("join").expect("a job");
    let mut kept = Vec::new();
    for bytes in BLOBS {
        // As the library keeps addresses: in one piece.
        kept.push(
            control
                .gather(&vec![1; bytes], soon())
                .expect("gather")
                .concat(),
        );
    }
    let memory = field("/proc/self/status", "VmHWM:").saturating_sub(before);
    control.leave(soon()).expect("leave");
    drop(kept);
    println!("rank 0: {}", precise(memory) / 1024.0);
}

/// The ranks of this host from this one on.
fn play(rank: u32, local: u32, per_host: u32) {
    let mut ranks: Vec<(ControlReader, ControlWriter)> = (local..per_host)
        .map(|other| {
            let get = |name: &str| match name {
                env::RANK => Some((rank + other - local).to_string().into()),
                env::LOCAL_RANK => Some(other.to_string().into()),
                name => std::env::var_os(name),
            };
            let control = Control::from_vars(get, soon()).expect("join");
            control.expect("a job").split()
        })
        .collect();
    for (bytes, round) in BLOBS.into_iter().zip(0..) {
        for (_, writer) in &ranks {
            let blob = vec![1; bytes];
            writer
                .send(&ToLauncher::Gather { round, blob })
                .expect("gather");
        }
        for (reader, _) in &mut ranks {
            match reader.next().expect("gathered") {
                Some(ToRank::Gathered { blobs, .. }) => {
                    assert!(blobs.iter().all(|blob| blob.len() == bytes))
                }
                other => panic!("{other:?} instead of a gather"),
            }
        }
    }
    for (_, writer) in &ranks {
        writer.leave().expect("leave");
    }
    for (reader, _) in &mut ranks {
        assert_eq!(reader.next().expect("goodbye"), Some(ToRank::Goodbye));
    }
}
