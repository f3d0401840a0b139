//! Everything that is tested: once as the machine is, and the parts that talk to UCX again on
//! other transports and on a newer UCX.

use crate::process::{cargo, describe, output_of, run};
use crate::{Result, engines, root, target, tools, ucx_wheel};
use std::ffi::OsString;
use std::fs;
use std::process::Command;
use std::time::Duration;

const TEST: [&str; 2] = ["test", "--workspace"];
/// With the crates that this feature brings some tests would have to say which type a sum has.
const TEST_ZARR: [&str; 7] = [
    "test",
    "--package",
    "pgas",
    "--features",
    "zarr",
    "--test",
    "zarr",
];

const BUILD: Duration = Duration::from_secs(20 * 60);
const TESTS: Duration = Duration::from_secs(15 * 60);
const EXAMPLE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq)]
enum Leg {
    /// The whole workspace, on whatever transports UCX chooses.
    Default,
    /// Shared memory only.
    Posix,
    /// As between two machines: UCX emulates one-sided access, a progress thread must help.
    Tcp,
    /// Shared memory, and the system call by which UCX copies between processes.
    PosixCma,
    /// The same binaries on a newer UCX.
    Ucx122,
    /// The newer UCX on shared memory only.
    Ucx122Posix,
    /// The newer UCX as between two machines.
    Ucx122Tcp,
    /// Ranks on several hosts: the launcher's own tests through agents, and those that need real hosts, in name spaces.
    /// Needs root.
    Hosts,
    /// Jobs that other launchers start. Needs root.
    Engines,
}

impl Leg {
    const ALL: [Self; 9] = [
        Self::Default,
        Self::Posix,
        Self::Tcp,
        Self::PosixCma,
        Self::Ucx122,
        Self::Ucx122Posix,
        Self::Ucx122Tcp,
        Self::Hosts,
        Self::Engines,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Posix => "posix",
            Self::Tcp => "tcp",
            Self::PosixCma => "posix-cma",
            Self::Ucx122 => "ucx-1.22",
            Self::Ucx122Posix => "ucx-1.22-posix",
            Self::Ucx122Tcp => "ucx-1.22-tcp",
            Self::Hosts => "hosts",
            Self::Engines => "engines",
        }
    }

    /// Which transports UCX may use, if not all.
    fn transports(self) -> Option<&'static str> {
        match self {
            Self::Default | Self::Ucx122 | Self::Hosts | Self::Engines => None,
            Self::Posix | Self::Ucx122Posix => Some("posix,self"),
            Self::Tcp | Self::Ucx122Tcp => Some("tcp,self"),
            Self::PosixCma => Some("posix,cma,self"),
        }
    }

    fn is_on_newer_ucx(self) -> bool {
        matches!(self, Self::Ucx122 | Self::Ucx122Posix | Self::Ucx122Tcp)
    }

    /// Whether only what matters most is run: UCX's other version, and each of the transports, have
    /// a leg of all tests.
    fn is_short(self) -> bool {
        matches!(self, Self::PosixCma | Self::Ucx122Posix | Self::Ucx122Tcp)
    }

    /// What to set in the environment of tests and ranks.
    fn environment(self) -> Result<Vec<(&'static str, OsString)>> {
        let mut environment = Vec::new();
        environment.extend(self.transports().map(|names| ("UCX_TLS", names.into())));
        if self.is_on_newer_ucx() {
            let wheel = ucx_wheel::wheel()?;
            environment.push(("LD_LIBRARY_PATH", wheel.libraries.into()));
            environment.push(("ABI_HEADERS", wheel.headers.into()));
        }
        Ok(environment)
    }
}

/// The part of the tests that was asked for.
pub(crate) struct Selection {
    legs: Vec<Leg>,
    filter: Option<String>,
}

