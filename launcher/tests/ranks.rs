//! Ranks that join: gathers, leaving, and every way of failing between.

mod common;

use common::ranks::{play, ucxrun_script};
use common::{Running, Scratch, eventually, run};

#[test]
#[ignore = "the ranks' program; started by the other tests"]
fn rank() {
    play();
}

const GOOD: &str = "join gather:8 gather:0 gather:1000 leave";

#[test]
fn ranks_gather_and_leave() {
    for ranks in [1, 2, 7, 16] {
        run(&mut ucxrun_script(&[], ranks, GOOD)).expect(0, &[]);
    }
}

#[test]
fn large_gathers() {
    run(&mut ucxrun_script(
        &[],
        4,
        "join gather:1048576 gather:1048576 leave",
    ))
    .expect(0, &[]);
}

#[test]
fn blob_over_the_limit_is_an_error_at_the_caller() {
    let ended = run(&mut ucxrun_script(&[], 2, "join gather:1048577 leave"));
    ended.expect(46, &["TooLarge", "1048577", "1048576"]);
}

/// The failing rank is 1 of 4; the others wait in the launcher (gather), compute, or sleep.
fn fails(script: &str, code: i32, words: &[&str]) {
    for others in [
        "join gather:8 gather:8 leave",
        "join sh:while_:;do_:;done",
        "join forever",
        "forever",
    ] {
        let mut command = ucxrun_script(&[], 4, others);
        command.env("SCRIPT_1", script);
        let ended = run(&mut command);
        let words: Vec<_> = ["ucxrun: rank 1 on host "]
            .iter()
            .chain(words)
            .copied()
            .collect();
        ended.expect(code, &words).one_line().within(3.0);
    }
}

#[test]
fn rank_that_reports() {
    fails(
        "join fail:101:panicked_at_x.rs exit:101",
        101,
        &["panicked at x.rs"],
    );
    fails("join sleep:50 fail:7:aborted exit:9", 7, &["aborted"]);
    fails("join fail:0:why exit:0", 1, &["why"]);
    fails("join fail:5:why forever", 5, &["why"]);
}

#[test]
fn rank_that_exits() {
    fails("join exit:3", 3, &["exited with code 3"]);
    fails(
        "join exit:0",
        1,
        &["exited with code 0 without leaving the job"],
    );
}

#[test]
fn rank_that_exits_before_joining() {
    // The last of the others' ways to wait never joins: without any rank in the job, exit 0 is fine.
    for others in ["join gather:8 gather:8 leave", "sleep:300 join forever"] {
        let mut command = ucxrun_script(&[], 4, others);
        command.env("SCRIPT_1", "exit:0");
        let ended = run(&mut command);
        ended
            .expect(1, &["rank 1 ", "exited with code 0 before joining the job"])
            .within(3.0);
    }
}

#[test]
fn rank_that_is_killed() {
    // The first one only makes Rust's handler restore the default, in whichever thread; one that comes before that is lost.
    fails(
        "join kill:SEGV sleep:50 kill:SEGV sleep:500 kill:SEGV forever",
        139,
        &["killed by signal 11 (SIGSEGV)"],
    );
    fails(
        "join kill:KILL forever",
        137,
        &["killed by signal 9 (SIGKILL)"],
    );
    fails("join abort", 134, &["killed by signal 6 (SIGABRT)"]);
    fails("kill:KILL forever", 137, &["SIGKILL"]);
}

/// A rank that is killed while UCX starts, by somebody or with the launcher, leaves no System V segment.
#[test]
fn killed_ranks_leave_no_segment() {
    let scratch = Scratch::new("segment");
    let file = scratch.0.join("number");
    let segment = format!("segment:{}", file.display());
    let made = || std::fs::read_to_string(&file).unwrap_or_default();
    let there = |id: &str| {
        let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        let mut ids = table.lines().map(|line| line.split_whitespace().nth(1));
        ids.any(|one| one == Some(id.trim()))
    };

    let script = format!("{segment} kill:KILL forever");
    run(&mut ucxrun_script(&[], 1, &script)).expect(137, &["SIGKILL"]);
    assert!(made().ends_with('\n') && !there(&made()));

    std::fs::remove_file(&file).unwrap();
    let launcher = Running::start(&mut ucxrun_script(&[], 1, &format!("{segment} forever")));
    eventually("a segment", || made().ends_with('\n'));
    assert!(there(&made()));
    launcher.signal("KILL");
    eventually("its removal", || !there(&made()));
}

