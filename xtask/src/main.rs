//! `cargo xtask demo` and `cargo xtask test`: each does everything from a machine that has only
//! Rust and a C compiler. They set the machine up and call `cargo`; the rest is cargo's.

mod engines;
mod process;
mod setup;
mod test;
mod tools;
mod ucx_wheel;
mod wheel;

use process::{cargo, run};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// A failure is a sentence for the person at the terminal; it is printed last.
type Result<T> = std::result::Result<T, String>;

const USAGE: &str = "\
usage:
  cargo xtask demo                          the heat stencil on 4 ranks, in release
  cargo xtask test [--only LEG] [FILTER]    all tests; legs: default, posix, tcp, posix-cma, ucx-1.22,
                                            ucx-1.22-posix, ucx-1.22-tcp, hosts, engines
  cargo xtask setup                         only finds UCX and the tools of the tests, or installs them";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match *words {
        ["demo"] => setup::setup().and_then(|()| demo()),
        ["setup"] => setup::setup()
            .and_then(|()| tools::install())
            .and_then(|()| engines::open_mpi_5().map(drop)),
        ["test", ref options @ ..] => test::Selection::parse(options)
            .and_then(|selection| setup::setup().and_then(|()| test::test(&selection))),
        ["help" | "-h" | "--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("no such command\n{USAGE}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<()> {
    run(
        cargo()
            .args("build --release --package ucxrun --package pgas --bins --examples".split(' ')),
        Duration::from_secs(20 * 60),
    )?;
    let release = target().join("release");
    run(
        Command::new(release.join("ucxrun"))
            .args(["-n", "4"])
            .arg(release.join("examples/stencil"))
            .arg("--output")
            .arg(target().join("heat.png")),
        Duration::from_secs(120),
    )
}

/// The workspace's folder.
fn root() -> &'static Path {
    // Ours is `xtask/`.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Where cargo builds: whatever decided that, this program is in it, at `debug/xtask`.
fn target() -> PathBuf {
    env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.parent()?.to_owned()))
        .unwrap_or_else(|| root().join("target"))
}
