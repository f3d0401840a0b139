//! Standard output, error and input: whole lines, nothing lost, nothing in excess.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Running, Scratch, run, ucxrun, ucxrun_sh};

/// Prints `lines` lines of `length` bytes: rank, number, and a filling that is its rank's letter.
fn printer(lines: u32, length: usize) -> Vec<String> {
    let program = "BEGIN {
        r = ENVIRON[\"PGAS_RANK\"]; fill = letter = substr(\"abcdefgh\", r + 1, 1);
        while (length(fill) < length_ - 10) fill = fill fill;
        fill = substr(fill, 1, length_ - 10);
        for (i = 0; i < lines_; i++) { printf \"%d %06d \", r, i; print fill } }";
    let mut words = vec!["awk".to_owned()];
    for (name, value) in [("lines_", lines as usize), ("length_", length)] {
        words.extend(["-v".to_owned(), format!("{name}={value}")]);
    }
    words.push(program.to_owned());
    words
}

/// Every rank's lines are all there, whole and in order.
fn check(out: &[u8], ranks: usize, lines: usize, length: usize) {
    let mut next = vec![0; ranks];
    assert!(out.ends_with(b"\n"));
    for line in out.split_inclusive(|&b| b == b'\n') {
        assert_eq!(
            line.len(),
            length,
            "torn: {}",
            common::text(&line[..line.len().min(80)])
        );
        let rank = usize::from(line[0] - b'0');
        let head = format!("{rank} {:06} ", next[rank]);
        assert!(
            line.starts_with(head.as_bytes()),
            "lost before {}",
            common::text(&line[..20])
        );
        let letter = b"abcdefgh"[rank];
        assert!(line[9..length - 1].iter().all(|&b| b == letter));
        next[rank] += 1;
    }
    assert_eq!(next, vec![lines; ranks]);
}

#[test]
fn lines_are_whole_and_none_is_lost() {
    let ended = run(ucxrun(["-n", "4"]).args(printer(10_000, 3000)));
    ended.expect(0, &[]);
    check(&ended.out, 4, 10_000, 3000);
}

#[test]
fn lines_are_whole_in_a_file() {
    let scratch = Scratch::new("file");
    let path = scratch.0.join("out");
    let mut command = ucxrun(["-n", "4"]);
    command
        .args(printer(2_000, 3000))
        .stdout(File::create(&path).unwrap());
    assert!(command.status().unwrap().success());
    check(&std::fs::read(&path).unwrap(), 4, 2_000, 3000);
}

#[test]
fn long_lines_are_whole() {
    let ended = run(ucxrun(["-n", "3"]).args(printer(20, 200_000)));
    ended.expect(0, &[]);
    check(&ended.out, 3, 20, 200_000);
}

#[test]
fn endless_lines_lose_nothing() {
    // 10 MB without a line end from each of two ranks.
    let script = "head -c 10000000 /dev/zero | tr '\\0' $PGAS_RANK";
    let ended = run(&mut ucxrun_sh(2, script));
    ended.expect(0, &[]);
    for digit in [b'0', b'1'] {
        assert_eq!(
            ended.out.iter().filter(|&&b| b == digit).count(),
            10_000_000
        );
    }
}

#[test]
fn slow_reader_holds_the_ranks_back() {
    let mut command = ucxrun(["-n", "4"]);
    command.args(printer(10_000, 3000)).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    // 120 MB are on their way, but neither here nor in the launcher.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u32 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 30_000, "launcher took {peak} kB");
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert!(child.wait().unwrap().success());
    check(&out, 4, 10_000, 3000);
}

#[test]
fn slow_reader_gets_what_ranks_wrote_before_they_ended() {
    let mut command = ucxrun(["-n", "4"]);
    command.args(printer(20, 3000)).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert!(child.wait().unwrap().success());
    check(&out, 4, 20, 3000);
}

#[test]
fn labels() {
    let script = "printf 'a\\n\\nb'; echo e >&2";
    let ended = run(ucxrun(["-l", "-n", "2"]).args(["sh", "-c", script]));
    ended.expect(0, &[]);
    assert_eq!(
        ended.lines(),
        ["[0] ", "[0] a", "[0] b", "[1] ", "[1] a", "[1] b"]
    );
    let mut err: Vec<_> = ended.err().lines().map(str::to_owned).collect();
    err.sort();
    assert_eq!(err, ["[0] e", "[1] e"]);
}

#[test]
fn single_rank_is_passed_on_byte_for_byte() {
    let ended = run(&mut ucxrun_sh(1, "printf 'no end'; printf 'err' >&2"));
    assert_eq!(
        (ended.out(), ended.err()),
        ("no end".to_owned(), "err".to_owned())
    );
    // A prompt comes before its line ends.
    let mut command = ucxrun_sh(1, "printf 'name? '; read name; echo hi $name");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut prompt = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut prompt)
        .unwrap();
    child.stdin.take().unwrap().write_all(b"you\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(
        (&prompt[..], &out.stdout[..]),
        (&b"name? "[..], &b"hi you\n"[..])
    );
}

#[test]
fn last_lines_without_end_do_not_mix() {
    let ended = run(&mut ucxrun_sh(4, "printf 'rank %s' $PGAS_RANK"));
    assert_eq!(ended.lines(), ["rank 0", "rank 1", "rank 2", "rank 3"]);
}

#[test]
fn reason_stands_on_its_own_line() {
    for ranks in [1, 2] {
        let ended = run(&mut ucxrun_sh(ranks, "printf 'no end' >&2; exit 3"));
        ended.expect(3, &["ucxrun: rank "]).one_line();
    }
}

#[test]
fn output_of_a_failing_rank_is_complete() {
    for _ in 0..20 {
        let ended = run(&mut ucxrun_sh(
            2,
            "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; exit 3",
        ));
        ended.expect(3, &[]);
        let last = ended
            .lines()
            .iter()
            .filter(|line| *line == "line 499")
            .count();
        assert!(last >= 1, "{ended}");
    }
}

#[test]
fn output_directory() {
    let scratch = Scratch::new("directory");
    let dir = scratch.0.join("new/out");
    let mut command = ucxrun(["-n", "3", "--output-dir"]);
    command
        .arg(&dir)
        .args(["sh", "-c", "echo out $PGAS_RANK; echo err $PGAS_RANK >&2"]);
    let ended = run(&mut command);
    ended.expect(0, &[]);
    assert_eq!((ended.out(), ended.err()), (String::new(), String::new()));
    for rank in 0..3 {
        let read = |what: &str| std::fs::read_to_string(dir.join(format!("rank.{rank}.{what}")));
        assert_eq!(read("out").unwrap(), format!("out {rank}\n"));
        assert_eq!(read("err").unwrap(), format!("err {rank}\n"));
    }
}

#[test]
fn reader_that_goes_away_ends_the_job() {
    let script = "\"$0\" -n 2 yes 2>/dev/null | head -n 3";
    let ended = run(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_ucxrun")]));
    ended.expect(0, &[]).within(5.0);
    assert_eq!(ended.out(), "y\ny\ny\n");
    // Ranks that do not write do not notice.
    let script = "\"$0\" -n 2 sh -c 'echo; sleep 0.3; true' | true";
    run(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_ucxrun")])).expect(0, &[]);
}

#[test]
fn full_disk_is_reported() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = ucxrun(["-n", "2", "sh", "-c", "echo x; sleep 60"]);
    let out = command
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(common::text(&out.stderr).contains("cannot write output: No space left"));
}

#[test]
fn grandchildren_that_hold_the_pipes_do_not_delay_the_end() {
    for start in ["sleep 30 &", "setsid sleep 30 &"] {
        let ended = run(&mut ucxrun_sh(2, &format!("{start} echo done")));
        ended.expect(0, &[]).within(3.0);
        assert_eq!(ended.lines(), ["done", "done"]);
    }
}

fn with_input(command: &mut Command, input: &'static [u8]) -> common::Ended {
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let mut stdin = running.child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || drop(stdin.write_all(input)));
    let ended = running.wait();
    writer.join().unwrap();
    ended
}

#[test]
fn input_goes_to_rank_0_alone() {
    let script = "echo $PGAS_RANK $(cat | wc -c)";
    let ended = with_input(&mut ucxrun_sh(3, script), b"12345");
    assert_eq!(ended.expect(0, &[]).lines(), ["0 5", "1 0", "2 0"]);
    let mut command = ucxrun(["--stdin", "2", "-n", "3", "sh", "-c", script]);
    let ended = with_input(&mut command, b"12345");
    assert_eq!(ended.expect(0, &[]).lines(), ["0 0", "1 0", "2 5"]);
    let mut command = ucxrun(["--stdin", "none", "-n", "2", "sh", "-c", script]);
    let ended = with_input(&mut command, b"12345");
    assert_eq!(ended.expect(0, &[]).lines(), ["0 0", "1 0"]);
}

#[test]
fn large_input_through_a_slow_reader() {
    const SIZE: usize = 50_000_000;
    let script = "[ $PGAS_RANK = 0 ] || exit 0
        { dd bs=1000 count=1000 2>/dev/null; sleep 0.5; cat; } | md5sum";
    let mut running = Running::start(ucxrun_sh(2, script).stdin(Stdio::piped()));
    let mut stdin = running.child.stdin.take().unwrap();
    let mut sum = Command::new("md5sum");
    let mut sum = sum
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut state = 1_u32;
    let mut piece = [0; 10_000];
    for _ in 0..SIZE / piece.len() {
        for byte in &mut piece {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = state.to_be_bytes()[0];
        }
        stdin.write_all(&piece).unwrap();
        sum.stdin.as_mut().unwrap().write_all(&piece).unwrap();
    }
    drop(stdin);
    let expected = sum.wait_with_output().unwrap();
    let ended = running.wait();
    ended.expect(0, &[]);
    assert_eq!(ended.out, expected.stdout);
}

#[test]
fn input_is_not_read_ahead() {
    // The second command finds what the first has left.
    let script =
        "printf '1\\n2\\n3\\n' > $1; { \"$0\" -n 2 true; \"$0\" -n 2 head -c 2; cat; } < $1";
    let scratch = Scratch::new("ahead");
    let mut command = Command::new("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_ucxrun")])
        .arg(scratch.0.join("in"));
    assert_eq!(run(&mut command).out(), "1\n2\n3\n");
}

#[test]
fn open_input_does_not_hold_the_job() {
    let mut command = ucxrun(["-n", "2", "true"]);
    let start = Instant::now();
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let held = child.stdin.take();
    assert!(child.wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(held);
}

/// Starts a job whose output nobody reads, so that it cannot be delivered.
fn with_a_stuck_reader(options: &[&str]) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_ucxrun"))
        .args(options)
        .args(["-n", "2", "sh", "-c", "yes | head -c 1000000 & wait"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

fn code_within(mut child: std::process::Child, seconds: u64) -> Option<i32> {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    while std::time::Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("still running after {seconds} s");
}

#[test]
fn output_that_nobody_reads_does_not_outlast_the_timeout() {
    assert_eq!(
        code_within(with_a_stuck_reader(&["--timeout", "1"]), 6),
        Some(124)
    );
}

#[test]
fn output_that_is_cut_off_by_an_interrupt_is_no_success() {
    let child = with_a_stuck_reader(&[]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(code_within(child, 6), Some(130));
}
