//! Options that change how ranks are started, watched and reported.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::ranks::ucxrun_script;
use common::{Running, Scratch, eventually, expect_gone, run, ucxrun};

#[test]
#[ignore = "the ranks' program; started by the other tests"]
fn rank() {
    common::ranks::play();
}

const AFFINITY: &str = "echo $PGAS_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)";

/// The processors that this process may use.
fn allowed() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    line.unwrap().to_owned()
}

#[test]
fn ranks_are_bound_where_asked() {
    let ended = run(&mut ucxrun([
        "-n",
        "1",
        "--bind",
        "0",
        "--report-bindings",
        "sh",
        "-c",
        AFFINITY,
    ]));
    ended.expect(0, &["ucxrun: rank 0 on host ", ": bound to processors 0"]);
    assert_eq!(ended.lines(), ["0 0"]);
    let ended = run(&mut ucxrun([
        "-n",
        "1",
        "--bind",
        "core",
        "--report-bindings",
        "sh",
        "-c",
        AFFINITY,
    ]));
    ended.expect(0, &["bound to processors 0"]);
    // As many ranks as processors, each with its own; on several hosts each host begins again.
    if !common::pretending() {
        let cpus = std::thread::available_parallelism().unwrap().get();
        let ended =
            run(ucxrun(["--bind", "core", "-n", &cpus.to_string()]).args(["sh", "-c", AFFINITY]));
        ended.expect(0, &[]);
        let mut bound: Vec<_> = ended
            .lines()
            .iter()
            .map(|line| line.split(' ').nth(1).unwrap().to_owned())
            .collect();
        assert!(
            bound.iter().all(|list| list.parse::<u32>().is_ok()),
            "{ended}"
        );
        bound.sort_unstable();
        bound.dedup();
        assert_eq!(bound.len(), cpus, "{ended}");
    }
    // Not bound: without the option, and when there are too many.
    for options in [
        &["-n", "2"][..],
        &["-n", "500", "--bind", "core", "--report-bindings"],
    ] {
        let ended = run(ucxrun(options).args(["sh", "-c", AFFINITY]));
        ended.expect(0, &[]);
        let not = format!(" {}", allowed());
        assert!(
            ended.lines().iter().all(|line| line.ends_with(&not)),
            "{ended}"
        );
        if options.len() > 2 {
            ended.expect(0, &["500 ranks on ", "none is bound"]);
        }
    }
    let numa = run(&mut ucxrun([
        "-n", "1", "--bind", "numa", "sh", "-c", AFFINITY,
    ]));
    numa.expect(0, &[]);
    for (bind, words) in [
        ("9999", "--bind"),
        ("1000", "no processor 1000"),
        ("cores", "none of none, core"),
    ] {
        run(&mut ucxrun(["-n", "1", "--bind", bind, "true"])).expect(125, &[words]);
    }
    let short = run(&mut ucxrun(["-n", "3", "--bind", "0", "true"]));
    short.expect(125, &["--bind has 1 entries for "]);
}

#[test]
fn programs_are_wrapped() {
    let wrap = [
        "-n",
        "3",
        "--wrap",
        "env 'WRAPPED=a b' sh -c 'echo wrapped $PGAS_RANK; exec \"$@\"' -",
    ];
    let ended = run(ucxrun(wrap).args(["sh", "-c", "echo $WRAPPED"]));
    assert_eq!(
        ended.lines(),
        ["a b", "a b", "a b", "wrapped 0", "wrapped 1", "wrapped 2"]
    );
    let one = [
        "-n",
        "3",
        "--wrap",
        "echo instead of",
        "--wrap-rank",
        "1",
        "echo",
        "x",
    ];
    assert_eq!(
        run(&mut ucxrun(one)).lines(),
        ["instead of echo x", "x", "x"]
    );
    run(&mut ucxrun([
        "-n",
        "2",
        "--wrap",
        "env",
        "--wrap-rank",
        "2",
        "true",
    ]))
    .expect(125, &["rank 2 of 2"]);
    run(&mut ucxrun(["--wrap-rank", "0", "true"])).expect(125, &["--wrap"]);
    run(&mut ucxrun(["--wrap", "a 'b", "true"])).expect(125, &["--wrap", "quote"]);
}

