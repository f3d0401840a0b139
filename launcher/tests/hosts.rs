//! Three hosts, reached by ssh: what must be as on one machine, and what can only go wrong with several.
//!
//! Needs root and `cargo xtask setup`: run by `cargo xtask test --only hosts`.

mod common;
#[path = "../../tests/rigs/netns/rig.rs"]
mod rig;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ended, Running, Scratch, alive, eventually, expect_gone, kill, run};
use rig::Rig;

const UCXRUN: &str = env!("CARGO_BIN_EXE_ucxrun");
/// 4 ranks: one, two, one. The launcher is on the first host.
const HOSTS: &str = "host1,host2:2,host3";

fn up(hosts: u32) -> Rig {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/rigs/netns/rig");
    Rig::up(&script, hosts)
}

/// The launcher on host 1.
fn launch(rig: &Rig, args: &[&str]) -> Command {
    let mut command = rig.on("host1", UCXRUN);
    command.args(["--host", HOSTS]).args(args);
    command
}

/// The same with a shell script as program.
fn script(rig: &Rig, options: &[&str], script: &str) -> Command {
    let mut command = launch(rig, options);
    command.args(["sh", "-c", script]);
    command
}

/// This binary's rank player, as `common::ranks` describes.
fn player(rig: &Rig, options: &[&str], script: &str) -> Command {
    let mut command = launch(rig, options);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "rank", "--nocapture", "--quiet"]);
    command.env("SCRIPT", script);
    command
}

#[test]
fn rank() {
    // Not a test: what the ranks of others do.
    if std::env::var_os("PGAS_RANK").is_some() {
        common::ranks::play();
    }
}

/// Process numbers that ranks have written to files.
fn started_pids(scratch: &Scratch, ranks: usize) -> Vec<u32> {
    let files = || fs::read_dir(&scratch.0).unwrap().flatten();
    let whole = |file: &fs::DirEntry| fs::read_to_string(file.path()).unwrap().ends_with('\n');
    eventually("all ranks have started", || {
        files().filter(whole).count() == ranks
    });
    let text: String = files()
        .map(|file| fs::read_to_string(file.path()).unwrap())
        .collect();
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

/// Agents and ssh of a launcher.
fn helpers(launcher: u32) -> Vec<u32> {
    let mut found = vec![launcher];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        found.extend(
            children
                .split_whitespace()
                .map(|pid| pid.parse::<u32>().unwrap()),
        );
        next += 1;
    }
    found
}

/// The agent on a host.
fn agent_on(rig: &Rig, host: &str) -> u32 {
    let find = "for p in $(ps -o pid= -C ucxrun); do \
         if [ $(readlink /proc/$p/ns/net) = $(readlink /proc/self/ns/net) ] && \
            tr '\\0' ' ' < /proc/$p/cmdline | grep -q -e --internal-agent; then echo $p; fi; done";
    let ended = run(rig.on(host, "sh").args(["-c", find]));
    let pids: Vec<u32> = ended
        .out()
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 1, "{ended}");
    pids[0]
}

#[test]
#[ignore = "needs the rig"]
fn codes_and_the_first_failure() {
    let rig = up(3);
    for (rank, host) in [(0, "host1"), (2, "host2"), (3, "host3")] {
        for (how, code, words) in [
            ("exit 3", 3, "exited with code 3"),
            ("kill -KILL $$", 137, "killed by signal 9 (SIGKILL)"),
            ("kill -SEGV $$", 139, "killed by signal 11 (SIGSEGV)"),
        ] {
            let text = format!("[ $PGAS_RANK = {rank} ] && {{ sleep 0.1; {how}; }}; exec sleep 60");
            let named = format!("ucxrun: rank {rank} on host {host}: {words}");
            run(&mut script(&rig, &[], &text))
                .expect(code, &[&named])
                .one_line()
                .within(5.0);
        }
    }
    // Two failures: the first one's.
    let two = "case $PGAS_RANK in 3) exit 5;; 0) sleep 1; exit 6;; *) exec sleep 60;; esac";
    run(&mut script(&rig, &[], two)).expect(5, &["rank 3 on host host3"]);
    // As ranks of a job.
    for (how, code, words) in [
        ("join exit:0", 1, "without leaving the job"),
        ("join fail:7:on_purpose exit:9", 7, "on purpose"),
        ("exit:0", 1, "before joining the job"),
        ("join kill:KILL", 137, "SIGKILL"),
    ] {
        let mut command = player(&rig, &[], "join gather:8 gather:8 leave");
        command.env("SCRIPT_2", how);
        let ended = run(&mut command);
        ended
            .expect(code, &["rank 2 on host host2", words])
            .within(5.0);
    }
    run(&mut player(&rig, &[], "join gather:100000 gather:0 leave")).expect(0, &[]);
    // Long enough for all to have started.
    let mut command = player(&rig, &["--timeout", "4"], "join gather:8 leave");
    command.env("SCRIPT_3", "forever");
    let words = ["rank 3 has not joined", "ranks 0-2 have not ended"];
    let ended = run(&mut command);
    ended.expect(124, &words).one_line().within(8.0);
    assert!(
        ended
            .err()
            .contains("  ranks 0-2: waiting for the others to start (gather 0)"),
        "{ended}"
    );
    assert!(ended.err().contains("  rank 3: sleeping"), "{ended}");
}

