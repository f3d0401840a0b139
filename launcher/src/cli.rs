//! The command line of `ucxrun`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueEnum};
use ucxrun::{Agents, Bind, Host, Job, Map, Output, Place, Stdin, allocation, hosts};

use crate::words::{self, json, quoted};

const EXAMPLES: &str = "\
Examples:
  ucxrun -n 4 ./stencil --steps 100       4 ranks; options after the program are the program's
  ucxrun --host a:2,b ./stencil           2 ranks on host a, 1 on host b, by ssh
  ucxrun --hostfile hosts -n 64 ./solver  the hosts in a file: a line each, as `a slots=8` or `a:8`
  ucxrun -l -n 8 hostname                 every line of output says which rank wrote it
  ucxrun -n 2 -x UCX_TLS=tcp,self ./ring  with a variable set for the ranks
  ucxrun --timeout 60 -n 4 ./solver < in  rank 0 reads `in`; after a minute the job is ended
  ucxrun --output-dir out -n 64 ./solver  writes out/rank.0.out, out/rank.0.err, ...
  ucxrun -n 4 --wrap 'gdb -batch -ex run -ex bt --args' --wrap-rank 2 ./solver
  ucxrun -n 1 ./server : -n 3 ./client    two programs, ranks 0 and 1 to 3

Exit codes:
  0        every rank exited with 0, and left the job if it had joined
  1-123    that of the first rank to fail; 1 also for a rank that exits with 0 in the middle of the job,
           101 for a panic
  124      --timeout
  125      ucxrun itself failed, or a host did
  126      PROGRAM cannot be executed
  127      PROGRAM cannot be found
  128+N    signal N killed the first rank to fail, or ended the job

Ranks find the job by the variables PGAS_RANK, PGAS_SIZE, PGAS_LOCAL_RANK, PGAS_LOCAL_SIZE, PGAS_CONTROL,
PGAS_SECRET and PGAS_JOB. UCX_ERROR_SIGNALS is set to nothing unless it is set already, so that a rank's crash
is reported by Rust and by its signal. Everything else is passed on as it is, to other hosts too.";

