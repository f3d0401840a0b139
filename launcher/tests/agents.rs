//! Agents and their tree, on pretended hosts: a shell stands in for ssh.

mod common;

use std::fs;
use std::process::Command;
use std::time::Duration;

use common::{AGENT, Running, Scratch, eventually, expect_gone, kill, run};

#[test]
#[ignore = "the ranks' program; started by the other tests"]
fn rank() {
    common::ranks::play();
}

/// The launcher with so many hosts, `h0` and so on, of two slots each.
fn on_hosts(hosts: usize, options: &[&str]) -> Command {
    let names: Vec<String> = (0..hosts).map(|number| format!("h{number}:2")).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ucxrun"));
    command.args(["--host", &names.join(",")]).args(options);
    command
}

fn pretended(hosts: usize, options: &[&str]) -> Command {
    let mut command = on_hosts(hosts, &["--agent", AGENT]);
    command.args(options);
    command
}

/// Ranks that join.
fn player<'a>(command: &'a mut Command, script: &str) -> &'a mut Command {
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "rank", "--ignored", "--nocapture", "--quiet"]);
    command.env("SCRIPT", script)
}

const GOOD: &str = "join gather:300 gather:0 gather:10000 leave";

#[test]
fn trees_of_every_shape() {
    for (hosts, fan_out) in [
        (1, "1"),
        (2, "1"),
        (8, "2"),
        (9, "3"),
        (12, "2"),
        (10, "64"),
    ] {
        let mut command = pretended(hosts, &["--fan-out", fan_out]);
        let ended = run(player(&mut command, GOOD));
        ended.expect(0, &[]);
        let mut command = pretended(hosts, &["--fan-out", fan_out, "-l"]);
        let ended = run(command.args(["sh", "-c", "echo $PGAS_RANK $PGAS_LOCAL_RANK"]));
        ended.expect(0, &[]);
        let mut right: Vec<String> = (0..2 * hosts)
            .map(|rank| format!("[{rank}] {rank} {}", rank % 2))
            .collect();
        right.sort();
        assert_eq!(ended.lines(), right);
    }
}

#[test]
fn sixty_four_hosts_start_together() {
    let ended = run(pretended(64, &[]).args(["sh", "-c", "echo $PGAS_RANK"]));
    ended.expect(0, &[]).within(20.0);
    assert_eq!(ended.lines().len(), 128);
    // If they were started one after the other, this would take 64 s.
    let slow = "sh -c 'sleep 1; exec {command}'";
    let ended = run(on_hosts(64, &["--agent", slow]).args(["-n", "64", "true"]));
    ended.expect(0, &[]).within(15.0);
}

#[test]
fn failures_deep_in_the_tree() {
    for rank in [0, 9, 17] {
        let mut command = pretended(9, &["--fan-out", "2"]);
        player(&mut command, "join gather:8 gather:8 leave");
        command.env(format!("SCRIPT_{rank}"), "join fail:7:on_purpose exit:7");
        let host = format!("rank {rank} on host h{}: on purpose", rank / 2);
        run(&mut command).expect(7, &[&host]).one_line().within(5.0);
    }
}

#[test]
fn killed_agents_end_the_job() {
    // The first host below the launcher has others below it; the last is a leaf.
    for victim in ["h0", "h4", "h8"] {
        let scratch = Scratch::new("tree");
        let dir = scratch.0.display();
        let script = format!("sleep 60 & echo $$ $PPID $! > {dir}/$PGAS_RANK; wait");
        let mut command = pretended(9, &["--fan-out", "2", "-n", "9", "--map", "node"]);
        let running = Running::start(command.args(["sh", "-c", &script]));
        let line =
            |rank: usize| fs::read_to_string(scratch.0.join(rank.to_string())).unwrap_or_default();
        eventually("all ranks have started", || {
            (0..9).all(|rank| line(rank).ends_with('\n'))
        });
        // Of each rank: itself, its agent, and what it has started.
        let pids: Vec<Vec<u32>> = (0..9)
            .map(|rank| {
                let line = line(rank);
                line.split_whitespace()
                    .map(|pid| pid.parse().unwrap())
                    .collect()
            })
            .collect();
        let number: usize = victim[1..].parse().unwrap();
        kill(pids[number][1], "KILL");
        expect_gone(&pids.concat(), Duration::from_secs(3));
        let words = format!("host {victim}: its agent has ended");
        running.wait().expect(125, &[&words]).one_line();
    }
}