#[test]
fn rank_that_closes_its_connection() {
    fails("join close forever", 1, &["closed its connection"]);
}

#[test]
fn survivors_that_complain_first_do_not_hide_the_cause() {
    // All others fail as soon as rank 1's connection closes, before the launcher can see rank 1's end.
    for _ in 0..10 {
        let mut command = ucxrun_script(&[], 4, "join gather:8 sleep:20 fail:1:peer_gone exit:1");
        command.env("SCRIPT_1", "join gather:8 sleep:20 kill:KILL forever");
        run(&mut command)
            .expect(137, &["rank 1 ", "SIGKILL"])
            .one_line();
        command.env("SCRIPT", "join gather:8 sleep:20 abort");
        run(&mut command)
            .expect(137, &["rank 1 ", "SIGKILL"])
            .one_line();
    }
}

#[test]
fn gather_names_the_absent() {
    let mut command = ucxrun_script(&[], 3, "join gather:1 gather-soon:1 leave");
    command.env("SCRIPT_2", "join gather:1 forever");
    run(&mut command).expect(46, &["gather: Timeout", "gather 1: no word from rank 2"]);
}

#[test]
fn gather_fails_when_a_rank_does() {
    let mut command = ucxrun_script(&[], 2, "join gather:8 sh:: leave");
    command.env("SCRIPT_1", "join sleep:50 fail:3:it_is_me exit:3");
    // The survivor may be ended before it can say so, but must never return from the gather.
    let ended = run(&mut command);
    ended.expect(3, &["rank 1 ", "it is me"]);
}

#[test]
fn gather_that_a_rank_has_left() {
    let mut command = ucxrun_script(&[], 2, "join gather:8 leave");
    command.env("SCRIPT_1", "join leave");
    let ended = run(&mut command);
    ended.expect(1, &["left the job"]).within(3.0);
}

#[test]
fn leave_waits_for_all() {
    let mut command = ucxrun_script(&[], 3, "join leave print:left");
    command.env("SCRIPT_2", "join sleep:300 print:last leave print:left");
    let ended = run(&mut command);
    ended.expect(0, &[]);
    let out = ended.out();
    let lines: Vec<_> = out
        .lines()
        .filter(|line| ["last", "left"].contains(line))
        .collect();
    assert_eq!(lines, ["last", "left", "left", "left"]);
}

#[test]
fn others_leave_without_a_rank_that_failed() {
    for (failing, code) in [
        ("join sleep:100 exit:3", 3),
        ("exit:3", 3),
        ("join fail:7:on_purpose exit:9", 7),
        ("join sleep:100 kill:KILL", 137),
        ("join exit:0", 1),
    ] {
        let mut command = ucxrun_script(&["--keep-going"], 4, "join leave print:left");
        command.env("SCRIPT_1", failing);
        command.env("SCRIPT_3", "join sleep:300 print:last leave print:left");
        let ended = run(&mut command);
        ended.expect(code, &["rank 1 on host"]).within(5.0);
        let out = ended.out();
        let words = ["last", "left"];
        let lines: Vec<_> = out.lines().filter(|line| words.contains(line)).collect();
        assert_eq!(
            lines,
            ["last", "left", "left", "left"],
            "{failing}: {ended}"
        );
    }
}

