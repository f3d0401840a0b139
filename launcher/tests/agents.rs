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

/// A process, its parent, and its command line.
fn processes() -> Vec<(u32, u32, String)> {
    let of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name in parentheses: its state, its parent.
        let parent = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((pid, parent, common::text(&line).replace('\0', " ")))
    };
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(of).collect()
}

#[test]
fn the_secret_is_in_no_command_line_and_no_output() {
    let scratch = Scratch::new("secret");
    let dir = scratch.0.display();
    let (ranks, mark) = (6, "a rank of this test");
    // `echo` is the shell's own. The file has the secret when it has its last name.
    let script = format!(
        ": {mark}; echo $PGAS_SECRET > {dir}/new$PGAS_RANK; mv {dir}/new$PGAS_RANK {dir}/$PGAS_RANK; \
         while [ -d {dir} ] && [ ! -e {dir}/end ]; do sleep 0.05; done; echo done"
    );
    // Two levels of agents; the shell that stands in for ssh stays, as ssh does.
    let agent = "sh -c \"{command}; exit $?\"";
    let mut command = on_hosts(3, &["--agent", agent, "--fan-out", "1", "-v"]);
    let running = Running::start(command.args(["sh", "-c", &script]));
    let secret = |rank: i32| fs::read_to_string(scratch.0.join(rank.to_string()));
    eventually("all ranks have started", || {
        (0..ranks).all(|rank| secret(rank).is_ok())
    });
    let secrets: Vec<String> = (0..ranks)
        .map(|rank| secret(rank).unwrap().trim().to_owned())
        .collect();
    assert!(secrets.iter().all(|secret| secret.len() == 64));

    let all = processes();
    let mut job = vec![running.pid()];
    // Until there are no children of those that are found.
    let mut next = 0;
    while let Some(&parent) = job.get(next) {
        job.extend(all.iter().filter(|one| one.1 == parent).map(|one| one.0));
        next += 1;
    }
    let of_job: Vec<_> = all.iter().filter(|one| job.contains(&one.0)).collect();
    let are = |test: &dyn Fn(&str) -> bool| of_job.iter().filter(|one| test(&one.2)).count();
    let is_agent = |line: &str| line.contains("--internal-agent");
    let counts = [
        are(&|line| is_agent(line) && !line.starts_with("sh ")),
        are(&|line| is_agent(line) && line.starts_with("sh ")),
        are(&|line| line.starts_with("sh ") && line.contains(mark)),
        are(&|line| line.contains("--host")),
    ];
    // Agents, shells for ssh, ranks, the launcher.
    assert_eq!(counts, [3, 3, 6, 1], "{of_job:#?}");
    for (pid, _, line) in &all {
        let leaked = secrets.iter().any(|secret| line.contains(secret));
        assert!(!leaked, "process {pid}: {line}");
    }
    // It is where ranks read it, so what was looked for is right.
    for (pid, _, _) in of_job.iter().filter(|one| one.2.starts_with("sh -c : ")) {
        let environment = common::text(&fs::read(format!("/proc/{pid}/environ")).unwrap());
        assert!(secrets.iter().any(|secret| environment.contains(secret)));
    }

    fs::write(scratch.0.join("end"), "").unwrap();
    let ended = running.wait();
    ended.expect(0, &["rank 5: exited"]);
    assert_eq!(ended.lines(), ["done"; 6]);
    let said = ended.out() + &ended.err();
    assert!(
        !secrets.iter().any(|secret| said.contains(secret)),
        "{said}"
    );
    // A job that is not started has none to show, nor does it make one up.
    for format in ["--dry-run", "--dry-run=json"] {
        let ended = run(pretended(3, &["-v", format]).arg("true"));
        ended.expect(0, &[]);
        let said = ended.out() + &ended.err();
        let mut words = said.split(|one: char| !one.is_ascii_hexdigit());
        assert!(words.all(|word| word.len() < 16), "{said}");
        assert!(
            !said.contains("PGAS_SECRET") && said.contains("h2"),
            "{said}"
        );
    }
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
