//! C33: ranks that are kept apart by namespaces work by another way, or say why not.

use std::process::Command;

/// What `unshare` needs to be allowed the rest: a user namespace, for all but root.
fn as_root(wrapper: &[&str]) -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() || wrapper.contains(&"--user") {
        &[]
    } else {
        &["--user", "--map-root-user"]
    }
}

/// Runs the ranks of `exchange_worker`, each started through `wrapper`.
fn ranks_through(wrapper: &[&str], tls: Option<&str>) {
    // Whatever transports the tests run over, these are about the ones that are found here.
    let mut job = ucxrun::Job::new("env")
        .ranks(2)
        .output(ucxrun::Output::Capture);
    if tls.is_none() {
        job = job.args(["-u", "UCX_TLS"]);
    }
    job = job
        .arg("unshare")
        .args(as_root(wrapper))
        .args(wrapper.iter().copied())
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args([
            "exchange_worker",
            "--exact",
            "--nocapture",
            "--include-ignored",
            "--test-threads=1",
        ])
        .timeout(std::time::Duration::from_secs(60))
        .default_environment()
        .env("EXCHANGE_WORKER", "1");
    if let Some(tls) = tls {
        job = job.env("UCX_TLS", tls);
    }
    let outcome = job.run().unwrap();
    let text = format!(
        "{wrapper:?} {tls:?}: {outcome}\n{}{}",
        String::from_utf8_lossy(&outcome.stdout),
        String::from_utf8_lossy(&outcome.stderr)
    );
    if outcome.success() {
        assert_eq!(text.matches("exchanged").count(), 2, "{text}");
    } else {
        // Refused in one line that names a setting to try; never killed.
        assert!(text.contains("UCX_TLS"), "{text}");
        assert!(!text.contains("killed by signal"), "{text}");
    }
    assert!(
        tls.is_some() || outcome.success(),
        "works by itself: {text}"
    );
}

#[test]
#[ignore = "started by the other tests of this file"]
fn exchange_worker() {
    assert!(std::env::var_os("EXCHANGE_WORKER").is_some());
    let run = pgas::World::run(|world| {
        for count in [1, 1560, 131_072] {
            let array = pgas::GlobalArray::<u64>::new(world, 2 * count)?;
            let theirs = array.range_of(1 - world.rank());
            array.put_range(theirs.start, &vec![count as u64; count])?;
            world.barrier()?;
            let all = array.get_range(0..2 * count)?;
            assert!(all.iter().all(|&value| value == count as u64));
            world.barrier()?;
            assert_eq!(array.fetch_add(theirs.start, 1)?, count as u64);
            world.barrier()?;
        }
        println!("exchanged on node {:?}", world.node_ranks());
        Ok::<_, pgas::Error>(())
    });
    if let Err(error) = run {
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

#[test]
fn a_user_namespace_each() {
    ranks_through(&["--user", "--map-root-user"], None);
}

#[test]
fn a_user_namespace_each_with_transports_set() {
    for tls in ["posix,self", "sysv,self", "tcp,self", "all"] {
        ranks_through(&["--user", "--map-root-user"], Some(tls));
    }
}

#[test]
fn a_process_namespace_each() {
    ranks_through(&["--pid", "--fork", "--kill-child"], None);
}

#[test]
fn an_ipc_namespace_each() {
    ranks_through(&["--ipc"], None);
}

#[test]
fn everything_apart_but_the_network() {
    ranks_through(
        &[
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--kill-child",
            "--ipc",
            "--uts",
        ],
        None,
    );
}

/// Each its own /dev/shm, as containers have.
#[test]
fn a_dev_shm_each() {
    assert!(
        Command::new("unshare")
            .arg("--version")
            .status()
            .unwrap()
            .success()
    );
    let mut job = ucxrun::Job::new("env")
        .ranks(2)
        .output(ucxrun::Output::Capture);
    job = job
        .args(["-u", "UCX_TLS", "unshare"])
        .args(as_root(&[]))
        .args(["--mount", "--", "sh", "-c"])
        .arg(
            "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$0\" exchange_worker --exact \
             --nocapture --include-ignored --test-threads=1",
        )
        .arg(std::env::current_exe().unwrap())
        .timeout(std::time::Duration::from_secs(60))
        .default_environment()
        .env("EXCHANGE_WORKER", "1");
    let outcome = job.run().unwrap();
    let text = format!(
        "{outcome}\n{}{}",
        String::from_utf8_lossy(&outcome.stdout),
        String::from_utf8_lossy(&outcome.stderr)
    );
    assert!(outcome.success(), "{text}");
    assert_eq!(text.matches("exchanged").count(), 2, "{text}");
}