#[test]
fn gather_fails_without_a_rank_that_failed() {
    for failing in ["join sleep:100 exit:3", "sleep:100 exit:3"] {
        let mut command = ucxrun_script(&["--keep-going"], 3, "join gather:1 leave");
        command.env("SCRIPT_1", failing);
        command.env("SCRIPT_2", "join sleep:300 gather:1 leave");
        let ended = run(&mut command);
        let words = "gather: PeerFailed";
        ended.expect(3, &["rank 1 on host"]).within(5.0);
        assert_eq!(ended.err().matches(words).count(), 2, "{}", ended.err());
    }
}

#[test]
fn code_after_leaving_counts() {
    let mut command = ucxrun_script(&[], 2, "join leave exit:0");
    command.env("SCRIPT_1", "join leave exit:9");
    run(&mut command).expect(9, &["rank 1 ", "exited with code 9"]);
}

#[test]
fn child_of_a_rank_is_no_rank() {
    let exe = std::env::current_exe().unwrap();
    let exe = exe.to_str().unwrap();
    let mut command = ucxrun_script(&[], 2, "join gather:8 sh:$AGAIN gather:8 leave");
    // The child has the rank's environment but its own script.
    let again =
        format!("SCRIPT=join SCRIPT_1=join {exe} --exact rank --ignored --nocapture --quiet");
    command.env("AGAIN", format!("env {again}"));
    let ended = run(&mut command);
    ended.expect(
        0,
        &["join: ", "has already joined the job as rank", "not a rank"],
    );
}

#[test]
fn grandchildren_do_not_hold_the_job() {
    // They inherit neither the control socket nor, at the end, a say.
    let script = "join sh:sleep_30_& print:done leave";
    run(&mut ucxrun_script(&[], 2, script))
        .expect(0, &[])
        .within(5.0);
    let setsid = "join sh:setsid_sleep_30_& print:done leave";
    let ended = run(&mut ucxrun_script(&[], 2, setsid));
    ended.expect(0, &[]).within(5.0);
    assert_eq!(
        ended.lines().iter().filter(|line| *line == "done").count(),
        2
    );
}

#[test]
fn last_words_are_not_lost() {
    let mut command = ucxrun_script(&[], 4, "join forever");
    command.env(
        "SCRIPT_1",
        "join fail:101:panicked sleep:200 print:the_last_words exit:101",
    );
    let ended = run(&mut command);
    ended.expect(101, &["rank 1 ", "panicked"]);
    assert!(ended.out().contains("the last words"), "{ended}");
}

#[test]
fn timeout_names_who_is_missing() {
    let mut command = ucxrun_script(&["--timeout", "0.7"], 4, "join gather:8 leave");
    command.env("SCRIPT_2", "forever");
    let ended = run(&mut command);
    ended.expect(
        124,
        &[
            "ucxrun: ",
            "rank 2 has not joined",
            "ranks 0-1, 3 have not ended",
        ],
    );
    ended.one_line().within(3.0);
}

#[test]
fn verbose_tells_the_story() {
    let ended = run(&mut ucxrun_script(&["-v"], 2, "join leave"));
    for words in [
        ["rank 1: ", "started as process"],
        ["rank 1: ", "joined as process"],
    ] {
        ended.expect(0, &words);
    }
}

#[test]
fn ranks_behind_a_shell_join_too() {
    let exe = std::env::current_exe().unwrap();
    let script = format!(
        "{} --exact rank --ignored --nocapture --quiet; exit $?",
        exe.display()
    );
    let mut command = common::ucxrun_sh(3, &script);
    run(command.env("SCRIPT", GOOD)).expect(0, &[]);
    run(command.env("SCRIPT_1", "join exit:3")).expect(3, &["rank 1 "]);
    run(command.env("SCRIPT_1", "join kill:KILL")).expect(137, &["rank 1 "]);
}

#[test]
fn many_jobs_at_once() {
    let mut commands: Vec<_> = (0..8).map(|_| ucxrun_script(&[], 4, GOOD)).collect();
    let running: Vec<_> = commands.iter_mut().map(Running::start).collect();
    for job in running {
        job.wait().expect(0, &[]);
    }
}
