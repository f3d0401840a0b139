//! The command line of `ucxrun`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use ucxrun::{Job, Output, Stdin};

const EXAMPLES: &str = "\
Examples:
  ucxrun -n 4 ./stencil --steps 100       4 ranks; options after the program are the program's
  ucxrun -l -n 8 hostname                 every line of output says which rank wrote it
  ucxrun -n 2 -x UCX_TLS=tcp,self ./ring  with a variable set for the ranks
  ucxrun --timeout 60 -n 4 ./solver < in  rank 0 reads `in`; after a minute the job is ended
  ucxrun --output-dir out -n 64 ./solver  writes out/rank.0.out, out/rank.0.err, ...

Exit codes:
  0        every rank exited with 0, and left the job if it had joined
  1-123    that of the first rank to fail; 1 also for a rank that exits with 0 in the middle of the job,
           101 for a panic
  124      --timeout
  125      ucxrun itself failed
  126      PROGRAM cannot be executed
  127      PROGRAM cannot be found
  128+N    signal N killed the first rank to fail, or ended the job

Ranks find the job by the variables PGAS_RANK, PGAS_SIZE, PGAS_LOCAL_RANK, PGAS_LOCAL_SIZE, PGAS_CONTROL,
PGAS_SECRET and PGAS_JOB. UCX_ERROR_SIGNALS is set to nothing unless it is set already, so that a rank's crash
is reported by Rust and by its signal. Everything else is passed on as it is.";

/// Starts the ranks of a pgas program on this machine and waits for them. The first rank to fail ends the job, and
/// names itself and the cause on standard error.
#[derive(Debug, Parser)]
#[command(name = "ucxrun", version, max_term_width = 110, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Number of ranks [default: one for each available core]
    #[arg(short = 'n', long = "ranks", visible_alias = "np", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    ranks: Option<u32>,

    /// Begin every line of output with the rank in brackets
    #[arg(short, long)]
    label: bool,

    /// Set a variable for the ranks, or pass one on (as all are)
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    #[arg(value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,

    /// End the job after this time, with code 124
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,

    /// Write the ranks' output to DIR/rank.N.out and DIR/rank.N.err instead
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,

    /// Rank that reads standard input, or "none"; the others read nothing
    #[arg(long, value_name = "RANK", default_value = "0")]
    stdin: String,

    /// Say on standard error what happens: processes, joins, refused connections, ends
    #[arg(short, long)]
    verbose: bool,

    /// The program, looked up in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_parser = clap::builder::OsStringValueParser::new())]
    program: Vec<OsString>,
}

impl Cli {
    /// Parses the process's arguments.
    pub(crate) fn parse_args() -> Result<Self, clap::Error> {
        Self::try_parse_from(prepare(std::env::args_os()))
    }

    /// The ranks to start.
    pub(crate) fn ranks(&self) -> u32 {
        self.ranks.unwrap_or_else(|| {
            let cores = std::thread::available_parallelism();
            cores
                .ok()
                .and_then(|cores| u32::try_from(cores.get()).ok())
                .unwrap_or(1)
        })
    }

    /// The job; the error is a message.
    pub(crate) fn job(self) -> Result<Job, String> {
        let ranks = self.ranks();
        let mut program = self.program.into_iter();
        let mut job = Job::new(program.next().unwrap_or_default())
            .args(program)
            .ranks(ranks)
            .label(self.label)
            .stdin(stdin(&self.stdin)?);
        for setting in &self.env {
            job = set(job, setting)?;
        }
        job = job.default_environment();
        if let Some(timeout) = self.timeout {
            job = job.timeout(timeout);
        }
        if let Some(directory) = self.output_dir {
            job = job.output(Output::Files(directory));
        }
        if self.verbose {
            job = job.notices(crate::say);
        }
        Ok(job)
    }
}

fn stdin(text: &str) -> Result<Stdin, String> {
    match text.parse() {
        Ok(rank) => Ok(Stdin::Rank(rank)),
        Err(_) if text == "none" => Ok(Stdin::Null),
        Err(_) => Err(format!("--stdin {text}: neither a rank nor \"none\"")),
    }
}

fn set(job: Job, setting: &OsStr) -> Result<Job, String> {
    let bytes = setting.as_bytes();
    match bytes.iter().position(|&b| b == b'=') {
        None if std::env::var_os(setting).is_some() => Ok(job),
        None => Err(format!("-x {}: no such variable", setting.display())),
        Some(0) => Err(format!("-x {}: no name", setting.display())),
        Some(at) => {
            let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Ok(job.env(part(&bytes[..at]), part(&bytes[at + 1..])))
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("not a time".to_owned()),
    }
}

/// Spells `-np` as clap can read it, and marks where the program begins, so that nothing after it is ours.
fn prepare(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args = args.peekable();
    let mut prepared: Vec<OsString> = args.next().into_iter().collect();
    while let Some(arg) = args.next_if(|arg| arg.as_bytes().starts_with(b"-") && arg != "--") {
        let arg = match arg.as_bytes().strip_prefix(b"-np") {
            Some(count) => OsString::from_vec([b"-n", count].concat()),
            None => arg,
        };
        let takes_value = takes_value(&arg);
        prepared.push(arg);
        if takes_value {
            prepared.extend(args.next());
        }
    }
    if args.peek().is_some_and(|arg| arg != "--") {
        prepared.push("--".into());
    }
    prepared.extend(args);
    prepared
}

/// Whether the next argument is this option's value.
fn takes_value(option: &OsStr) -> bool {
    const LONG: [&str; 6] = [
        "--ranks",
        "--np",
        "--env",
        "--timeout",
        "--output-dir",
        "--stdin",
    ];
    if option.as_bytes().starts_with(b"--") {
        return LONG.iter().any(|long| option == *long);
    }
    // In a cluster of short options, as in -ln 4, the last one.
    let mut letters = option.as_bytes()[1..].iter();
    letters.find(|letter| b"nx".contains(letter)).is_some() && letters.len() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<Cli, clap::Error> {
        let line = std::iter::once("ucxrun")
            .chain(line.iter().copied())
            .map(OsString::from);
        Cli::try_parse_from(prepare(line))
    }

    #[test]
    fn definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn spellings_of_the_count() {
        for line in [
            &["-n", "3", "p"][..],
            &["-n3", "p"],
            &["-np", "3", "p"],
            &["-np3", "p"],
            &["--np", "3", "p"],
            &["--np=3", "p"],
            &["-ln", "3", "p"],
            &["-lvn3", "p"],
            &["-n", "3", "--", "p"],
        ] {
            let cli = parsed(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            assert_eq!(
                (cli.ranks(), cli.program),
                (3, vec!["p".into()]),
                "{line:?}"
            );
        }
        for line in [
            &["-n", "0", "p"][..],
            &["-n", "x", "p"],
            &["-n", "3"],
            &[],
            &["--bogus", "p"],
        ] {
            assert!(parsed(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn options_after_the_program_are_its_own() {
        let rest = ["p", "-n", "9", "--help", "--", "-np", "", "-x"];
        for before in [
            &["-l"][..],
            &["-l", "--"],
            &["--timeout", "5", "-x", "A=b c"],
        ] {
            let cli = parsed(&[before, &rest[..]].concat()).unwrap();
            assert_eq!(cli.program, rest.map(OsString::from));
        }
        assert_eq!(parsed(&["--", "--help"]).unwrap().program, ["--help"]);
    }
}