#[test]
#[ignore = "needs the rig"]
fn agents_start_agents() {
    let rig = up(6);
    let launch = |options: &[&str]| {
        let mut command = rig.on("host1", UCXRUN);
        command.args([
            "--host",
            "host1,host2,host3,host4,host5,host6",
            "--fan-out",
            "1",
        ]);
        command.args(options);
        command
    };
    let ended = run(&mut launch(&["sh", "-c", "echo $PGAS_RANK $(hostname)"]));
    ended.expect(0, &[]);
    let right = (0..6).map(|rank| format!("{rank} host{}", rank + 1));
    assert!(right.eq(ended.lines()), "{ended}");
    let fails = "[ $PGAS_RANK = 5 ] && exit 9; sleep 60";
    let ended = run(&mut launch(&["sh", "-c", fails]));
    ended.expect(9, &["rank 5 on host host6"]).one_line();
    // A link in the middle of the chain: those behind it are lost too.
    let mut command = launch(&["--lost-after", "2", "sh", "-c"]);
    let scratch = Scratch::new("chain");
    let text = format!(
        "echo $$ > {}/$PGAS_RANK; exec sleep 60",
        scratch.0.display()
    );
    let running = Running::start(command.arg(text));
    let pids = started_pids(&scratch, 6);
    rig.cut(&["host4"]);
    let ended = running.wait();
    ended
        .expect(125, &["ucxrun: host host4: no sign of life for 2s"])
        .one_line();
    expect_gone(&pids, Duration::from_secs(5));
}

#[test]
#[ignore = "needs the rig"]
fn hosts_that_cannot() {
    let rig = up(3);
    let fails = |args: &[&str], code: i32, words: &[&str]| {
        let mut command = rig.on("host1", UCXRUN);
        let ended = run(command.args(args));
        ended.expect(code, words).one_line().within(10.0);
    };
    let unknown = ["ucxrun: host no-such-host: ", "Could not resolve"];
    fails(&["--host", "host2,no-such-host", "true"], 125, &unknown);
    // Another port refuses: so does a host without sshd.
    let agent = "ssh -o BatchMode=yes -p 23 {host} {command}";
    fails(
        &["--agent", agent, "--host", "host2", "true"],
        125,
        &["host host2: ", "refused"],
    );
    fails(
        &["--host", HOSTS, "no-such-program"],
        127,
        &["host host", "no-such-program: no such"],
    );
    fails(
        &["--host", HOSTS, "/etc/passwd"],
        126,
        &["host host", "/etc/passwd"],
    );
    let device = ["host host", "no network device eth7, only eth0 10.77.0."];
    fails(&["--net", "eth7", "--host", HOSTS, "true"], 125, &device);
    // A launcher that the other hosts do not have; a folder that they do not have.
    let elsewhere = "cp \"$0\" /dev/shm/ucxrun && exec /dev/shm/ucxrun --host host1,host2 true";
    let mut command = rig.on("host1", "sh");
    let ended = run(command.args(["-c", elsewhere, UCXRUN]));
    ended
        .expect(125, &["host host2: ", "/dev/shm/ucxrun"])
        .one_line()
        .within(10.0);
    let folder = "mkdir /dev/shm/here && cd /dev/shm/here && exec \"$0\" --host host1,host2 true";
    let mut command = rig.on("host1", "sh");
    let ended = run(command.args(["-c", folder, UCXRUN]));
    ended
        .expect(125, &["host host2: ", "/dev/shm/here"])
        .one_line();
    // Nobody answers at all.
    rig.cut(&["host3"]);
    fails(&["--host", HOSTS, "true"], 125, &["host host3: "]);
    rig.join(&["host3"]);
    run(&mut launch(&rig, &["true"])).expect(0, &[]);
}