impl Selection {
    pub(crate) fn parse(mut options: &[&str]) -> Result<Self> {
        let mut selection = Self {
            legs: Leg::ALL.to_vec(),
            filter: None,
        };
        loop {
            match *options {
                [] => return Ok(selection),
                ["--only", name, ref rest @ ..] => {
                    let leg = Leg::ALL.into_iter().find(|leg| leg.name() == name);
                    let names = Leg::ALL.map(Leg::name).join(", ");
                    selection.legs =
                        vec![leg.ok_or(format!("no leg `{name}`; there are: {names}"))?];
                    options = rest;
                }
                [filter, ref rest @ ..] if !filter.starts_with('-') => {
                    selection.filter = Some(filter.to_owned());
                    options = rest;
                }
                [option, ..] => {
                    return Err(format!("cannot read `{option}`\n{}", crate::USAGE));
                }
            }
        }
    }
}

/// Runs all legs, also after one has failed; the error names those that did.
pub(crate) fn test(selection: &Selection) -> Result<()> {
    tools::install()?;
    // Once, and before LD_LIBRARY_PATH has a UCX that must not be linked.
    run(cargo().args(TEST).arg("--no-run"), BUILD)?;
    let mut failed = Vec::new();
    for leg in &selection.legs {
        let name = leg.name();
        eprintln!("\n===== leg {name}");
        if let Err(message) = run_leg(*leg, selection.filter.as_deref()) {
            eprintln!("xtask: leg {name}: {message}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("failed: {}", failed.join(", ")))
}

fn run_leg(leg: Leg, filter: Option<&str>) -> Result<()> {
    if leg == Leg::Hosts {
        return run_on_hosts(filter);
    }
    if leg == Leg::Engines {
        return run_engines(filter);
    }
    let environment = leg.environment()?;
    let mut tests = cargo();
    tests.args(TEST).arg("--no-fail-fast");
    if leg.is_short() {
        for name in SHORT {
            tests.args(["--test", name]);
        }
    } else if leg != Leg::Default {
        // What runs on UCX: not the launcher's tests, nor those in the documentation. Chosen by
        // name, as with fewer packages cargo would choose other features and build all anew.
        tests.arg("--lib");
        for folder in ["tests", "ucx-sys/tests"] {
            for name in rust_files(folder)? {
                let own_transports = OWN_TRANSPORTS.contains(&name.as_str());
                // That of feature zarr is about files.
                if name != "zarr" && (leg == Leg::Ucx122 || !own_transports) {
                    tests.args(["--test", &name]);
                }
            }
        }
    }
    tests.args(filter).envs(environment.clone());
    run(&mut tests, TESTS)?;
    if leg == Leg::Default {
        run(cargo().args(TEST_ZARR).args(filter), BUILD)?;
    }
    if leg.is_on_newer_ucx() {
        says_newer_ucx(&environment)?;
    }
    if leg.is_short() {
        return Ok(());
    }
    if filter.is_some() {
        eprintln!("xtask: the examples are not run when there is a FILTER");
        return Ok(());
    }
    run_examples(&environment)
}

/// What the legs run that are not of all tests: what each transport could do otherwise.
const SHORT: [&str; 9] = [
    "array",
    "busy",
    "collectives",
    "messages",
    "ordering",
    "remote_key",
    "soundness",
    "sync",
    "wait_until",
];

/// Tests that say themselves over which transports they run, so once on each UCX will do.
const OWN_TRANSPORTS: [&str; 2] = ["large", "numbers"];

/// The launcher's tests, whose outcomes must not depend on where ranks are.
const ANYWHERE: [&str; 6] = ["exit", "handshake", "output", "passing", "ranks", "signals"];

fn run_on_hosts(filter: Option<&str>) -> Result<()> {
    let mut tests = cargo();
    tests.args(TEST).arg("--no-fail-fast");
    for name in ANYWHERE {
        tests.args(["--test", name]);
    }
    tests.args(filter).env("UCXRUN_TEST_HOSTS", "1");
    run(&mut tests, TESTS)?;
    let mut tests = cargo();
    tests.args(TEST).args(["--no-fail-fast", "--test", "hosts"]);
    tests
        .args(filter)
        .args(["--", "--ignored", "--test-threads=1"]);
    run(&mut tests, TESTS)
}

/// What needs the process managers is marked as ignored, so that a plain `cargo test` does not.
fn run_engines(filter: Option<&str>) -> Result<()> {
    let open_mpi_5 = engines::open_mpi_5()?;
    let mut declarations = cargo();
    declarations
        .args(TEST)
        .args(["--lib", "--", "--ignored", "pmix::"]);
    run(&mut declarations, TESTS)?;
    let mut tests = cargo();
    tests.args(TEST).args(["--test", "engines"]);
    tests.args(filter);
    tests.args(["--", "--ignored", "--test-threads=1", "--skip", "worker"]);
    run(tests.env("OPEN_MPI_5", open_mpi_5), TESTS)
}

/// An example on 4 ranks, with its parameters.
fn example(words: &[&str], environment: &[(&str, OsString)]) -> Command {
    let debug = target().join("debug");
    let mut command = Command::new(debug.join("ucxrun"));
    command
        .args(["-n", "4"])
        .arg(debug.join("examples").join(words[0]))
        .args(&words[1..])
        .envs(environment.iter().cloned())
        .current_dir(root());
    command
}

/// Otherwise a leg on the newer UCX could pass on the system's.
fn says_newer_ucx(environment: &[(&str, OsString)]) -> Result<()> {
    let mut hello = example(&["hello"], environment);
    let said = output_of(&mut hello).unwrap_or_default();
    if said.matches(ucx_wheel::VERSION).count() == 4 {
        return Ok(());
    }
    Err(format!(
        "`{}` does not say UCX {} four times:\n{said}",
        describe(&hello),
        ucx_wheel::VERSION
    ))
}

/// Runs every file of `examples/` on 4 ranks; each checks its own result.
fn run_examples(environment: &[(&str, OsString)]) -> Result<()> {
    let example = |words: &[&str]| example(words, environment);
    for name in rust_files("examples")? {
        // Small sizes: this is not the release build, and tcp is slow at many single operations.
        match name.as_str() {
            "histogram" => run(&mut example(&["histogram", "--samples", "20000"]), EXAMPLE)?,
            "indexgather" => run(&mut example(&["indexgather", "--reads", "20000"]), EXAMPLE)?,
            "randomaccess" => run(&mut example(&["randomaccess", "--bits", "12"]), EXAMPLE)?,
            "blur" => {
                let blurred = target().join("blurred.png").display().to_string();
                let made_up = ["blur", "--width", "200", "--output", &blurred];
                run(&mut example(&made_up), EXAMPLE)?;
                run(&mut example(&["blur", "--input", &blurred]), EXAMPLE)?;
            }
            "life" => {
                let film = target().join("life.gif").display().to_string();
                let gun = ["life", "--every", "30", "--output", &film];
                run(&mut example(&gun), EXAMPLE)?;
                let pattern = "examples/data/r-pentomino.rle";
                run(&mut example(&["life", pattern, "--torus"]), EXAMPLE)?;
            }
            "graph500" => run(&mut example(&["graph500", "8", "--roots", "16"]), EXAMPLE)?,
            "prk_random" => run(&mut example(&["prk_random", "4", "14"]), EXAMPLE)?,
            "prk_stencil" => run(&mut example(&["prk_stencil", "5", "300"]), EXAMPLE)?,
            "prk_transpose" => run(&mut example(&["prk_transpose", "5", "300"]), EXAMPLE)?,
            "prk_synch_p2p" => {
                run(&mut example(&["prk_synch_p2p"]), EXAMPLE)?;
                run(
                    &mut example(&["prk_synch_p2p", "5", "100", "50", "7"]),
                    EXAMPLE,
                )?;
            }
            "stencil" => {
                let input = |file| ["stencil", "--iterations", "50", "--input", file];
                run(&mut example(&["stencil", "--n", "100"]), EXAMPLE)?;
                let one_sided = ["stencil", "--n", "100", "--variant", "one-sided"];
                run(&mut example(&one_sided), EXAMPLE)?;
                run(&mut example(&input("examples/data/springs.npy")), EXAMPLE)?;
                run(
                    &mut example(&input("examples/data/mandelbrot.png")),
                    EXAMPLE,
                )?;
            }
            name => run(&mut example(&[name]), EXAMPLE)?,
        }
    }
    Ok(())
}

/// The names of the programs in a folder, for cargo: its `.rs` files.
fn rust_files(folder: &str) -> Result<Vec<String>> {
    let folder = root().join(folder);
    let cannot = |error| format!("reading {}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.display().to_string()));
        }
    }
    names.sort();
    Ok(names)
}
