//! Jobs that `ucxrun` did not start: the same program gives the same result under each process manager, and a rank that
//! fails ends the job.
//!
//! Needs root and the process managers: run by `cargo xtask test --only engines`.

#[path = "rigs/slurm/rig.rs"]
mod rig;

use pgas::{GlobalArray, Op, World};
use rig::Rig;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tells the worker what to do.
const WORKER: &str = "ENGINES_WORKER";
/// Longest time of one job.
const LIMIT: Duration = Duration::from_secs(60);

/// How to start ranks.
struct Engine {
    words: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
}

impl Engine {
    fn new(words: &str) -> Self {
        Self {
            words: words.split(' ').map(OsString::from).collect(),
            environment: Vec::new(),
        }
    }

    fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs `program` on 4 ranks.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).args(["-n", "4", program]);
        command.args(arguments).env_remove("UCX_TLS");
        command.envs(self.environment.iter().cloned());
        command
    }

    /// This file's worker, doing `what`.
    fn work(&self, what: &str) -> Ended {
        let me = std::env::current_exe().unwrap();
        let arguments = [
            "worker",
            "--exact",
            "--nocapture",
            "--ignored",
            "--test-threads=1",
            "--quiet",
        ];
        let mut command = self.command(me.to_str().unwrap(), &arguments);
        command.env(WORKER, what);
        end_of(command)
    }
}

/// How a job has ended.
struct Ended {
    code: Option<i32>,
    text: String,
    took: Duration,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "exit code {:?} after {:?}", self.code, self.took)?;
        f.write_str(&self.text)
    }
}

/// Runs a command to its end; kills it after `LIMIT`, and with it its process group.
fn end_of(mut command: Command) -> Ended {
    use std::os::unix::process::CommandExt as _;
    let began = Instant::now();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!(
            "{}: {error}; cargo xtask setup installs it",
            command.get_program().display()
        )
    });
    let mut out = child.stdout.take().unwrap();
    let mut err = child.stderr.take().unwrap();
    let read = std::thread::spawn(move || {
        let mut text = Vec::new();
        err.read_to_end(&mut text).unwrap();
        text
    });
    let group = rustix::process::Pid::from_child(&child);
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if ended.recv_timeout(LIMIT).is_err() {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    });
    let mut text = Vec::new();
    out.read_to_end(&mut text).unwrap();
    text.extend(read.join().unwrap());
    let status = child.wait().unwrap();
    let _ = done.send(());
    guard.join().unwrap();
    Ended {
        code: status.code(),
        text: String::from_utf8_lossy(&text).into_owned(),
        took: began.elapsed(),
    }
}

/// Something of every kind of communication, so that each rank knows whether all is well.
fn everything(world: &World) -> pgas::Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let array = GlobalArray::<u64>::from_fn(world, 1000, |i| (i * i) as u64)?;
    let mut sum = 0;
    for i in (rank..1000).step_by(7) {
        sum += array.get(i)?;
    }
    let all = world.all_reduce(sum, Op::Sum)?;
    array.put(rank, 77 + rank as u64)?;
    world.barrier()?;
    assert_eq!(
        array.get((rank + 1) % size)?,
        77 + ((rank + 1) % size) as u64
    );
    world.send((rank + 1) % size, 5, &[rank as u64])?;
    let (got, _) = world.recv::<u64>((rank + size - 1) % size, 5)?;
    assert_eq!(got, [((rank + size - 1) % size) as u64]);
    if rank == 0 {
        println!("RESULT {size} ranks, {all}");
    }
    Ok(())
}