#[test]
#[ignore = "needs the rig"]
fn names_and_addresses() {
    let rig = up(3);
    let scratch = Scratch::new("hostfile");
    let file = scratch.0.join("hosts");
    fs::write(&file, "# ours\nhost2 slots=2 # two\nhost3-six:1\nfd77::1\n").unwrap();
    let mut command = rig.on("host1", UCXRUN);
    command.args(["--hostfile", file.to_str().unwrap(), "-v", "sh", "-c"]);
    let ended = run(command.arg("echo $PGAS_RANK $PGAS_LOCAL_RANK $PGAS_LOCAL_SIZE $(hostname)"));
    ended.expect(0, &["host host2: ready as host2", "eth0 10.77.0.2 fd77::2"]);
    assert_eq!(
        ended.lines(),
        ["0 0 2 host2", "1 1 2 host2", "2 0 1 host3", "3 0 1 host1"]
    );
    let device = |options: &[&str]| {
        let mut command = launch(&rig, &["-v"]);
        command.env_remove("UCX_NET_DEVICES").args(options);
        run(command.args(["sh", "-c", "echo $UCX_NET_DEVICES"]))
    };
    let ended = device(&["--net", "eth0"]);
    ended.expect(0, &["network: eth0 (--net)"]);
    assert_eq!(ended.lines(), ["eth0"; 4]);
    let ended = device(&["--net", "eth0", "-x", "UCX_NET_DEVICES=lo"]);
    ended.expect(0, &["network: lo (UCX_NET_DEVICES)"]);
    assert_eq!(ended.lines(), ["lo"; 4]);
    device(&[]).expect(0, &["network: chosen by UCX"]);
    // A host that cannot resolve its own name runs a local job without asking anybody.
    let alone = "hostname no-such-name; exec \"$0\" -n 2 sh -c 'echo $PGAS_RANK $(hostname)'";
    let mut command = rig.on("host1", "unshare");
    let ended = run(command.args(["--uts", "sh", "-c", alone, UCXRUN]));
    ended.expect(0, &[]).within(2.0);
    assert_eq!(ended.lines(), ["0 no-such-name", "1 no-such-name"]);
}

#[test]
#[ignore = "needs the rig"]
fn same_surroundings_everywhere() {
    let rig = up(3);
    let scratch = Scratch::new("surroundings with space");
    let print = "pwd; umask; ulimit -Sa; ulimit -Hn; env -u PGAS_RANK -u PGAS_LOCAL_RANK \
         -u PGAS_LOCAL_SIZE -u PGAS_CONTROL -u PGAS_SIZE -u PGAS_SECRET -u PGAS_JOB -u _ | sort; \
         printf '%s|' \"$@\"";
    let args = ["", "a b", "x=y", "--help", "-n", "*", "a\nb\\"];
    let out = scratch.0.join("out");
    let mut all = vec!["-c", "umask 027; ulimit -Sn 500; exec \"$@\"", "sh", UCXRUN];
    all.extend([
        "--host",
        HOSTS,
        "--output-dir",
        out.to_str().unwrap(),
        "sh",
        "-c",
        print,
        "sh",
    ]);
    all.extend(args);
    let mut command = rig.on("host1", "sh");
    command.args(all).current_dir(&scratch.0);
    for number in 0..2000 {
        command.env(format!("MANY_{number}"), "x");
    }
    command.env("EQUALS", "a=b=c").env("SPACES", " a  b ");
    command
        .env("LINES", "a\nb")
        .env("EMPTY", "")
        .env("SLASH", "\\");
    command.env("UCX_ERROR_SIGNALS", "SEGV").env_remove("HOME");
    run(&mut command).expect(0, &[]);
    let read = |rank: usize| fs::read_to_string(out.join(format!("rank.{rank}.out"))).unwrap();
    // Rank 0 is a child of the launcher's machine, where it is as tests/passing.rs wants it.
    let first = read(0);
    assert!(first.ends_with("|a b|x=y|--help|-n|*|a\nb\\|"), "{first}");
    assert!(first.contains("\nMANY_1999=x\n") && first.contains("\nUCX_ERROR_SIGNALS=SEGV\n"));
    assert!(
        first.contains("\n0027\n") && !first.contains("SSH_"),
        "{first}"
    );
    for rank in 1..4 {
        assert!(read(rank) == first, "rank {rank}:\n{}", read(rank));
    }
    // A folder that is gone is an error with hosts, as it cannot be there too.
    let gone = "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" --host host2,host3 true";
    let mut command = rig.on("host1", "sh");
    let ended = run(command.args(["-c", gone, UCXRUN]).current_dir(&scratch.0));
    ended.expect(125, &["working directory"]).one_line();
}

