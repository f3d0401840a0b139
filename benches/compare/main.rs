//! Our figures, each beside the limit and its rivals, as ratios from one run:
//! `cargo bench --bench compare`. What is measured, how, and last readings: `benches/README.md`.
//!
//! The driver starts, in turn and several times over, a job of ours (this executable again, as
//! ranks) and the same job of each rival (`benches/rivals`), so that whatever the machine does
//! meanwhile happens to all. Limits are measured by our ranks themselves, batch by batch.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "indices below 2^23 and counts of loops, on 64-bit machines"
)]

mod asm;
mod batch;
mod batches;
mod collectives;
mod limits;
mod loops;
mod quiet;
mod rank;
mod rivals;
mod stencil;
mod steps;
mod table;
mod whole;

use clap::Parser;
use rivals::{Rivals, Start};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use table::Table;
use ucxrun::{Job, Output};

type Result<T, E = String> = std::result::Result<T, E>;

/// Compares pgas with plain shared memory, OpenSHMEM, MPI RMA, Global Arrays and Lamellar.
#[derive(Debug, Parser)]
struct Options {
    /// One short round: to see that everything works, not to quote.
    #[arg(long)]
    quick: bool,
    /// Rounds; the table shows their medians [default: 5, or 1 with --quick].
    #[arg(long)]
    rounds: Option<usize>,
    /// Only these parts: memory, batch, stencil, tcp, batch-tcp, barrier2, barrier4, barrier16, whole, collectives2,
    /// collectives8, collectives-tcp, prk, launch.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Print one JSON object a figure on standard output, and the table on standard error.
    #[arg(long)]
    json: bool,
    /// Only our own figures and their limits.
    #[arg(long)]
    no_rivals: bool,
    /// Print the machine code of the measured loops and end.
    #[arg(long)]
    asm: bool,
    /// Given by cargo bench.
    #[arg(long, hide = true)]
    bench: bool,
    /// This process is a rank of ours: milliseconds of a batch, batches, sections.
    #[arg(long, hide = true, num_args = 3..)]
    rank: Vec<String>,
}

/// Processes that all do the same, of ours and of each rival.
struct Part {
    name: &'static str,
    ranks: u32,
    transport: Transport,
    sections: &'static [&'static str],
    rivals: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq)]
enum Transport {
    SharedMemory,
    Tcp,
}

const PARTS: &[Part] = &[
    Part {
        name: "memory",
        ranks: 2,
        transport: Transport::SharedMemory,
        sections: &["element", "layouts", "bulk"],
        rivals: &["plain-c", "openshmem", "openmpi", "mpich"],
    },
    Part {
        name: "batch",
        ranks: 2,
        transport: Transport::SharedMemory,
        sections: &["batch"],
        rivals: &["plain-c", "openshmem", "openmpi", "mpich", "ga", "lamellar"],
    },
    Part {
        name: "stencil",
        ranks: 2,
        transport: Transport::SharedMemory,
        sections: &["stencil"],
        rivals: &["plain-c", "openshmem", "openmpi", "mpich", "ga"],
    },
    Part {
        name: "tcp",
        ranks: 2,
        transport: Transport::Tcp,
        sections: &["network", "busy"],
        rivals: &["openshmem", "openmpi", "mpich"],
    },
    Part {
        name: "batch-tcp",
        ranks: 2,
        transport: Transport::Tcp,
        sections: &[REMOTE],
        rivals: &["openshmem", "openmpi", "mpich", "ga"],
    },
    Part {
        name: "barrier2",
        ranks: 2,
        transport: Transport::SharedMemory,
        sections: &["barrier"],
        rivals: &["plain-c", "openshmem", "openmpi", "mpich"],
    },
    Part {
        name: "barrier4",
        ranks: 4,
        transport: Transport::SharedMemory,
        sections: &["barrier"],
        rivals: &["plain-c", "openshmem", "openmpi", "mpich"],
    },
    Part {
        name: "barrier16",
        ranks: 16,
        transport: Transport::SharedMemory,
        sections: &["barrier"],
        rivals: &["plain-c", "openshmem", "openmpi", "mpich"],
    },
    Part {
        name: "whole",
        ranks: 2,
        transport: Transport::SharedMemory,
        sections: &["whole"],
        rivals: &[],
    },
    Part {
        name: "collectives2",
        ranks: 2,
        transport: Transport::SharedMemory,
        sections: &["collectives"],
        rivals: MPI,
    },
    Part {
        name: "collectives8",
        ranks: 8,
        transport: Transport::SharedMemory,
        sections: &["collectives"],
        rivals: MPI,
    },
    Part {
        name: "collectives-tcp",
        ranks: 2,
        transport: Transport::Tcp,
        sections: &["collectives"],
        rivals: &["openmpi", "mpich"],
    },
];

