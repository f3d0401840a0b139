//! Few file descriptors, few processes: success, or one clear line and no rank left.

mod common;

use std::fs;
use std::process::Command;
use std::time::Duration;

use common::{Running, Scratch, eventually, expect_gone, run};

/// A shell that sets limits and then becomes the launcher.
fn limited(limits: &str, args: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        &format!("{limits} && exec \"$0\" \"$@\""),
        env!("CARGO_BIN_EXE_ucxrun"),
    ]);
    shell.args(args);
    shell
}

#[test]
fn soft_limit_is_raised_for_the_launcher_only() {
    for ranks in ["8", "32", "64", "128"] {
        for soft in ["256", "64", "20"] {
            let args = ["-n", ranks, "sh", "-c", "ulimit -Sn"];
            let ended = run(&mut limited(&format!("ulimit -Sn {soft}"), &args));
            ended.expect(0, &[]).within(30.0);
            assert!(ended.lines().iter().all(|line| line == soft), "{ended}");
            assert_eq!(ended.lines().len().to_string(), ranks);
        }
    }
}

#[test]
fn hard_limit_is_success_or_one_clear_line() {
    let (mut good, mut bad) = (0, 0);
    for ranks in ["1", "4", "8", "32", "64", "128"] {
        for hard in ["256", "64", "32", "20"] {
            let args = ["-n", ranks, "sh", "-c", "echo $PGAS_RANK"];
            let ended = run(&mut limited(&format!("ulimit -n {hard}"), &args));
            if ended.code == 0 {
                assert_eq!(ended.lines().len().to_string(), ranks);
                good += 1;
            } else {
                let value = format!("(ulimit -Hn) is {hard}");
                ended
                    .expect(125, &["ucxrun: ", "open files", &value])
                    .one_line();
                assert_eq!(ended.out(), "");
                bad += 1;
            }
        }
    }
    assert!(good >= 6 && bad >= 4, "{good} good, {bad} bad");
    // What people have: 256 is enough for 32 ranks.
    run(&mut limited("ulimit -n 256", &["-n", "32", "true"])).expect(0, &[]);
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn descriptors_grow_linearly() {
    let mut counts = Vec::new();
    // What any program has: standard input, output and error, ls's own, and what leaks into this test.
    let mut direct = Command::new("sh");
    let usual = run(direct.args(["-c", "ls /proc/self/fd | wc -l"])).out();
    for ranks in [8, 16, 32] {
        let script = "ls /proc/self/fd | wc -l; sleep 60";
        let running = Running::start(&mut common::ucxrun_sh(ranks, script));
        let pid = running.pid();
        let children = || {
            let children = format!("/proc/{pid}/task/{pid}/children");
            fs::read_to_string(children)
                .unwrap()
                .split_whitespace()
                .count()
        };
        // And the keeper.
        eventually("all have started", || children() == ranks as usize + 1);
        std::thread::sleep(Duration::from_millis(200));
        counts.push(descriptors(pid));
        running.signal("TERM");
        let ended = running.wait();
        assert_eq!(ended.out(), usual.repeat(ranks as usize));
    }
    assert!(
        counts[1] - counts[0] <= 5 * 8 && counts[2] - counts[1] <= 5 * 16,
        "{counts:?}"
    );
    assert!(counts[0] <= 5 * 8 + 20, "{counts:?}");
}

/// Runs as a user who has no other processes, since only such limits count: another user if this
/// one may change (root), else in a user namespace, which has counts of its own.
#[test]
fn few_processes() {
    let uid = 54_321 + std::process::id() % 1000;
    let other_user = if rustix::process::geteuid().is_root() {
        format!("setpriv --reuid={uid} --clear-groups")
    } else {
        "unshare --user --map-root-user".to_owned()
    };
    let scratch = Scratch::new("processes");
    let binary = scratch.0.join("ucxrun");
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_ucxrun"))
        .arg(&binary)
        .status();
    assert!(copied.unwrap().success());
    for (processes, ranks) in [(1, 4), (4, 8), (10, 32)] {
        let mut command = Command::new("env");
        command.args(other_user.split(' '));
        command.args(["prlimit", &format!("--nproc={processes}:{processes}")]);
        command
            .arg(&binary)
            .args(["-n", &ranks.to_string(), "sleep", "60"]);
        let ended = run(&mut command);
        ended.expect(125, &["ucxrun: "]).one_line().within(5.0);
        if processes > 1 {
            let limit = format!("ulimit -u: {processes}");
            ended.expect(125, &["cannot start rank ", &format!("of {ranks}"), &limit]);
        }
        let left: Vec<u32> = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                let status = fs::read_to_string(format!("/proc/{pid}/status"));
                status.is_ok_and(|status| status.contains(&format!("Uid:\t{uid}\t")))
            })
            .collect();
        expect_gone(&left, Duration::ZERO);
    }
}

#[test]
fn sixty_four_ranks_start_soon() {
    run(&mut common::ucxrun(["-n", "64", "true"]))
        .expect(0, &[])
        .within(10.0);
}