#[test]
#[ignore = "needs the rig"]
fn output_is_whole() {
    let rig = up(3);
    let line = "x".repeat(2980);
    let text = format!("for i in $(seq 10000); do echo \"$PGAS_RANK $i {line} .\"; done");
    let ended = run(&mut script(&rig, &[], &text));
    ended.expect(0, &[]);
    let mut seen = BTreeSet::new();
    for one in ended.out().lines() {
        let (number, rest) = one.split_once(&line).expect("a torn line");
        assert_eq!(rest, " .");
        assert!(seen.insert(number.to_owned()), "twice: {number}");
    }
    assert_eq!(seen.len(), 40_000);
    // With labels, and into files here.
    let ended = run(&mut script(
        &rig,
        &["-l"],
        "echo $PGAS_RANK; echo $PGAS_RANK >&2",
    ));
    assert_eq!(ended.lines(), ["[0] 0", "[1] 1", "[2] 2", "[3] 3"]);
}

#[test]
#[ignore = "needs the rig"]
fn input_goes_to_another_host() {
    let rig = up(3);
    // 50 MB through a slow reader on host 2.
    let mut command = rig.on("host1", UCXRUN);
    command.args(["--host", "host2,host3", "sh", "-c"]);
    let slowly =
        "[ $PGAS_RANK = 1 ] || { dd bs=65536 count=100 status=none; sleep 1; cat; } | cksum";
    command
        .arg(slowly)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut bytes = Vec::new();
    for number in 0..50_000_000_u32 / 8 {
        bytes.extend_from_slice(format!("{number:07}\n").as_bytes());
    }
    let copy = bytes.clone();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&copy).unwrap());
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    let mut cksum = Command::new("cksum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = cksum.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let right = cksum.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(
        out.contains(&common::text(&right.stdout)),
        "{out:?} {right:?}"
    );
    // A loop around the launcher keeps its input.
    let around = "for i in 1 2 3; do echo $i; done | while read i; do \"$0\" --stdin none --host host2 echo got $i; done";
    let mut command = rig.on("host1", "sh");
    assert_eq!(
        run(command.args(["-c", around, UCXRUN])).out(),
        "got 1\ngot 2\ngot 3\n"
    );
    // A rank that does not read does not hold the job.
    let mut command = launch(&rig, &["true"]);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let input = running.child.stdin.take();
    running.wait().expect(0, &[]).within(5.0);
    drop(input);
}

#[test]
#[ignore = "needs the rig"]
fn signals_reach_every_host() {
    let rig = up(3);
    let wait = "while :; do sleep 0.02; done";
    for signal in ["USR1", "USR2"] {
        let traps = format!("trap 'echo got; exit 0' {signal}");
        let running = started(&rig, &traps, wait);
        running.0.signal(signal);
        let ended = running.0.wait();
        ended.expect(0, &[]).within(5.0);
        assert_eq!(ended.lines(), ["got"; 4]);
    }
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        let (running, pids) = started(&rig, ":", "exec sleep 60");
        running.signal(signal);
        running
            .wait()
            .expect(code, &["interrupted by signal", signal])
            .one_line()
            .within(4.0);
        expect_gone(&pids, Duration::ZERO);
    }
    // Ranks that ignore what can be ignored.
    let (running, pids) = started(&rig, "trap '' INT TERM", wait);
    let asked = Instant::now();
    running.signal("INT");
    running.wait().expect(130, &["SIGINT"]);
    assert!(asked.elapsed() < Duration::from_secs(6));
    expect_gone(&pids, Duration::ZERO);
    // Stopped and continued, for longer than a host may be silent.
    let scratch = Scratch::new("stopped");
    let count = format!(
        "echo $$ > {0}/$PGAS_RANK; while [ ! -e {0}.go ]; do sleep 0.02; done",
        scratch.0.display()
    );
    let mut command = script(&rig, &["--lost-after", "2"], &count);
    let running = Running::start(&mut command);
    let ranks = started_pids(&scratch, 4);
    running.signal("TSTP");
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .unwrap_or_default()
            .starts_with('T')
    };
    eventually("all have stopped", || ranks.iter().all(|&pid| state(pid)));
    std::thread::sleep(Duration::from_millis(4500));
    assert!(ranks.iter().all(|&pid| alive(pid)));
    running.signal("CONT");
    eventually("all go on", || !ranks.iter().any(|&pid| state(pid)));
    let go = scratch.0.with_extension("go");
    fs::write(&go, "").unwrap();
    let ended = running.wait();
    fs::remove_file(go).unwrap();
    ended.expect(0, &[]);
}