/// Those that have collectives.
const MPI: &[&str] = &["openmpi", "openmpi5", "mpich", "mpich5"];

/// The section whose name goes on with the number of elements.
const REMOTE: &str = "remote:";

/// Cores that everything measured may use: the fewest that tell something, equal on all machines.
const CORES: usize = 2;
/// Longest that one job may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Processes of the part `launch`.
const LAUNCH: u32 = 16;
const LAUNCH_RIVALS: [&str; 2] = ["mpich", "openmpi"];

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if options.rank.is_empty() {
        drive(&options)
    } else {
        rank::run(&options.rank)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("compare: {message}");
            ExitCode::FAILURE
        }
    }
}

fn drive(options: &Options) -> Result<()> {
    let this = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    if options.asm {
        return asm::print(&this);
    }
    for name in &options.only {
        if name != "launch" && name != "prk" && PARTS.iter().all(|part| part.name != name) {
            return Err(format!("no part {name}"));
        }
    }
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|it| it == name);
    // <target>/release/deps/compare-…
    let release = this
        .ancestors()
        .nth(2)
        .ok_or("own path has no folder")?
        .to_owned();
    let rivals = if options.no_rivals {
        Rivals::none()
    } else {
        Rivals::build(&release.join("compare-rivals"), |rival| {
            let mut parts = PARTS.iter().filter(|part| wanted(part.name));
            parts.any(|part| part.rivals.contains(&rival))
                || wanted("launch") && LAUNCH_RIVALS.contains(&rival)
                || wanted("prk") && MPI.contains(&rival)
        })?
    };
    if wanted("launch") || wanted("prk") {
        build_programs(&release)?;
    }
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 5 });
    let (batch, batches) = if options.quick {
        ("2", "6")
    } else {
        ("5", "15")
    };

    use_few_cores()?;
    let watch = quiet::Watch::start();
    let mut table = Table::new(&rivals);
    for round in 1..=rounds {
        for part in PARTS.iter().filter(|part| wanted(part.name)) {
            eprintln!("round {round} of {rounds}: {}", part.name);
            let mut words = vec![batch.to_owned(), batches.to_owned()];
            words.extend(part.sections.iter().map(|&section| match section {
                REMOTE if options.quick => format!("{REMOTE}100000"),
                REMOTE => format!("{REMOTE}1000000"),
                _ => section.to_owned(),
            }));
            table.add(part.name, "pgas", ours(&this, part, &words));
            for &rival in part.rivals {
                let Some(start) = rivals.start(rival, part.ranks, part.transport) else {
                    continue;
                };
                table.add(part.name, rival, start.output(&words, LIMIT));
            }
        }
        if wanted("prk") {
            eprintln!("round {round} of {rounds}: prk");
            kernels(&release, &rivals, &mut table);
        }
        if wanted("launch") {
            eprintln!("round {round} of {rounds}: launch");
            for _ in 0..(if options.quick { 3 } else { 4 }) {
                launch(&release, &rivals, &mut table);
            }
        }
    }
    if let Some(note) = watch.and_then(|watch| watch.note()) {
        table.note(note);
    }
    let text = table.text();
    if options.json {
        print!("{}", table.json());
        eprint!("{text}");
    } else {
        print!("{text}");
    }
    Ok(())
}

