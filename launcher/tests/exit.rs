//! Exit codes and the one line, with programs that never join.

mod common;

use std::time::Duration;

use common::{expect_gone, run, ucxrun, ucxrun_sh};

/// Pids that ranks printed as `pid N`.
fn pids(ended: &common::Ended) -> Vec<u32> {
    let out = ended.out();
    let pids: Vec<u32> = out
        .lines()
        .filter_map(|line| line.strip_prefix("pid ")?.parse().ok())
        .collect();
    assert!(!pids.is_empty(), "{ended}");
    pids
}

#[test]
fn all_well() {
    let ended = run(&mut ucxrun_sh(4, "echo $PGAS_RANK of $PGAS_SIZE"));
    ended.expect(0, &[]);
    assert_eq!(ended.lines(), ["0 of 4", "1 of 4", "2 of 4", "3 of 4"]);
    assert_eq!(ended.err(), "");
}

#[test]
fn ranks_default_to_the_cores() {
    let ended = run(&mut ucxrun(["sh", "-c", "echo $PGAS_SIZE"]));
    let cores = match common::pretending() {
        false => std::thread::available_parallelism().unwrap().get(),
        // The slots.
        true => 4,
    };
    assert_eq!(ended.lines(), vec![cores.to_string(); cores], "{ended}");
}

#[test]
fn first_failure_is_named_and_nothing_is_left() {
    for (how, code, words) in [
        ("exit 3", 3, "exited with code 3"),
        ("kill -KILL $$", 137, "killed by signal 9 (SIGKILL)"),
        ("kill -SEGV $$", 139, "killed by signal 11 (SIGSEGV)"),
        ("kill -ABRT $$", 134, "killed by signal 6 (SIGABRT)"),
        ("kill -TERM $$", 143, "killed by signal 15 (SIGTERM)"),
        ("exec no-such-program 2>&-", 127, "exited with code 127"),
    ] {
        for others in [
            "sleep 60",
            "while :; do :; done",
            "trap '' TERM INT; sleep 60; sleep 60",
        ] {
            let script = format!(
                "echo pid $$; if [ $PGAS_RANK = 1 ]; then sleep 0.1; {how}; else {others}; fi"
            );
            let ended = run(&mut ucxrun_sh(4, &script));
            ended
                .expect(code, &["ucxrun: rank 1 on host ", words])
                .one_line()
                .within(3.0);
            expect_gone(&pids(&ended), Duration::ZERO);
        }
    }
}

#[test]
fn stopped_ranks_end_too() {
    let script = "echo pid $$; [ $PGAS_RANK = 1 ] && { sleep 0.2; exit 4; }; kill -STOP $$";
    let ended = run(&mut ucxrun_sh(3, script));
    ended.expect(4, &["rank 1 "]).within(3.0);
    expect_gone(&pids(&ended), Duration::ZERO);
}

#[test]
fn grandchildren_in_the_group_end_with_the_job() {
    let script = "sleep 60 & echo pid $!; sleep 60 & echo pid $!; exit $CODE";
    for code in ["0", "3"] {
        let ended = run(ucxrun_sh(2, script).env("CODE", code));
        ended.expect(code.parse().unwrap(), &[]).within(2.0);
        expect_gone(&pids(&ended), Duration::from_secs(1));
    }
}

#[test]
fn a_session_of_its_own_outlives_the_job() {
    let ended = run(&mut ucxrun_sh(
        1,
        "setsid sh -c 'echo pid $$; exec sleep 60' & sleep 0.3",
    ));
    ended.expect(0, &[]).within(5.0);
    let pids = pids(&ended);
    assert!(common::alive(pids[0]));
    common::kill(pids[0], "KILL");
}

#[test]
fn handler_of_a_survivor_has_a_second() {
    let script = "if [ $PGAS_RANK = 0 ]; then sleep 0.3; exit 5; fi
        trap 'sleep 0.8; echo cleaned up; exit' TERM; echo ready; while :; do sleep 0.01; done";
    let ended = run(&mut ucxrun_sh(2, script));
    ended.expect(5, &["rank 0 "]).within(3.0);
    assert_eq!(ended.out(), "ready\ncleaned up\n");
}

#[test]
fn own_failures_have_own_codes() {
    run(&mut ucxrun(["no-such-program"])).expect(127, &["ucxrun: ", "no-such-program: no such"]);
    run(&mut ucxrun(["./no-such-program"])).expect(127, &["no such"]);
    run(&mut ucxrun(["/etc/passwd"])).expect(126, &["/etc/passwd: Permission denied"]);
    run(&mut ucxrun(["/"])).expect(126, &["/: "]);
    run(&mut ucxrun([""])).expect(127, &[]);
    for usage in [
        &[][..],
        &["-n", "0", "true"],
        &["-n", "x", "true"],
        &["--bogus", "true"],
    ] {
        run(&mut ucxrun(usage)).expect(125, &["rror"]);
    }
    run(&mut ucxrun(["--stdin", "7", "-n", "2", "true"])).expect(125, &["rank 7 of 2"]);
    run(&mut ucxrun(["-x", "NO_SUCH_VARIABLE", "true"])).expect(125, &["NO_SUCH_VARIABLE"]);
    run(&mut ucxrun(["--output-dir", "/dev/null/x", "true"])).expect(125, &["/dev/null/x"]);
    let help = run(&mut ucxrun(["--help"]));
    help.expect(0, &[]);
    assert!(help.out().contains("Examples:"));
}

#[test]
fn script_without_its_interpreter() {
    let scratch = common::Scratch::new("interpreter");
    let script = scratch.script("p", "#!/no/such/interpreter\n");
    run(&mut ucxrun([script])).expect(127, &["interpreter"]);
}

#[test]
fn timeout_ends_the_job() {
    let ended = run(&mut ucxrun(["--timeout", "0.5", "-n", "3", "sleep", "60"]));
    ended
        .expect(124, &["time is up after 500ms; ranks 0-2 have not ended"])
        .one_line();
    ended.within(2.0);
    run(&mut ucxrun(["--timeout", "30", "-n", "3", "true"]))
        .expect(0, &[])
        .within(5.0);
}

#[test]
fn code_256_is_not_success() {
    // A rank cannot exit with it, but can report it; see ranks.rs. Here: the highest that it can.
    run(&mut ucxrun_sh(1, "exit 255")).expect(255, &["exited with code 255"]);
}