#[test]
fn several_programs_are_one_job() {
    let words = [
        "-n",
        "2",
        "sh",
        "-c",
        "echo first $PGAS_RANK $PGAS_SIZE $OWN",
        ":",
        "-n",
        "3",
        "-x",
        "OWN=own",
        "sh",
        "-c",
        "echo second $PGAS_RANK $PGAS_SIZE $OWN",
        ":",
        "echo",
        "third",
    ];
    let ended = run(&mut ucxrun(words));
    ended.expect(0, &[]);
    let right = [
        "first 0 6",
        "first 1 6",
        "second 2 6 own",
        "second 3 6 own",
        "second 4 6 own",
        "third",
    ];
    assert_eq!(ended.lines(), right);
    run(&mut ucxrun(["true", ":", "sh", "-c", "exit 4"])).expect(4, &["rank 1 on host"]);
    run(&mut ucxrun(["true", ":", "no-such-program"])).expect(127, &["no-such-program"]);
    run(&mut ucxrun(["true", ":"])).expect(125, &["PROGRAM"]);
}

#[test]
fn failing_ranks_may_be_let_go() {
    let script =
        "case $PGAS_RANK in 1) sleep 0.1; exit 3;; 2) exit 4;; *) sleep 0.5; echo done;; esac";
    let ended = run(ucxrun(["--keep-going", "-n", "4"]).args(["sh", "-c", script]));
    ended.expect(4, &["rank 2 on host"]).one_line();
    assert_eq!(ended.lines(), ["done", "done"]);
    run(&mut ucxrun(["--keep-going", "-n", "4", "true"])).expect(0, &[]);
    let killed = "[ $PGAS_RANK = 1 ] && kill -9 $$; echo done";
    let ended = run(ucxrun(["--keep-going", "-n", "3"]).args(["sh", "-c", killed]));
    ended.expect(137, &["rank 1 on host", "SIGKILL"]);
    assert_eq!(ended.lines(), ["done", "done"]);
}

#[test]
fn what_would_be_started() {
    let line = [
        "-n",
        "2",
        "--host",
        "a,b:3",
        "-x",
        "V=x \"y\"",
        "no such",
        "a b",
        "",
        ":",
        "-n",
        "2",
        "b",
    ];
    let ended = run(Command::new(env!("CARGO_BIN_EXE_ucxrun"))
        .arg("--dry-run")
        .args(line));
    ended.expect(0, &[]);
    let common = "V='x \"y\"' UCX_ERROR_SIGNALS=''";
    let right = [
        format!("rank 0 on a: {common} 'no such' 'a b' ''"),
        format!("rank 1 on b: {common} 'no such' 'a b' ''"),
        format!("rank 2 on b: {common} b"),
        format!("rank 3 on b: {common} b"),
    ];
    assert_eq!(ended.out().lines().collect::<Vec<_>>(), right);
    let ended = run(Command::new(env!("CARGO_BIN_EXE_ucxrun"))
        .arg("--dry-run=json")
        .args(line));
    ended.expect(0, &[]);
    let first = "[{\"rank\": 0, \"host\": \"a\", \"local_rank\": 0, \"local_size\": 1, \
         \"command\": [\"no such\", \"a b\", \"\"], \
         \"env\": {\"V\": \"x \\\"y\\\"\", \"UCX_ERROR_SIGNALS\": \"\"}},\n";
    assert!(ended.out().starts_with(first), "{ended}");
    assert!(ended.out().ends_with("}}]\n"), "{ended}");
}