/// Starts the ranks of a pgas program on this machine or on several, and waits for them. The first rank to fail ends
/// the job, and names itself and the cause on standard error.
#[derive(Debug, Parser)]
#[command(name = "ucxrun", version, max_term_width = 110, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Number of ranks [default: one for each core, or for each slot of the hosts]
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

    /// End the job after this time, with code 124, and say what each rank was doing
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,

    /// Write the ranks' output to DIR/rank.N.out and DIR/rank.N.err on this machine instead
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,

    /// Rank that reads standard input, or "none"; the others read nothing
    #[arg(long, value_name = "RANK", default_value = "0")]
    stdin: String,

    /// A failing rank does not end the job, only what needs it; the code is that of the first to fail, when all have ended
    #[arg(long)]
    keep_going: bool,

    /// Say on standard error what happens: hosts, processes, joins, the network, refused connections, ends
    #[arg(short, long)]
    verbose: bool,

    /// At the end, show what each rank has done, and write PREFIX.json and PREFIX.svg
    #[arg(long, value_name = "PREFIX", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "ucxrun-stats")]
    stats: Option<PathBuf>,

    /// Say what would be started where, and start nothing
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "text")]
    dry_run: Option<Format>,

    /// Hosts with their numbers of slots, as a:2,b
    #[arg(
        long,
        value_name = "HOSTS",
        help_heading = "Hosts",
        conflicts_with = "hostfile"
    )]
    host: Vec<String>,

    /// File of hosts, a line each, as `a slots=2` or `a:2`
    #[arg(long, value_name = "FILE", help_heading = "Hosts")]
    hostfile: Option<PathBuf>,

    /// Use the first N hosts only
    #[arg(short = 'N', long, value_name = "N", help_heading = "Hosts")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,

    /// Number of slots of every host
    #[arg(long, value_name = "N", help_heading = "Hosts")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    ppn: Option<u32>,

    /// Deal ranks to hosts in blocks (slot) or in turns (node)
    #[arg(
        long,
        value_name = "ORDER",
        default_value = "slot",
        help_heading = "Hosts"
    )]
    map: Order,

    /// Network device for UCX, as eth0: sets UCX_NET_DEVICES unless it is set
    #[arg(long, value_name = "DEVICE", help_heading = "Hosts")]
    net: Option<String>,

    /// Command that starts agents instead of ssh (srun in a Slurm allocation); {host} and {command} in it are replaced, or both are added
    #[arg(long, value_name = "COMMAND", help_heading = "Hosts")]
    agent: Option<String>,

    /// Most agents that one process starts; with more hosts, agents start agents
    #[arg(long, value_name = "N", default_value = "64", help_heading = "Hosts")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    fan_out: u32,

    /// A host without a sign of life for this time is lost
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = silence, help_heading = "Hosts")]
    lost_after: Duration,

    /// Bind ranks: none, core, numa, or a list of processors for each rank of a host, as 0-3,4-7
    #[arg(long, value_name = "WHAT", default_value = "none", value_parser = bind, help_heading = "Processes")]
    bind: Bind,

    /// Say which processors each rank is bound to
    #[arg(long, help_heading = "Processes")]
    report_bindings: bool,

    /// Run COMMAND with each rank's program behind it, as 'gdb --args'
    #[arg(long, value_name = "COMMAND", help_heading = "Processes")]
    wrap: Option<String>,

    /// Wrap this rank only
    #[arg(
        long,
        value_name = "RANK",
        requires = "wrap",
        help_heading = "Processes"
    )]
    wrap_rank: Option<u32>,

    /// Print completions for a shell
    #[arg(long, value_name = "SHELL", exclusive = true)]
    completions: Option<clap_complete::Shell>,

    /// Print the manual page
    #[arg(long, exclusive = true)]
    man: bool,

    /// The program, looked up in PATH, and its arguments; after a lone `:`, another with its own -n and -x
    #[arg(required_unless_present_any = ["completions", "man"], trailing_var_arg = true)]
    #[arg(value_name = "PROGRAM", value_parser = clap::builder::OsStringValueParser::new())]
    program: Vec<OsString>,

    #[arg(skip)]
    others: Vec<Other>,
}

