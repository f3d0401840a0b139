use super::*;

fn parsed(line: &[&str]) -> Result<Cli, clap::Error> {
    let line = std::iter::once("ucxrun").chain(line.iter().copied());
    Cli::parse_from_args(line.map(OsString::from))
}

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
    Other::command().debug_assert();
}

#[test]
fn spellings_of_the_count() {
    for line in [
        &["-n", "3", "p"][..],
        &["-n3", "p"],
        &["-np", "3", "p"],
        &["-np3", "p"],
        &["--np", "3", "p"],
        &["--np=3", "p"],
        &["-ln", "3", "p"],
        &["-lvn3", "p"],
        &["-n", "3", "--", "p"],
    ] {
        let cli = parsed(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        assert_eq!(
            (cli.ranks, cli.program),
            (Some(3), vec!["p".into()]),
            "{line:?}"
        );
    }
    for line in [
        &["-n", "0", "p"][..],
        &["-n", "x", "p"],
        &["-n", "3"],
        &[],
        &["--bogus", "p"],
    ] {
        assert!(parsed(line).is_err(), "{line:?}");
    }
}

#[test]
fn options_after_the_program_are_its_own() {
    let rest = ["p", "-n", "9", "--help", "--", "-np", "", "-x"];
    for before in [
        &["-l"][..],
        &["-l", "--"],
        &["--timeout", "5", "-x", "A=b c"],
    ] {
        let cli = parsed(&[before, &rest[..]].concat()).unwrap();
        assert_eq!(cli.program, rest.map(OsString::from));
    }
    assert_eq!(parsed(&["--", "--help"]).unwrap().program, ["--help"]);
}

#[test]
fn several_programs() {
    let line = [
        "-n", "2", "-l", "a", "-x", ":", "-n3", "-x", "A=b", "b", "--", ":", "c",
    ];
    let cli = parsed(&line).unwrap();
    assert_eq!(
        (cli.ranks, &cli.program[..]),
        (Some(2), &["a".into(), "-x".into()][..])
    );
    assert_eq!(cli.others.len(), 2);
    assert_eq!((cli.others[0].ranks, cli.others[0].env.len()), (3, 1));
    assert_eq!(cli.others[0].program, ["b", "--"]);
    assert_eq!(
        (cli.others[1].ranks, &cli.others[1].program[..]),
        (1, &["c".into()][..])
    );
    assert_eq!(
        parsed(&["--", "a", ":", "b"]).unwrap().program,
        ["a", ":", "b"]
    );
    for line in [&["a", ":"][..], &["a", ":", "-l", "b"], &[":", "a"]] {
        assert!(parsed(line).is_err(), "{line:?}");
    }
}

#[test]
fn every_option_with_a_value_is_known() {
    for option in [
        "--host",
        "--hostfile",
        "-N",
        "--nodes",
        "--ppn",
        "--map",
        "--net",
        "--np",
        "--wrap",
    ] {
        assert!(takes_value(option.as_ref(), &Cli::command()), "{option}");
    }
    for flag in [
        "-l",
        "--label",
        "--dry-run",
        "--keep-going",
        "-lv",
        "-n4",
        "--ranks=4",
    ] {
        assert!(!takes_value(flag.as_ref(), &Cli::command()), "{flag}");
    }
}
