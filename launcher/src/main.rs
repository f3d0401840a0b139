//! The `ucxrun` binary: command line and signals around [`ucxrun::Job`].

mod cli;
mod signal;
mod stats;
mod words;

use std::io::Write;
use std::process::exit;

use ucxrun::wire::exit::LAUNCHER;

fn main() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.first() {
        Some(first) if first == ucxrun::agent::AGENT => {
            exit(match ucxrun::agent::serve(&arguments[1..]) {
                Ok(()) => 0,
                Err(error) => {
                    say(&error.to_string());
                    LAUNCHER
                }
            })
        }
        Some(first) if first == ucxrun::keeper::KEEPER => exit(ucxrun::keeper::keep()),
        _ => {}
    }
    let cli = match cli::Cli::parse_args() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { LAUNCHER } else { 0 };
            // If nobody reads it, the code still tells.
            let _ = error.print();
            exit(code);
        }
    };
    exit(match run(cli) {
        Ok(code) => code,
        Err((code, message)) => {
            say(&message);
            code
        }
    });
}

/// The job's exit code; or the launcher's own, with a message.
fn run(cli: cli::Cli) -> Result<i32, (i32, String)> {
    let own = |message: String| (LAUNCHER, message);
    let from_library = |error: ucxrun::Error| (error.exit_code(), error.to_string());
    let print = |text: &[u8]| {
        let written = std::io::stdout().write_all(text);
        written.map_err(|e| own(format!("cannot write: {e}")))
    };
    if let Some(text) = cli.text() {
        return print(&text).map(|()| 0);
    }
    let job = cli.job().map_err(own)?;
    if let Some(text) = cli.dry_run(&job) {
        return print(text.as_bytes()).map(|()| 0);
    }
    if let Some(line) = cli.network() {
        say(&line);
    }
    let open_files = ucxrun::limits::raise(job.children()).map_err(from_library)?;
    let mut job = job.open_files(open_files);
    let control = job.control().map_err(from_library)?;
    signal::handle(control).map_err(|e| own(format!("cannot handle signals: {e}")))?;
    let outcome = job.run().map_err(from_library)?;
    if let Some([json, svg]) = cli.stats() {
        let write = |path: &std::path::Path, text: String| {
            std::fs::write(path, text).map_err(|e| own(format!("{}: {e}", path.display())))
        };
        let written = write(&json, stats::json(&outcome.stats))
            .and_then(|()| write(&svg, stats::svg(&outcome.stats)));
        say(&format!(
            "what the ranks have done:\n{}",
            stats::table(&outcome.stats)
        ));
        if outcome.success() {
            written?;
        }
    }
    if !outcome.success() {
        let lines = outcome.doing.iter().map(|line| format!("\n  {line}"));
        say(&format!("{outcome}{}", lines.collect::<String>()));
    }
    Ok(outcome.code)
}

/// One line on standard error.
fn say(line: &str) {
    // In one write, so that it stays one line; nobody to tell if it fails.
    let _ = std::io::stderr().write_all(format!("ucxrun: {line}\n").as_bytes());
}