/// Another program of the same job.
#[derive(Debug, Parser)]
#[command(name = "ucxrun ... :", disable_help_flag = true)]
struct Other {
    #[arg(
        short = 'n',
        long = "ranks",
        visible_alias = "np",
        value_name = "N",
        default_value = "1"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    ranks: u32,

    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    #[arg(value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,

    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_parser = clap::builder::OsStringValueParser::new())]
    program: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Order {
    Slot,
    Node,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl Cli {
    /// Parses the process's arguments.
    pub(crate) fn parse_args() -> Result<Self, clap::Error> {
        Self::parse_from_args(std::env::args_os())
    }

    fn parse_from_args(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut parts = split_programs(args.into_iter().collect()).into_iter();
        let first = parts.next().unwrap_or_default();
        let mut cli = Self::try_parse_from(prepare(first.into_iter(), &Self::command()))?;
        for part in parts {
            let args = std::iter::once("ucxrun".into()).chain(part);
            cli.others
                .push(Other::try_parse_from(prepare(args, &Other::command()))?);
        }
        Ok(cli)
    }

    /// What is to be printed instead of starting anything: completions, the manual page.
    pub(crate) fn text(&self) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        if let Some(shell) = self.completions {
            clap_complete::generate(shell, &mut Self::command(), "ucxrun", &mut text);
        } else if self.man {
            // Writing to memory cannot fail.
            let _ = clap_mangen::Man::new(Self::command()).render(&mut text);
        }
        (!text.is_empty()).then_some(text)
    }

    /// Where the ranks run, if that is said.
    fn places(&self) -> Result<Option<Vec<Place>>, String> {
        let Some(mut hosts) = self.hosts()? else {
            for (given, option) in [
                (self.nodes.is_some(), "-N"),
                (self.ppn.is_some(), "--ppn"),
                (self.agent.is_some(), "--agent"),
            ] {
                if given {
                    return Err(format!("{option} needs --host or --hostfile"));
                }
            }
            return Ok(None);
        };
        if let Some(nodes) = self.nodes {
            if (hosts.len() as u64) < u64::from(nodes) {
                return Err(format!("-N {nodes}: there are {} hosts", hosts.len()));
            }
            hosts.truncate(usize::try_from(nodes).unwrap_or(usize::MAX));
        }
        if let Some(slots) = self.ppn {
            hosts.iter_mut().for_each(|host| host.slots = slots);
        }
        let map = match self.map {
            Order::Slot => Map::Slot,
            Order::Node => Map::Node,
        };
        let ranks = match (self.ranks, &self.others[..]) {
            (None, []) => None,
            (first, others) => {
                let others = others.iter().map(|other| other.ranks);
                Some(others.fold(first.unwrap_or(1), u32::saturating_add))
            }
        };
        let places = hosts::place(&hosts, ranks, map).map_err(|e| e.to_string())?;
        Ok(Some(places))
    }

    fn hosts(&self) -> Result<Option<Vec<Host>>, String> {
        if let Some(path) = &self.hostfile {
            let name = path.display();
            let text = fs::read_to_string(path).map_err(|e| format!("--hostfile {name}: {e}"))?;
            let hosts = hosts::parse_file(&text).map_err(|e| format!("--hostfile {name}: {e}"))?;
            return Ok(Some(hosts));
        }
        if self.host.is_empty() {
            return allocation::hosts(|name| std::env::var(name).ok()).map_err(|e| e.to_string());
        }
        let hosts = hosts::parse_list(&self.host.join(",")).map_err(|e| format!("--host: {e}"))?;
        Ok(Some(hosts))
    }

    /// The job; the error is a message.
    pub(crate) fn job(&self) -> Result<Job, String> {
        let places = self.places()?;
        let mut job = Job::new(self.program.first().cloned().unwrap_or_default())
            .args(self.program.iter().skip(1).cloned())
            .ranks(self.first_ranks(places.as_deref()))
            .label(self.label)
            .keep_going(self.keep_going)
            .bind(self.bind.clone())
            .stdin(stdin(&self.stdin)?);
        for setting in &self.env {
            job = set(job, setting, Job::env)?;
        }
        for other in &self.others {
            let mut words = other.program.iter().cloned();
            job = job.and(words.next().unwrap_or_default());
            job = job.args(words).ranks(other.ranks);
            for setting in &other.env {
                job = set(job, setting, Job::own_env)?;
            }
        }
        job = job.default_environment();
        if let Some(device) = &self.net {
            job = job.env_default(NET_DEVICES, device).network(device);
        }
        if let Some(wrap) = &self.wrap {
            let words = words::split(wrap).map_err(|e| format!("--wrap: {e}"))?;
            job = job.wrap(words, self.wrap_rank);
        }
        if let Some(timeout) = self.timeout {
            job = job.timeout(timeout).env(ucxrun::wire::env::WATCH, "1");
        }
        if self.stats.is_some() {
            job = job.env(ucxrun::wire::env::STATS, "1");
        }
        if let Some(directory) = &self.output_dir {
            job = job.output(Output::Files(directory.clone()));
        }
        if self.verbose {
            job = job.notices(crate::say);
            job = job.env(ucxrun::wire::env::NOTICES, "1");
        }
        if self.report_bindings {
            job = job.report_bindings(crate::say);
        }
        let own = fs::read_link("/proc/self/exe").map_err(|e| format!("own path: {e}"))?;
        let here = |places: &Vec<Place>| {
            self.agent.is_none() && places.len() == 1 && hosts::is_here(&places[0].host)
        };
        match places.filter(|places| !here(places)) {
            None => job = job.keeper("/proc/self/exe"),
            Some(places) => {
                let command = match &self.agent {
                    None if self.host.is_empty() && self.hostfile.is_none() => {
                        Some(allocation::agent())
                    }
                    None => None,
                    Some(text) => {
                        let words = words::split(text).map_err(|e| format!("--agent: {e}"))?;
                        Some(words.into_iter().map(OsString::from).collect())
                    }
                };
                let agents = Agents {
                    command,
                    program: own,
                    fan_out: self.fan_out,
                    silence: self.lost_after,
                };
                job = job.places(places, agents);
            }
        }
        Ok(job)
    }

    /// Which network UCX uses, as far as we know it.
    pub(crate) fn network(&self) -> Option<String> {
        let set = self.env.iter().rev().find_map(|setting| {
            let value = setting.as_bytes().strip_prefix(NET_DEVICES.as_bytes())?;
            value
                .strip_prefix(b"=")
                .map(|value| OsStr::from_bytes(value).to_owned())
        });
        let set = set.or_else(|| std::env::var_os(NET_DEVICES));
        self.verbose.then(|| match (set, &self.net) {
            (Some(set), _) => format!("network: {} ({NET_DEVICES})", set.display()),
            (None, Some(device)) => format!("network: {device} (--net)"),
            (None, None) => "network: chosen by UCX".to_owned(),
        })
    }

    /// The names of the two files for what the ranks have done.
    pub(crate) fn stats(&self) -> Option<[PathBuf; 2]> {
        let prefix = self.stats.as_ref()?;
        Some([".json", ".svg"].map(|end| {
            let mut name = prefix.clone().into_os_string();
            name.push(end);
            name.into()
        }))
    }

    /// Ranks of the first program.
    fn first_ranks(&self, places: Option<&[Place]>) -> u32 {
        if let Some(ranks) = self.ranks {
            return ranks;
        }
        if !self.others.is_empty() {
            return 1;
        }
        if let Some(places) = places {
            let ranks = places.iter().map(|place| place.ranks.len());
            return u32::try_from(ranks.sum::<usize>()).unwrap_or(u32::MAX);
        }
        let cores = std::thread::available_parallelism();
        cores
            .ok()
            .and_then(|cores| u32::try_from(cores.get()).ok())
            .unwrap_or(1)
    }

    /// What would be started, if only that is wanted.
    pub(crate) fn dry_run(&self, job: &Job) -> Option<String> {
        let format = self.dry_run?;
        let text = |word: &OsStr| word.to_string_lossy().into_owned();
        let mut out = String::new();
        let seats = job.seats();
        for (number, seat) in seats.iter().enumerate() {
            let words: Vec<String> = seat.words.iter().map(|word| text(word)).collect();
            let env = seat.env.iter();
            let env: Vec<_> = env.map(|(name, value)| (text(name), text(value))).collect();
            // Writing to a string cannot fail.
            let _ = match format {
                Format::Text => {
                    let env = env
                        .iter()
                        .map(|(name, value)| format!("{name}={} ", quoted(value)));
                    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
                    writeln!(
                        out,
                        "rank {} on {}: {}{}",
                        seat.rank,
                        seat.host,
                        env.collect::<String>(),
                        words.join(" ")
                    )
                }
                Format::Json => {
                    let words: Vec<_> = words.iter().map(|word| json(word)).collect();
                    let env: Vec<_> = env
                        .iter()
                        .map(|(name, value)| format!("{}: {}", json(name), json(value)))
                        .collect();
                    writeln!(
                        out,
                        "{}{{\"rank\": {}, \"host\": {}, \"local_rank\": {}, \"local_size\": {}, \
                         \"command\": [{}], \"env\": {{{}}}}}{}",
                        if number == 0 { "[" } else { " " },
                        seat.rank,
                        json(&seat.host),
                        seat.local_rank,
                        seat.local_size,
                        words.join(", "),
                        env.join(", "),
                        if number + 1 == seats.len() { "]" } else { "," },
                    )
                }
            };
        }
        Some(out)
    }
}