#[test]
fn ranks_are_placed() {
    for (line, right) in [
        (&["--host", "a:2,b,c"][..], "a a b c"),
        (&["--host", "a:2,b,c", "-n", "2"], "a a"),
        (&["--host", "a:2,b,c", "-n", "2", "--map", "node"], "a b"),
        (&["--host", "a:2,b,c", "-N", "2"], "a a b"),
        (&["--host", "a:2,b,c", "-N", "2", "--ppn", "2"], "a a b b"),
        (
            &["--host", "a", "--host", "b", "--ppn", "2", "--map", "node"],
            "a b a b",
        ),
        (&["--host", "a,b", "-n", "4"], "a a b b"),
        (&["--host", "[fd00::1]:2", "-np", "1"], "fd00::1"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ucxrun"));
        let ended = run(command.arg("--dry-run").args(line).arg("p"));
        ended.expect(0, &[]);
        let hosts: Vec<String> = ended
            .out()
            .lines()
            .map(|line| {
                let host = line.split(' ').nth(3).unwrap();
                host.trim_end_matches(':').to_owned()
            })
            .collect();
        assert_eq!(hosts.join(" "), right, "{line:?}");
    }
}

#[test]
fn hosts_that_make_no_sense() {
    for (line, words) in [
        (&["--host", "a,-oProxyCommand=x"][..], "is not a host"),
        (&["--host", "a:0"], "number of slots"),
        (&["--hostfile", "/no/such/file"], "/no/such/file"),
        (
            &["--host", "a", "--hostfile", "/dev/null"],
            "cannot be used with",
        ),
        (&["--hostfile", "/dev/null"], "no host in it"),
        (&["--host", "a,b", "-N", "3"], "there are 2 hosts"),
        (&["--ppn", "2"], "--ppn needs --host"),
        (&["-N", "2"], "-N needs --host"),
        (&["--host", "a", "--lost-after", "0.5"], "at least 1 second"),
        (&["--host", "a", "--agent", "'"], "quote"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ucxrun"));
        run(command.args(line).arg("true"))
            .expect(125, &[words])
            .within(2.0);
    }
}

#[test]
fn completions_and_the_manual_page() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = run(Command::new(env!("CARGO_BIN_EXE_ucxrun")).args(["--completions", shell]));
        ended.expect(0, &[]);
        assert!(ended.out().contains("hostfile"), "{shell}");
    }
    let ended = run(Command::new(env!("CARGO_BIN_EXE_ucxrun")).arg("--man"));
    ended.expect(0, &[]);
    assert!(ended.out().contains(".TH ucxrun") && ended.out().contains("Exit codes"));
}

#[test]
fn late_ranks_say_what_they_do() {
    // They sleep, but may both be seen just when they are awake.
    let mut seen_asleep = false;
    for _ in 0..5 {
        let mut command = ucxrun_script(&["--timeout", "1"], 4, "join gather:8 leave");
        command
            .env("SCRIPT_2", "forever")
            .env("SCRIPT_3", "forever");
        let ended = run(&mut command);
        ended.expect(124, &["time is up after 1s"]).one_line();
        for line in [
            "  ranks 0-1: waiting for the others to start (gather 0)",
            " s of processor time",
        ] {
            assert!(ended.err().contains(line), "no {line:?}: {ended}");
        }
        // Together, unless one is just awake.
        let either = |words: &[&str]| words.iter().all(|words| ended.err().contains(words));
        let told = either(&["  ranks 2-3: "]) || either(&["  rank 2: ", "  rank 3: "]);
        assert!(told, "{ended}");
        seen_asleep = ended.err().contains("sleeping in ");
        if seen_asleep {
            break;
        }
    }
    assert!(seen_asleep, "never seen asleep");
    let loops = [
        "--timeout",
        "0.5",
        "-n",
        "1",
        "sh",
        "-c",
        "while :; do :; done",
    ];
    let ended = run(&mut ucxrun(loops));
    assert!(ended.err().contains("  rank 0: running, 0."), "{ended}");
}

#[test]
fn what_ranks_have_done_is_shown_and_written() {
    let scratch = Scratch::new("stats");
    let prefix = scratch.0.join("job.of.mine");
    let option = format!("--stats={}", prefix.display());
    let ended = run(&mut ucxrun_script(&[&option], 3, "join gather:8 leave"));
    ended
        .expect(0, &["ucxrun: what the ranks have done:"])
        .one_line();
    // These ranks count nothing.
    assert!(ended.err().contains("     2              -"), "{ended}");
    let read = |end: &str| fs::read_to_string(format!("{}{end}", prefix.display())).unwrap();
    assert!(read(".json").contains("{\"rank\": 2, \"traffic\": null}"));
    assert!(read(".svg").starts_with("<svg "));
    // Ranks are told, and only then.
    let asked = [
        "--stats=/dev/null/x",
        "-n",
        "1",
        "sh",
        "-c",
        "echo $PGAS_STATS.",
    ];
    let ended = run(&mut ucxrun(asked));
    ended.expect(125, &["ucxrun: /dev/null/x.json: "]);
    assert_eq!(ended.out(), "1.\n");
    assert_eq!(
        run(&mut ucxrun(["-n", "1", "sh", "-c", "echo $PGAS_STATS."])).out(),
        ".\n"
    );
}