/// A job whose 4 ranks have started, and their processes.
fn started(rig: &Rig, traps: &str, body: &str) -> (Running, Vec<u32>) {
    let scratch = Scratch::new("started");
    let dir = scratch.0.display();
    let text = format!("{traps}; echo $$ > {dir}/$PGAS_RANK; {body}");
    let running = Running::start(&mut script(rig, &[], &text));
    let pids = started_pids(&scratch, 4);
    (running, pids)
}

/// What is in /dev/shm of every host.
fn shared(rig: &Rig) -> String {
    ["host1", "host2", "host3"]
        .map(|host| run(rig.on(host, "ls").args(["-A", "/dev/shm"])).out())
        .concat()
}

#[test]
#[ignore = "needs the rig"]
fn killed_launchers_and_agents_leave_nothing() {
    let rig = up(3);
    let before = shared(&rig);
    // A rank that is ours or anybody's, and what it has started, also with an environment of its own.
    let ways = [
        "exec sleep 60",
        "sleep 60 & echo $! >> $F; env -i sleep 60 & echo $! >> $F; wait",
        "trap '' TERM INT HUP; sleep 60 & echo $! >> $F; while :; do :; done",
    ];
    for way in ways {
        for victim in ["launcher", "host2", "host3", "ssh"] {
            let scratch = Scratch::new("killed");
            let dir = scratch.0.display();
            let text = format!("F={dir}/$PGAS_RANK; echo $$ > $F; {way}");
            let running = Running::start(&mut script(&rig, &[], &text));
            std::thread::sleep(Duration::from_millis(300));
            let pids = started_pids(&scratch, 4);
            let helpers = helpers(running.pid());
            assert!(helpers.len() >= 4, "{helpers:?}");
            let agents = ["host2", "host3"].map(|host| agent_on(&rig, host));
            match victim {
                "launcher" => running.signal("KILL"),
                "ssh" => {
                    let is_ssh = |&&pid: &&u32| {
                        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
                        name.is_ok_and(|name| name == "ssh\n")
                    };
                    kill(*helpers.iter().find(is_ssh).unwrap(), "KILL");
                }
                "host2" => kill(agents[0], "KILL"),
                _ => kill(agents[1], "KILL"),
            }
            expect_gone(&pids, Duration::from_secs(3));
            let ended = running.wait();
            match victim {
                "launcher" => assert_eq!(ended.code, 137),
                "ssh" => drop(ended.expect(125, &["host host"])),
                host => drop(ended.expect(125, &[&format!("host {host}: its agent has ended")])),
            }
            expect_gone(&helpers, Duration::from_secs(3));
            expect_gone(&agents, Duration::from_secs(3));
        }
    }
    assert_eq!(shared(&rig), before);
    run(&mut launch(&rig, &["true"])).expect(0, &[]);
}

#[test]
#[ignore = "needs the rig"]
fn cut_links_end_the_job_everywhere() {
    let rig = up(3);
    let scratch = Scratch::new("cut");
    let text = format!(
        "echo $$ > {}/$PGAS_RANK; exec sleep 60",
        scratch.0.display()
    );
    let running = Running::start(&mut script(&rig, &["--lost-after", "2"], &text));
    let pids = started_pids(&scratch, 4);
    rig.cut(&["host3"]);
    let cut = Instant::now();
    let ended = running.wait();
    ended
        .expect(125, &["ucxrun: host host3: no sign of life for 2s"])
        .one_line();
    assert!(
        cut.elapsed() < Duration::from_secs(5),
        "{:?}",
        cut.elapsed()
    );
    // On the host that is cut off too, within the limit and the grace.
    expect_gone(&pids, Duration::from_secs(3));
    rig.join(&["host3"]);
    run(&mut launch(&rig, &["true"])).expect(0, &[]);
    // A slow link is not a lost one.
    rig.slow("host3", "4mbit");
    let ended = slow(&rig);
    assert!(
        ended.took > Duration::from_secs(4),
        "{:?}: was it throttled?",
        ended.took
    );
}

/// 3 MB from host 3, with signs of life behind them.
fn slow(rig: &Rig) -> Ended {
    let flood = "[ $PGAS_RANK = 3 ] && seq -w 400000; true";
    let ended = run(&mut script(rig, &["--lost-after", "1"], flood));
    ended.expect(0, &[]);
    assert_eq!(ended.lines().len(), 400_000);
    ended
}