/// Runs one part as ranks of ours; returns what rank 0 printed.
fn ours(this: &Path, part: &Part, words: &[String]) -> Result<String> {
    let mut job = Job::new(this)
        .arg("--rank")
        .args(words)
        .ranks(part.ranks)
        .output(Output::Capture)
        .timeout(LIMIT)
        .default_environment();
    if part.transport == Transport::Tcp {
        job = job.env("UCX_TLS", "tcp,self");
    }
    let outcome = job.run().map_err(|error| error.to_string())?;
    if !outcome.success() {
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        return Err(format!("{outcome}\n{said}"));
    }
    Ok(String::from_utf8_lossy(&outcome.stdout).into_owned())
}

/// Starts, in turn, 16 processes that only join and leave, by each launcher.
fn launch(release: &Path, rivals: &Rivals, table: &mut Table) {
    let ours = Start::new(release.join("ucxrun"))
        .args(["-n", &LAUNCH.to_string()])
        .arg(release.join("examples/hello"));
    let mut starts = vec![("pgas", ours)];
    for name in LAUNCH_RIVALS {
        if let Some(start) = rivals.start(name, LAUNCH, Transport::SharedMemory) {
            starts.push((name, start));
        }
    }
    for (name, start) in starts {
        let begin = Instant::now();
        let output = start.output(&[], LIMIT);
        let time = begin.elapsed().as_secs_f64() * 1e9;
        table.add(
            "launch",
            name,
            output.map(|_| format!("figure start {time}\n")),
        );
    }
}

/// Kernels of the Parallel Research Kernels, their iterations and size.
const KERNELS: [(&str, [&str; 2]); 5] = [
    ("nstream", ["30", "4000000"]),
    ("stencil", ["30", "2000"]),
    ("transpose", ["20", "2048"]),
    ("synch_p2p", ["20", "2000"]),
    ("reduce", ["200", "100000"]),
];

/// Runs each kernel, ours and each rival's in turn.
fn kernels(release: &Path, rivals: &Rivals, table: &mut Table) {
    for (name, [iterations, size]) in KERNELS {
        let mut words = vec![iterations.to_owned(), size.to_owned()];
        if name == "synch_p2p" {
            words.push(size.to_owned());
        }
        let ours = Job::new(release.join("examples").join(format!("prk_{name}")))
            .args(&words)
            .ranks(2)
            .output(Output::Capture)
            .timeout(LIMIT)
            .default_environment()
            .run();
        let ours = match ours {
            Ok(outcome) if outcome.success() => {
                let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
                let time = text
                    .split_once("Avg time (s): ")
                    .and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
                time.map(|time| format!("figure {name} {}\n", time * 1e9))
                    .ok_or(text)
            }
            Ok(outcome) => Err(outcome.to_string()),
            Err(error) => Err(error.to_string()),
        };
        table.add("prk", "pgas", ours);
        let words = [name, iterations, size].map(str::to_owned);
        for rival in MPI {
            if let Some(start) = rivals.start_prk(rival, 2) {
                table.add("prk", rival, start.output(&words, LIMIT));
            }
        }
    }
}

/// Builds `ucxrun` and examples beside this executable.
fn build_programs(release: &Path) -> Result<()> {
    let target = release.parent().ok_or("no target folder")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let built = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--release", "--target-dir"])
        .arg(target)
        .args([
            "-p",
            "ucxrun",
            "-p",
            "pgas",
            "--bin",
            "ucxrun",
            "--example",
            "hello",
        ])
        .args(
            KERNELS
                .iter()
                .flat_map(|(name, _)| ["--example".into(), format!("prk_{name}")]),
        )
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if built.success() {
        Ok(())
    } else {
        Err(format!("building ucxrun and the examples: {built}"))
    }
}

/// From now on this process and those it starts have [`CORES`] cores.
fn use_few_cores() -> Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None).map_err(|error| error.to_string())?;
    let mut few = CpuSet::new();
    let mut count = 0;
    for cpu in (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .take(CORES)
    {
        few.set(cpu);
        count += 1;
    }
    if count < CORES {
        eprintln!("compare: only {count} core: ranks will wait for each other's time slices");
    }
    sched_setaffinity(None, &few).map_err(|error| error.to_string())
}

/// `path`'s file if it exists.
fn existing(path: PathBuf) -> Option<PathBuf> {
    path.exists().then_some(path)
}