const NET_DEVICES: &str = "UCX_NET_DEVICES";

fn stdin(text: &str) -> Result<Stdin, String> {
    match text.parse() {
        Ok(rank) => Ok(Stdin::Rank(rank)),
        Err(_) if text == "none" => Ok(Stdin::Null),
        Err(_) => Err(format!("--stdin {text}: neither a rank nor \"none\"")),
    }
}

fn set(job: Job, setting: &OsStr, with: fn(Job, OsString, OsString) -> Job) -> Result<Job, String> {
    let bytes = setting.as_bytes();
    match bytes.iter().position(|&b| b == b'=') {
        None if std::env::var_os(setting).is_some() => Ok(job),
        None => Err(format!("-x {}: no such variable", setting.display())),
        Some(0) => Err(format!("-x {}: no name", setting.display())),
        Some(at) => {
            let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Ok(with(job, part(&bytes[..at]), part(&bytes[at + 1..])))
        }
    }
}

fn bind(text: &str) -> Result<Bind, String> {
    text.parse().map_err(|e: ucxrun::Error| e.to_string())
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

fn silence(text: &str) -> Result<Duration, String> {
    let time = seconds(text)?;
    if time < Duration::from_secs(1) || time > Duration::from_secs(24 * 3600) {
        return Err("at least 1 second, at most a day".to_owned());
    }
    Ok(time)
}

/// Cuts at each lone `:` behind a program, unless a `--` says that all that follows is the first one's.
fn split_programs(args: Vec<OsString>) -> Vec<Vec<OsString>> {
    let mut parts = vec![Vec::new()];
    let mut rest = args.into_iter();
    for arg in rest.by_ref() {
        let ends = arg == "--" && parts.len() == 1;
        let last = parts.len() - 1;
        if arg == ":" {
            parts.push(Vec::new());
        } else {
            parts[last].push(arg);
        }
        if ends {
            parts[last].extend(rest);
            break;
        }
    }
    parts
}

/// Spells `-np` as clap can read it, and marks where the program begins, so that nothing after it is ours.
fn prepare(args: impl Iterator<Item = OsString>, command: &clap::Command) -> Vec<OsString> {
    let mut args = args.peekable();
    let mut prepared: Vec<OsString> = args.next().into_iter().collect();
    while let Some(arg) = args.next_if(|arg| arg.as_bytes().starts_with(b"-") && arg != "--") {
        let arg = match arg.as_bytes().strip_prefix(b"-np") {
            Some(count) => OsString::from_vec([b"-n", count].concat()),
            None => arg,
        };
        let takes_value = takes_value(&arg, command);
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
fn takes_value(option: &OsStr, command: &clap::Command) -> bool {
    let options = command.get_arguments().filter(|option| {
        option.get_action().takes_values()
            && !option.is_positional()
            && !option.is_require_equals_set()
    });
    if let Some(long) = option.to_str().and_then(|option| option.strip_prefix("--")) {
        let mut names = options.flat_map(|option| {
            let aliases = option.get_all_aliases().unwrap_or_default();
            aliases.into_iter().chain(option.get_long())
        });
        return names.any(|name| name == long);
    }
    // In a cluster of short options, as in -ln 4, the last one.
    let short: Vec<u8> = options
        .filter_map(|option| option.get_short()?.try_into().ok())
        .collect();
    let mut letters = option.as_bytes()[1..].iter();
    letters.find(|letter| short.contains(letter)).is_some() && letters.len() == 0
}

#[cfg(test)]
mod tests;
