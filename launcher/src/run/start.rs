//! The start of a job: its ranks here, or agents elsewhere.

use std::io;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Resource;

use super::{Engine, Phase};
use crate::agent::wire::{Brief, INPUT_WINDOW, Remote};
use crate::bind::Binding;
use crate::client::host_name;
use crate::control::JobControl;
use crate::door::{Door, Key};
use crate::error::{Error, Result};
use crate::fleet::Fleet;
use crate::hosts::is_here;
use crate::input::{Pump, Source, Stdin};
use crate::job::{Job, SSH};
use crate::keeper::Keeper;
use crate::output::{self, Output, Outputs, Stream};
use crate::plan::{Outfit, Seat, Surroundings};
use crate::process::Process;
use crate::rank::Rank;
use crate::server::Server;
use crate::wire;

impl Engine {
    pub(super) fn start(mut job: Job, control: JobControl) -> Result<Self> {
        let size = job.plan.size();
        let count = size as usize;
        if let Output::Files(directory) = &job.output {
            std::fs::create_dir_all(directory).map_err(|e| {
                Error::io(format_args!("output directory {}", directory.display()), &e)
            })?;
        }
        let key = Key::random(size)?;
        let (mut hosts, mut ranks) = (vec![host_name()], Vec::with_capacity(count));
        let (mut door, mut fleet, mut keeper) = (None, None, None);
        let mut lines = Vec::new();
        if job.places.is_empty() {
            let ours = door.insert(Door::open(key.clone(), 0..size)?);
            if let Some(program) = &job.keeper {
                keeper = Some(Keeper::start(program, &wire::to_hex(&key.job))?);
            }
            let binding = Binding::here(&job.bind, count)?;
            lines.extend(binding.note.clone());
            let environment = ours.environment();
            for number in 0..size {
                // If one fails, those before it are killed as they are dropped.
                let process = start_here(&job, number, &environment, &binding)?;
                if let Some(keeper) = &mut keeper {
                    keeper.watch(process.pid());
                }
                if let Some(bound) = binding.text(number as usize) {
                    lines.push(bound_to(number, &hosts[0], &bound));
                }
                ranks.push(Rank::new(0, Some(process)));
            }
        } else {
            hosts = job.places.iter().map(|place| place.host.clone()).collect();
            let mut at = vec![0; count];
            for (host, place) in job.places.iter().enumerate() {
                for &rank in &place.ranks {
                    if let Some(at) = at.get_mut(rank as usize) {
                        *at = host;
                    }
                }
            }
            ranks.extend(at.into_iter().map(|host| Rank::new(host, None)));
            fleet = Some(start_there(&job, &key)?);
        }
        let output = std::mem::take(&mut job.output);
        let mut outputs = Outputs::new(output, count, job.label, fleet.is_some())?;
        let mut pump = None;
        for (number, rank) in ranks.iter_mut().enumerate() {
            let Some(process) = &mut rank.process else {
                continue;
            };
            let child = process.child();
            if let Some(pipe) = child.stdout.take() {
                outputs.connect(number, Stream::Stdout, pipe.into())?;
            }
            if let Some(pipe) = child.stderr.take() {
                outputs.connect(number, Stream::Stderr, pipe.into())?;
            }
            if let Some(pipe) = child.stdin.take() {
                pump = Some(Pump::new(pipe.into())?);
            }
        }
        let source = fleet.as_ref().and(job.stdin.rank());
        let mut engine = Self {
            hosts,
            ranks,
            fleet,
            server: Server::new(size, door),
            outputs,
            closed: [false; 2],
            pump,
            source: source.map(|_| Source::new(INPUT_WINDOW)),
            stdin: io::stdin(),
            control,
            keeper,
            notices: job.notices.take(),
            bindings: job.bindings.take(),
            phase: Phase::Running,
            failure: None,
            doing: vec![(None, None); count],
            late: Vec::new(),
            stats: vec![None; count],
            timeout: job
                .timeout
                .and_then(|time| Some((Instant::now().checked_add(time)?, time))),
            grace: job.grace,
            keep_going: job.keep_going,
            lost: Vec::new(),
            joined: false,
            turn: 0,
        };
        for line in lines {
            engine.binding(&line);
        }
        for number in 0..count {
            if let Some(process) = &engine.ranks[number].process {
                let pid = process.pid();
                engine.notice(|| format!("rank {number}: started as process {pid}"));
            }
        }
        Ok(engine)
    }
}

/// Starts a rank as a process of ours.
fn start_here(
    job: &Job,
    rank: u32,
    variables: &[(&'static str, String)],
    binding: &Binding,
) -> Result<Process> {
    let stdin = match job.stdin {
        Stdin::Rank(reader) if reader != rank => Stdio::null(),
        Stdin::Null => Stdio::null(),
        Stdin::Rank(_) if Pump::is_needed() => Stdio::piped(),
        Stdin::Rank(_) => Stdio::inherit(),
    };
    let output = |stream| {
        Ok(match &job.output {
            Output::Null => Stdio::null(),
            Output::Files(directory) => output::file(directory, rank, stream)?.into(),
            _ => Stdio::piped(),
        })
    };
    let limit = job
        .open_files
        .map(|limit| (Resource::Nofile, limit.before()));
    let outfit = Outfit {
        variables,
        environment: None,
        limits: limit.into_iter().collect(),
        cpus: binding.set(rank as usize),
        stdio: [stdin, output(Stream::Stdout)?, output(Stream::Stderr)?],
    };
    // One machine: a rank's place there is its place in the job.
    let seat = Seat {
        rank,
        local_rank: rank,
        local_size: job.plan.size(),
    };
    Process::new(job.plan.spawn(seat, outfit)?)
}

/// Starts agents on the hosts of a job.
fn start_there(job: &Job, key: &Key) -> Result<Fleet> {
    let brief = Brief {
        secret: key.secret.to_bytes(),
        job: key.job,
        plan: job.plan.clone(),
        surroundings: Surroundings::here(job.open_files.map(|limit| limit.before()))?,
        bind: job.bind.clone(),
        stdin: job.stdin.rank(),
        output: !matches!(job.output, Output::Null),
        network: job.network.clone(),
    };
    let command = job.agents.command.clone();
    let here = (0..)
        .zip(&job.places)
        .find(|(_, place)| is_here(&place.host));
    let remote = Remote {
        // A command of the user's own is meant for every host.
        direct: here.filter(|_| command.is_none()).map(|(number, _)| number),
        command: command.unwrap_or_else(|| SSH.split(' ').map(Into::into).collect()),
        program: job.agents.program.clone().into(),
        fan_out: job.agents.fan_out,
        silence: job.agents.silence,
    };
    Fleet::start(&job.places, &remote, brief)
}

pub(super) fn bound_to(rank: u32, host: &str, processors: &str) -> String {
    format!("rank {rank} on host {host}: bound to processors {processors}")
}
