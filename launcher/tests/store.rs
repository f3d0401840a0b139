//! A store over TCP: strangers are turned down while ranks join, gather and leave, and a rank that goes is named.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ucxrun::store::{Signals, Store};
use ucxrun::{Control, ErrorKind, Secret};

const RANKS: u32 = 3;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// A store in a thread, which ends when this is dropped.
struct Live {
    address: SocketAddr,
    secret: Secret,
    signals: Arc<Signals>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    fn start() -> Self {
        let secret = Secret::from_text(b"a secret for these tests").unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let store = Store::open(&[any], RANKS, secret.clone(), secret.job(RANKS)).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, store.port()));
        let signals = Arc::new(Signals::default());
        let run = signals.clone();
        let thread = std::thread::spawn(move || store.run(&run, Duration::from_secs(5)));
        Self {
            address,
            secret,
            signals,
            thread: Some(thread),
        }
    }

    fn join(&self, rank: u32) -> ucxrun::Result<Control> {
        let job = self.secret.job(RANKS);
        Control::over_tcp(self.address, &self.secret, job, (rank, RANKS), soon())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.signals.end.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// What the store does with a connection that sends `bytes`: the time until it closes it.
fn closed_after(address: SocketAddr, bytes: &[u8]) -> Duration {
    let mut stranger = TcpStream::connect(address).unwrap();
    let began = Instant::now();
    stranger
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    // It may be closed before all is sent.
    let _ = stranger.write_all(bytes);
    let mut rest = Vec::new();
    match stranger.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    began.elapsed()
}

#[test]
fn strangers_are_turned_down_while_ranks_work() {
    let live = Live::start();
    let mut silent: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(live.address).unwrap())
        .collect();
    let ranks: Vec<_> = (0..RANKS).map(|rank| live.join(rank).unwrap()).collect();
    // A frame of 4 GiB, in place of a greeting.
    let quick = closed_after(live.address, &[0xff; 1 << 16]);
    assert!(quick < Duration::from_secs(2), "{quick:?}");
    let wrong = Secret::from_text(b"another secret for these tests").unwrap();
    let job = live.secret.job(RANKS);
    let error = Control::over_tcp(live.address, &wrong, job, (1, RANKS), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let error = live.join(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("already joined"), "{error}");
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|mut rank| {
            std::thread::spawn(move || {
                let number = rank.rank().to_le_bytes();
                let blobs = rank.gather(&number, soon()).unwrap();
                rank.leave(soon()).unwrap();
                blobs
            })
        })
        .collect();
    for thread in threads {
        let blobs = thread.join().unwrap();
        let expected = (0..RANKS).map(|rank| rank.to_le_bytes().to_vec());
        assert!(blobs.into_iter().eq(expected));
    }
    // Those who say nothing have their time, and no more.
    let first = &mut silent[0];
    first
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    assert_eq!(first.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_rank_that_goes_is_named() {
    let live = Live::start();
    let mut rank_0 = live.join(0).unwrap();
    let rank_1 = live.join(1).unwrap();
    let (_, writer) = rank_1.split();
    let waits = std::thread::spawn(move || rank_0.gather(b"here", soon()).unwrap_err());
    std::thread::sleep(Duration::from_millis(100));
    writer.close();
    let error = waits.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
    assert_eq!(error.peer(), Some(1), "{error}");
    // Set just after the rank has been told.
    let limit = soon();
    while !live.signals.told.load(Ordering::Acquire) {
        assert!(Instant::now() < limit, "not said to be told");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let live = Live::start();
    let mut rank_0 = live.join(0).unwrap();
    let _rank_1 = live.join(1).unwrap();
    let limit = Instant::now() + Duration::from_millis(300);
    let error = rank_0.gather(b"here", limit).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains("rank 1, 2"), "{error}");
}

#[test]
fn a_secret_must_be_long_enough() {
    let text = b" 0123456789abcde\n";
    let error = Secret::from_text(text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(!error.to_string().contains("0123"), "{error}");
    let file = std::env::temp_dir().join(format!("ucxrun-secret-{}", std::process::id()));
    std::fs::write(&file, "a secret for these tests\n").unwrap();
    let read = Secret::from_file(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let same = Secret::from_text(b"a secret for these tests").unwrap();
    assert_eq!(read.to_hex(), same.to_hex());
    assert!(Secret::from_file(&file).is_err());
}