#[test]
fn agents_that_do_not_come() {
    let fails = |agent: &str, words: &[&str], seconds: f64| {
        let ended = run(on_hosts(2, &["--agent", agent]).arg("true"));
        ended.expect(125, words).one_line().within(seconds);
    };
    fails("no-such-command", &["host h0", "no-such-command"], 2.0);
    fails(
        "sh -c 'exit 7'",
        &[
            "ucxrun: host h",
            "cannot start its agent",
            "exited with code 7",
        ],
        2.0,
    );
    fails(
        "sh -c 'echo no way in >&2; exit 255'",
        &["ucxrun: host h", "no way in"],
        2.0,
    );
    fails(
        "sh -c 'cat > /dev/null'",
        &["ucxrun: host h", "no answer within 10s"],
        12.0,
    );
    fails(
        "sh -c 'yes'",
        &["ucxrun: host h", "login scripts write too much"],
        5.0,
    );
    let old = "printf '\\n\\001ucxrun agent 00000001\\n'; sleep 60";
    let agent = format!("sh -c {}", shell_word(old));
    fails(
        &agent,
        &["ucxrun: host h", "version 1 of the protocol, this one 2"],
        5.0,
    );
    // One that greets and then speaks nonsense.
    let garbage = "{command} < /dev/null | head -c 24; cat /bin/ls";
    let agent = format!("sh -c {}", shell_word(garbage));
    fails(&agent, &["ucxrun: host h"], 5.0);
}

/// In quotes, with `\` doubled for the double quotes.
fn shell_word(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[test]
fn login_scripts_may_talk() {
    let agent = "sh -c 'echo Welcome to {host}; echo news >&2; exec {command}'";
    let ended = run(on_hosts(2, &["--agent", agent, "-v"]).args(["echo", "hello"]));
    ended.expect(0, &["host h0: login scripts wrote \"Welcome to h0"]);
    ended.expect(0, &["host h1: news"]);
    assert_eq!(ended.lines(), ["hello"; 4]);
}

#[test]
fn the_secret_is_in_no_command_line() {
    let script = "for p in /proc/[0-9]*; do \
         if tr '\\0' ' ' 2>/dev/null < $p/cmdline | grep -q $PGAS_SECRET; then \
         [ $p = /proc/$$ ] || echo leaked to $p; fi; done; true";
    let ended = run(pretended(2, &["-n", "2"]).args(["sh", "-c", script]));
    ended.expect(0, &[]);
    // grep's own has it while it looks.
    let leaks = ended
        .out()
        .lines()
        .filter(|line| alive_outside(line))
        .count();
    assert_eq!(leaks, 0, "{ended}");
}

fn alive_outside(line: &str) -> bool {
    let pid = line.rsplit('/').next().and_then(|pid| pid.parse().ok());
    pid.is_some_and(common::alive)
}

#[test]
fn few_descriptors_are_enough_for_many_hosts() {
    let limited = |limit: &str, options: &[&str]| {
        let launcher = on_hosts(32, options);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
        command
            .arg(launcher.get_program())
            .args(launcher.get_args());
        command
    };
    let options = ["--agent", AGENT, "-n", "32", "sh", "-c", "ulimit -Sn"];
    let ended = run(&mut limited("-Sn 64", &options));
    ended.expect(0, &[]);
    // The launcher's limit was raised, not that of the ranks.
    assert_eq!(ended.lines(), ["64"; 32]);
    let ended = run(&mut limited("-n 64", &options));
    ended
        .expect(125, &["open files", "(ulimit -Hn) is 64"])
        .one_line();
    // With agents that start agents, fewer are needed.
    let tree = [&["--fan-out", "2"][..], &options].concat();
    run(&mut limited("-n 64", &tree)).expect(0, &[]);
}

#[test]
fn relays_in_the_middle_stay_in_step() {
    // Output, input and messages at once, through agents that pass them on.
    let line = "y".repeat(1000);
    let script = format!("cksum; for i in $(seq 2000); do echo {line}; done");
    let scratch = Scratch::new("relays");
    let input = scratch.0.join("input");
    fs::write(&input, "z".repeat(5_000_000)).unwrap();
    let mut command = pretended(6, &["--fan-out", "1", "--stdin", "11"]);
    command
        .args(["sh", "-c", &script])
        .stdin(fs::File::open(&input).unwrap());
    let ended = run(&mut command);
    ended.expect(0, &[]);
    let right = run(Command::new("cksum").stdin(fs::File::open(&input).unwrap())).out();
    let lines = ended.lines();
    assert_eq!(lines.iter().filter(|one| **one == line).count(), 12 * 2000);
    assert!(lines.contains(&right.trim().to_owned()), "{right}");
}