#[test]
fn killed_launcher_leaves_nothing_that_ranks_have_started() {
    let ways = [
        "sleep 60 & echo $! >> $F; sleep 60 & echo $! >> $F; wait",
        // Without the job's variables, and in a process group of its own.
        "env -i sleep 60 & echo $! >> $F; wait",
        "set -m; sleep 60 & echo $! >> $F; wait",
    ];
    for way in ways {
        let scratch = Scratch::new("keeper");
        let script = format!("F={}/$PGAS_RANK; echo $$ > $F; {way}", scratch.0.display());
        let running = Running::start(ucxrun(["-n", "3"]).args(["sh", "-c", &script]));
        let files = || {
            (0..3).map(|rank| {
                fs::read_to_string(scratch.0.join(rank.to_string())).unwrap_or_default()
            })
        };
        let lines = way.matches("echo").count() + 1;
        eventually("all have started", || {
            files().all(|text| text.lines().count() == lines)
        });
        let pids: Vec<u32> = files()
            .flat_map(|text| {
                text.lines()
                    .map(|pid| pid.parse().unwrap())
                    .collect::<Vec<_>>()
            })
            .collect();
        assert!(pids.len() >= 6);
        running.signal("KILL");
        expect_gone(&pids, Duration::from_secs(3));
        assert_eq!(running.wait().code, 137);
    }
    // Another session is another matter, as at any end.
    let scratch = Scratch::new("session");
    let file = scratch.0.join("pid");
    let script = "setsid sh -c 'echo $$ > \"$0\"; exec sleep 60' \"$0\" & wait";
    let running = Running::start(ucxrun(["-n", "1", "sh", "-c", script]).arg(&file));
    eventually("it has started", || {
        fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
    });
    let pid: u32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    running.signal("KILL");
    running.wait();
    std::thread::sleep(Duration::from_millis(300));
    assert!(common::alive(pid));
    common::kill(pid, "KILL");
}

/// Its process group and session are then from outside, which the system tells as 0.
#[test]
fn in_a_process_namespace_that_was_entered() {
    let as_root: &[&str] = match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--user", "--map-root-user"],
    };
    let inside = |script: &str, file: &Path| {
        let job = ucxrun([
            "-n",
            "2",
            "sh",
            "-c",
            "sleep 60 & echo $! > $F.$PGAS_RANK; wait",
        ]);
        let mut command = Command::new("unshare");
        command.args(as_root);
        command.args(["--pid", "--fork", "--mount-proc", "sh", "-c", script]);
        command.arg(job.get_program()).args(job.get_args());
        command.env("F", file).stdin(Stdio::null());
        run(&mut command)
    };
    let scratch = Scratch::new("entered");
    let file = scratch.0.join("pid");
    let ended = inside(
        "echo $(cut -d' ' -f5,6 /proc/self/stat); \"$0\" -n 2 true",
        &file,
    );
    ended.expect(0, &[]);
    assert_eq!(ended.lines(), ["0 0"]);
    // Ended and killed: nothing is left.
    for (signal, code) in [("TERM", 143), ("KILL", 137)] {
        let script = format!(
            "\"$0\" \"$@\" & job=$!
            for i in $(seq 100); do [ -s $F.0 ] && [ -s $F.1 ] && break; sleep 0.05; done
            kill -s {signal} $job; wait $job; echo $?
            for i in $(seq 60); do
                left=
                for pid in $(cat $F.0 $F.1); do grep -qs ') [^Z]' /proc/$pid/stat && left=$pid; done
                [ -n \"$left\" ] || {{ echo none; break; }}
                sleep 0.05
            done
            rm $F.0 $F.1"
        );
        let ended = inside(&script, &file);
        ended.expect(0, &[]);
        assert_eq!(
            ended.lines(),
            [code.to_string(), "none".to_owned()],
            "{ended}"
        );
    }
}