#[test]
#[ignore = "a rank of the jobs below"]
fn worker() {
    let what = std::env::var(WORKER).expect("started by another test");
    if what == "early" {
        // Never joins, and is content.
        std::process::exit(0);
    }
    let result = World::run(|world| {
        if what == "everything" {
            return everything(world);
        }
        if what == "again" {
            assert!(World::from_env().is_err());
            return Ok(());
        }
        let array = GlobalArray::<u64>::new(world, 4)?;
        world.barrier()?;
        if world.rank() != 2 {
            // Until somebody ends the job.
            return match what.as_str() {
                "quits" => world.barrier(),
                _ => {
                    std::thread::sleep(Duration::from_secs(50));
                    Ok(())
                }
            };
        }
        match what.as_str() {
            "abort" => world.abort(7, "as it was told"),
            "error" => array.get(4).map(drop),
            "panic" => panic!("as it was told"),
            "kill" => {
                let me = rustix::process::getpid();
                let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
                Ok(())
            }
            "quits" => std::process::exit(0),
            other => panic!("cannot do {other:?}"),
        }
    });
    if let Err(error) = result {
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

fn hydra() -> Engine {
    Engine::new("mpiexec.hydra")
}

fn hydra_by_port() -> Engine {
    Engine::new("mpiexec.hydra -pmi-port")
}

fn open_mpi_4() -> Engine {
    Engine::new("mpirun.openmpi --allow-run-as-root --oversubscribe")
}

/// In the folder that `cargo xtask test` names.
fn open_mpi_5() -> Engine {
    let folder =
        std::env::var_os("OPEN_MPI_5").expect("OPEN_MPI_5=FOLDER, as cargo xtask test sets it");
    let mpirun = PathBuf::from(folder).join("bin/mpirun");
    Engine::new(&format!(
        "{} --allow-run-as-root --oversubscribe",
        mpirun.display()
    ))
}

fn srun(rig: &Rig, options: &str) -> Engine {
    Engine::new(&format!("srun {options} -N4")).env("SLURM_CONF", &rig.conf)
}

/// What the same program says under `ucxrun`.
fn expected(what: &str) -> Ended {
    let me = std::env::current_exe().unwrap();
    let ucxrun: PathBuf = me.ancestors().nth(2).unwrap().join("ucxrun");
    Engine::new(ucxrun.to_str().unwrap()).work(what)
}

fn result_line(ended: &Ended) -> String {
    let line = ended
        .text
        .lines()
        .find_map(|line| line.find("RESULT").map(|at| &line[at..]));
    line.unwrap_or_else(|| panic!("no result: {ended}"))
        .to_owned()
}

/// The same result, and an early end of everything that goes wrong: `codes` are those of what `World::abort(7)`, an
/// error of a rank, a panic, and `kill -9` must make of the job.
fn check(engine: &Engine, codes: [&[i32]; 4]) {
    let ended = engine.work("everything");
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_eq!(
        result_line(&ended),
        result_line(&expected("everything")),
        "{ended}"
    );
    let ended = engine.work("again");
    assert_eq!(ended.code, Some(0), "{ended}");
    for (what, codes) in ["abort", "error", "panic", "kill"].into_iter().zip(codes) {
        let ended = engine.work(what);
        let code = ended.code.unwrap_or_else(|| panic!("{what}: {ended}"));
        assert!(codes.contains(&code), "{what}: {ended}");
        assert!(ended.took < Duration::from_secs(15), "{what}: {ended}");
        let says = match what {
            "error" => "pgas: rank 2: ",
            "abort" => "pgas: rank 2: as it was told",
            "panic" => "pgas: rank 2: panicked: as it was told",
            _ => "",
        };
        assert!(ended.text.contains(says), "{what}: {ended}");
    }
}

/// A rank that exits with 0 in the middle ends the job, which fails.
fn check_quitter(engine: &Engine) {
    let ended = engine.work("quits");
    assert_ne!(ended.code, Some(0), "{ended}");
    assert!(ended.took < Duration::from_secs(15), "{ended}");
}

#[test]
#[ignore = "needs mpich"]
fn under_hydra_by_descriptor() {
    check(&hydra(), [&[7], &[1], &[101], &[9]]);
    check_quitter(&hydra());
}

#[test]
#[ignore = "needs mpich"]
fn under_hydra_by_port() {
    check(&hydra_by_port(), [&[7], &[1], &[101], &[9]]);
    check_quitter(&hydra_by_port());
}

#[test]
#[ignore = "needs Open MPI 4"]
fn under_open_mpi_4() {
    check(&open_mpi_4(), [&[7], &[1], &[101], &[137]]);
    check_quitter(&open_mpi_4());
}

#[test]
#[ignore = "needs Open MPI 5"]
fn under_open_mpi_5() {
    check(&open_mpi_5(), [&[7], &[1], &[101], &[137]]);
    check_quitter(&open_mpi_5());
}

/// `-K` ends the job when a task fails; PMI-1's abort makes Slurm kill the others, whose code is larger.
#[test]
#[ignore = "needs Slurm"]
fn under_srun_pmi2() {
    let rig = Rig::up();
    let engine = srun(&rig, "-K --mpi=pmi2");
    check(&engine, [&[137], &[137], &[137], &[137, 143]]);
    check_quitter(&engine);
}

#[test]
#[ignore = "needs Slurm"]
fn under_srun_pmix() {
    let rig = Rig::up();
    let engine = srun(&rig, "-K --mpi=pmix");
    check(&engine, [&[7], &[1], &[101], &[137, 143]]);
    check_quitter(&engine);
}
