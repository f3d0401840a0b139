//! Jobs that `ucxrun` did not start: the same program gives the same result under each process manager, and a rank that
//! fails ends the job.
//!
//! Needs root and the process managers: run by `cargo xtask test --only engines`.

#[path = "rigs/netns/rig.rs"]
#[expect(dead_code, reason = "what other tests do with hosts")]
mod hosts;
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
    fn command_for(&self, what: &str) -> Command {
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
        command
    }

    /// Runs it to its end.
    fn work(&self, what: &str) -> Ended {
        end_of(self.command_for(what))
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

fn kill() {
    let me = rustix::process::getpid();
    let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
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
        if let Some(folder) = std::env::var_os("PGAS_TEST_PIDS") {
            let name = format!("rank-{}", std::process::id());
            std::fs::write(PathBuf::from(folder).join(name), "").unwrap();
        }
        if what == "kill-0" && world.rank() == 0 {
            kill();
        }
        if world.rank() != 2 || what == "kill-0" {
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
                kill();
                Ok(())
            }
            "quits" => std::process::exit(0),
            "waits" => {
                std::thread::sleep(Duration::from_secs(50));
                Ok(())
            }
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
fn of_open_mpi_5(program: &str, options: &str) -> Engine {
    let folder =
        std::env::var_os("OPEN_MPI_5").expect("OPEN_MPI_5=FOLDER, as cargo xtask test sets it");
    let program = PathBuf::from(folder).join("bin").join(program);
    Engine::new(&format!(
        "{} --allow-run-as-root {options}",
        program.display()
    ))
}

fn open_mpi_5() -> Engine {
    of_open_mpi_5("mpirun", "--oversubscribe")
}

/// What `mpirun` calls, by itself.
fn prterun() -> Engine {
    of_open_mpi_5("prterun", "--map-by :oversubscribe")
}

fn srun(rig: &Rig, options: &str) -> Engine {
    Engine::new(&format!("srun {options} -N4")).env("SLURM_CONF", &rig.conf)
}

fn ucxrun() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.ancestors().nth(2).unwrap().join("ucxrun")
}

/// What the same program says under `ucxrun`.
fn expected(what: &str) -> Ended {
    Engine::new(ucxrun().to_str().unwrap()).work(what)
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

#[test]
#[ignore = "needs Open MPI 5"]
fn under_prterun() {
    check(&prterun(), [&[7], &[1], &[101], &[137]]);
    check_quitter(&prterun());
}

/// `-K` ends the job when a task fails; PMI-1's abort makes Slurm kill the others, by TERM or KILL, whose code is larger.
#[test]
#[ignore = "needs Slurm"]
fn under_srun_pmi2() {
    let rig = Rig::up();
    let engine = srun(&rig, "-K --mpi=pmi2");
    let killed: &[i32] = &[137, 143];
    check(&engine, [killed; 4]);
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

/// Nobody but the ranks themselves ends them.
const BY_THEMSELVES: [&[i32]; 4] = [&[7], &[1], &[101], &[137]];

/// Where ranks meet, which must be as before when they have.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("pgas-engines-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn check_left_nothing(folder: &PathBuf) {
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    std::fs::remove_dir(folder).unwrap();
}

#[test]
#[ignore = "needs Slurm"]
fn under_plain_srun() {
    let (rig, folder) = (Rig::up(), folder());
    let engine = srun(&rig, "--mpi=none").env("PGAS_RENDEZVOUS", &folder);
    check(&engine, BY_THEMSELVES);
    check_quitter(&engine);
    check_left_nothing(&folder);
}

#[test]
#[ignore = "needs Slurm and Open MPI"]
fn without_libpmix() {
    let (rig, folder) = (Rig::up(), folder());
    for engine in [srun(&rig, "--mpi=pmix"), open_mpi_4(), open_mpi_5()] {
        let engine = engine
            .env("PGAS_PMIX_LIBRARY", "/nowhere/libpmix.so.2")
            .env("PGAS_RENDEZVOUS", &folder);
        let ended = engine.work("everything");
        assert_eq!(ended.code, Some(0), "{ended}");
        assert_eq!(
            result_line(&ended),
            result_line(&expected("everything")),
            "{ended}"
        );
        let ended = engine.work("abort");
        assert_eq!(ended.code, Some(7), "{ended}");
        // What is forced must be there.
        let ended = engine.env("PGAS_BOOTSTRAP", "pmix").work("everything");
        assert_eq!(ended.code, Some(1), "{ended}");
        assert!(ended.text.contains("/nowhere/libpmix.so.2"), "{ended}");
    }
    check_left_nothing(&folder);
}

/// Without a word: two hosts, four ranks, by agents that srun starts.
#[test]
#[ignore = "needs Slurm"]
fn ucxrun_uses_its_allocation() {
    let (rig, folder) = (Rig::up(), folder());
    let engine = |words: &str| {
        let ucxrun = ucxrun().display().to_string();
        Engine::new(&format!("salloc -N 2 --ntasks-per-node=2 {ucxrun}{words}"))
            .env("SLURM_CONF", &rig.conf)
    };
    let ended = engine("").work("everything");
    assert_eq!(
        (ended.code, result_line(&ended)),
        (Some(0), result_line(&expected("everything"))),
        "{ended}"
    );
    let plan = end_of(engine(" --dry-run").command("true", &[]));
    assert_eq!(plan.code, Some(0), "{plan}");
    for host in ["n1", "n2"] {
        assert!(plan.text.contains(host), "{plan}");
    }
    // A rank's exit code, through srun and salloc.
    let ended = engine("").work("abort");
    assert_eq!(ended.code, Some(7), "{ended}");
    check_left_nothing(&folder);
}

#[test]
#[ignore = "needs Slurm"]
fn shells_in_allocations_are_alone() {
    let (rig, folder) = (Rig::up(), folder());
    let alone = |words: &str| {
        let engine = Engine::new(words).env("SLURM_CONF", &rig.conf);
        engine.work("everything")
    };
    let ended = alone("salloc");
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(result_line(&ended).starts_with("RESULT 1 ranks"), "{ended}");
    let (script, output) = (folder.join("script"), folder.join("output"));
    std::fs::write(&script, "#!/bin/sh\nshift 2\nexec \"$@\"\n").unwrap();
    let (to, run) = (output.display(), script.display());
    let mut ended = alone(&format!("sbatch --wait -n 4 --output={to} {run}"));
    ended.text += &std::fs::read_to_string(&output).unwrap_or_default();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(result_line(&ended).starts_with("RESULT 1 ranks"), "{ended}");
    std::fs::remove_file(script).unwrap();
    std::fs::remove_file(output).unwrap();
    check_left_nothing(&folder);
}

/// Four processes with variables of their own, as Kubernetes or a script starts them; the last one's code is that of the
/// worst.
fn by_hand(rank: &str, port: u16) -> Engine {
    let script = format!(
        "shift 2; for i in 3 1 2 0; do {rank}=$i \"$@\" & pids=\"$pids $!\"; done; \
         code=0; for p in $pids; do wait $p; c=$?; [ $c -le $code ] || code=$c; done; exit $code"
    );
    let mut engine = Engine::new("sh -c");
    engine.words.extend([script.into(), "sh".into()]);
    engine
        .env("WORLD_SIZE", "4")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
#[ignore = "run with the other engines"]
fn by_variables() {
    let secret = "a secret that is long enough";
    let engine = by_hand("RANK", free_port()).env("PGAS_SECRET", secret);
    check(&engine, BY_THEMSELVES);
    check_quitter(&engine);
    // As a file, as Kubernetes mounts it.
    let file = folder().join("secret");
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let engine = by_hand("JOB_COMPLETION_INDEX", free_port()).env("PGAS_SECRET_FILE", &file);
    let ended = engine.work("everything");
    std::fs::remove_file(&file).unwrap();
    check_left_nothing(&folder());
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_eq!(result_line(&ended), result_line(&expected("everything")));
}

#[test]
#[ignore = "run with the other engines"]
fn ranks_that_do_not_know_the_secret_are_refused() {
    let ended = by_hand("RANK", free_port()).work("everything");
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(
        ended
            .text
            .contains("neither PGAS_SECRET_FILE nor PGAS_SECRET"),
        "{ended}"
    );
    let mut engine = by_hand("RANK", free_port()).env("PGAS_TIMEOUT", "5");
    let script = engine.words[2].to_str().unwrap();
    let wrong = script.replace("RANK=$i", "RANK=$i PGAS_SECRET=the-secret-of-rank-$((i/3))");
    engine.words[2] = wrong.into();
    let ended = engine.work("everything");
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(ended.text.contains("secret"), "{ended}");
    // The others say who is missing, when their time is up.
    assert!(ended.text.contains("no word from rank 3"), "{ended}");
}

/// Rank 0 is killed: the others end.
#[test]
#[ignore = "run with the other engines"]
fn the_store_goes() {
    let engine = by_hand("RANK", free_port()).env("PGAS_SECRET", "a secret that is long enough");
    let ended = engine.work("kill-0");
    assert_eq!(ended.code, Some(137), "{ended}");
    assert!(ended.took < Duration::from_secs(15), "{ended}");
    assert!(ended.text.contains("the launcher is gone"), "{ended}");
}

/// Whoever started the ranks is killed with -9: none is left after 3 s.
#[test]
#[ignore = "needs mpich and Open MPI"]
fn a_killed_launcher_leaves_no_rank() {
    let folder = folder();
    for engine in [hydra(), hydra_by_port(), open_mpi_4(), open_mpi_5()] {
        let mut command = engine.command_for("waits");
        // What Open MPI has no time to remove.
        command
            .env("TMPDIR", &folder)
            .env("PGAS_TEST_PIDS", &folder);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut launcher = command.spawn().unwrap();
        let pids = eventually(|| {
            let names = std::fs::read_dir(&folder).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name());
            let pids: Vec<i32> = names
                .filter_map(|name| name.to_str()?.strip_prefix("rank-")?.parse().ok())
                .collect();
            (pids.len() == 4).then_some(pids)
        });
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        let killed = Instant::now();
        let alive = |pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Not those that only nobody has waited for yet.
            stat.contains("engines") && !stat.contains(") Z ")
        };
        eventually(|| (!pids.iter().any(alive)).then_some(()));
        assert!(
            killed.elapsed() < Duration::from_secs(3),
            "{:?}",
            command.get_program()
        );
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
    }
    check_left_nothing(&folder);
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ranks on three hosts that meet by a file, as srun's, or at an address; one of them dies.
#[test]
#[ignore = "needs hosts in name spaces"]
fn a_store_over_hosts() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rigs/netns/rig");
    let (hosts, folder) = (hosts::Rig::up(std::path::Path::new(script), 3), folder());
    let step = "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_JOB_ID=5 SLURM_PROCID";
    let torch =
        "WORLD_SIZE=3 MASTER_ADDR=host1 MASTER_PORT=29500 PGAS_SECRET=0123456789abcdef RANK";
    for (variables, what, codes) in [
        (step, "everything", [0, 0, 0]),
        (torch, "everything", [0, 0, 0]),
        (torch, "kill", [1, 1, 137]),
    ] {
        let began = Instant::now();
        let ranks: Vec<_> = (0..3).map(|rank| {
            let mut command = hosts.on(&format!("host{}", rank + 1), "sh");
            let me = std::env::current_exe().unwrap();
            let run = format!("export {variables}={rank}; exec \"$0\" worker --exact --nocapture --ignored --quiet");
            command.args(["-c", &run]).arg(me);
            command.env(WORKER, what).env_remove("UCX_TLS").env("PGAS_RENDEZVOUS", &folder);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            std::thread::spawn(move || end_of(command))
        }).collect();
        let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        let all = || ended.iter().map(ToString::to_string).collect::<String>();
        for (rank, code) in ended.iter().zip(codes) {
            let killed = rank.code.is_none() || rank.code == Some(137);
            assert!(
                rank.code == Some(code) || (code == 137 && killed),
                "{what}: {}",
                all()
            );
        }
        if what == "everything" {
            assert!(
                result_line(&ended[0]).starts_with("RESULT 3 ranks"),
                "{}",
                all()
            );
        } else {
            assert!(ended[0].text.contains("rank 2 failed"), "{}", all());
            assert!(began.elapsed() < Duration::from_secs(10), "{}", all());
        }
    }
    check_left_nothing(&folder);
}
