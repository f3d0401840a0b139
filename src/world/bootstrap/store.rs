//! Jobs whose ranks nobody connects: rank 0 keeps a store, which the others find at an address that all were given, or
//! in a file.
//!
//! The file is for jobs whose ranks share a working directory and a user, and nothing else: rank 0 writes into it where
//! it listens and a fresh secret. Only its owner can read it, it is there only while the ranks join, and a reader
//! takes no file that somebody else could have written.

use crate::error::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use ucxrun::store::{Signals, Store};
use ucxrun::{Control, Secret};

/// One attempt to reach one address.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// How long rank 0 stays for the others when it ends.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most bytes of the file.
const LONGEST: u64 = 4096;
/// The file's first line.
const HEAD: &str = "pgas store 1";

/// How the ranks of such a job meet.
#[derive(Clone, Debug)]
pub(super) enum Meeting {
    /// Rank 0 listens there.
    Address {
        host: String,
        port: u16,
        secret: Secret,
    },
    /// Rank 0 writes into this file.
    File(PathBuf),
}

/// Rank 0's store, in a thread of its own.
#[derive(Debug)]
pub(in crate::world) struct Keeper {
    signals: Arc<Signals>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn start(store: Store) -> Result<Self> {
        let signals = Arc::new(Signals::default());
        let run = {
            let signals = signals.clone();
            move || store.run(&signals, PATIENCE)
        };
        let thread = Some(crate::world::spawn("pgas-store", run)?);
        Ok(Self { signals, thread })
    }

    /// Gives the store the time to tell the others of this rank's failure.
    pub(in crate::world) fn wait_until_told(&self) {
        let until = Instant::now() + PATIENCE;
        while !self.signals.told.load(Ordering::Acquire) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Keeper {
    /// Waits until the others have gone, for `PATIENCE` at most.
    fn drop(&mut self) {
        self.signals.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, the store is closed.
            let _ = thread.join();
        }
    }
}

/// A rank that has joined.
pub(super) struct Joined {
    pub(super) control: Control,
    pub(super) keeper: Option<Keeper>,
    /// Removed with this.
    pub(super) file: Option<Written>,
}

/// The file that rank 0 has written.
#[derive(Debug)]
pub(super) struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        // It may be gone; and if it cannot be removed, its secret is of no use any more.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// How many seconds a machine may be silent before its ranks are lost.
const LOST_AFTER: &str = "PGAS_LOST_AFTER";

fn lost_after() -> Result<Option<Duration>> {
    let Some(text) = std::env::var_os(LOST_AFTER) else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.trim().parse().ok());
    match seconds {
        Some(seconds @ 1..=86_400) => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(failed(&format!(
            "{LOST_AFTER} is {}, not a number of seconds from 1 to 86400",
            text.display()
        ))),
    }
}

/// Joins as `rank` of `size`.
pub(super) fn join(meeting: &Meeting, place: (u32, u32), deadline: Instant) -> Result<Joined> {
    let lost_after = lost_after()?;
    let joined = join_within(meeting, place, deadline, lost_after)?;
    if let Some(limit) = lost_after {
        let set = joined.control.lost_after(limit);
        set.map_err(|error| failed(&error.to_string()))?;
    }
    Ok(joined)
}

fn join_within(
    meeting: &Meeting,
    (rank, size): (u32, u32),
    deadline: Instant,
    lost_after: Option<Duration>,
) -> Result<Joined> {
    match meeting {
        Meeting::Address { host, port, secret } => {
            let job = secret.job(size);
            let keeper = if rank == 0 {
                let listen = listen_for(host, *port);
                Some(keep(&listen, secret, (size, job), lost_after)?.0)
            } else {
                None
            };
            let control = until(deadline, || {
                // Rank 0 may not be there yet, nor its name.
                let places = (host.as_str(), *port).to_socket_addrs();
                let places = places.map_err(|error| format!("{host}: {error}"))?;
                try_all(places, secret, job, (rank, size), deadline)
            })?;
            Ok(Joined {
                control,
                keeper,
                file: None,
            })
        }
        Meeting::File(path) if rank == 0 => {
            let secret = Secret::random().map_err(|error| failed(&error.to_string()))?;
            let job = secret.job(size);
            let (keeper, port) = keep(&anywhere(0), &secret, (size, job), lost_after)?;
            let file = write(path, port, &secret)?;
            let own = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let control = until(deadline, || {
                try_all([own], &secret, job, (rank, size), deadline)
            })?;
            Ok(Joined {
                control,
                keeper: Some(keeper),
                file: Some(file),
            })
        }
        Meeting::File(path) => {
            let control = until(deadline, || {
                let found = read(path)?;
                let job = found.secret.job(size);
                let places = found.places()?;
                // Whatever listens there now, where an earlier job's rank 0 did.
                let again = |refused| match refused {
                    Refused::Now(why) | Refused::Final(why) => Refused::Now(why),
                };
                try_all(places, &found.secret, job, (rank, size), deadline).map_err(again)
            })?;
            Ok(Joined {
                control,
                keeper: None,
                file: None,
            })
        }
    }
}

fn keep(
    listen: &[SocketAddr],
    secret: &Secret,
    (size, job): (u32, [u8; 16]),
    lost_after: Option<Duration>,
) -> Result<(Keeper, u16)> {
    let store = Store::open(listen, size, secret.clone(), job);
    let mut store = store.map_err(|error| failed(&error.to_string()))?;
    if let Some(limit) = lost_after {
        store = store.lost_after(limit);
    }
    let port = store.port();
    Ok((Keeper::start(store)?, port))
}

/// All of this machine's addresses.
fn anywhere(port: u16) -> [SocketAddr; 2] {
    // A machine may have no IPv6; one that has takes IPv4 there, too.
    [
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
    ]
}

/// Where to listen so that `host` leads there; no wider than that if all ranks are on this machine.
fn listen_for(host: &str, port: u16) -> Vec<SocketAddr> {
    let places: Vec<_> = match (host, port).to_socket_addrs() {
        Ok(places) => places.collect(),
        Err(_) => Vec::new(),
    };
    let local = |place: &SocketAddr| match place.ip() {
        // Debian gives a machine's own name 127.0.1.1, which others do not see.
        IpAddr::V4(ip) => ip == Ipv4Addr::LOCALHOST,
        IpAddr::V6(ip) => ip == Ipv6Addr::LOCALHOST,
    };
    if !places.is_empty() && places.iter().all(local) {
        return places;
    }
    anywhere(port).to_vec()
}

/// Tries again what fails with a reason, until `deadline`.
fn until<T>(deadline: Instant, mut attempt: impl FnMut() -> Result<T, Refused>) -> Result<T> {
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Refused::Final(why)) => return Err(failed(&why)),
            Err(Refused::Now(why)) if Instant::now() + PAUSE >= deadline => {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!("joining the job: rank 0 cannot be found in time: {why}"),
                ));
            }
            Err(Refused::Now(_)) => std::thread::sleep(PAUSE),
        }
    }
}

/// Why an attempt has failed, and whether another is worth it.
enum Refused {
    Now(String),
    Final(String),
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self::Now(why)
    }
}

fn try_all(
    places: impl IntoIterator<Item = SocketAddr>,
    secret: &Secret,
    job: [u8; 16],
    place: (u32, u32),
    deadline: Instant,
) -> Result<Control, Refused> {
    let mut last = Refused::Now("no address".to_owned());
    for address in places {
        let soon = deadline.min(Instant::now() + ATTEMPT);
        match Control::over_tcp(address, secret, job, place, soon) {
            Ok(control) => return Ok(control),
            Err(error) if error.kind() == ucxrun::ErrorKind::Refused => {
                last = Refused::Final(format!("{address}: {error}"));
            }
            Err(error) => last = Refused::Now(error.to_string()),
        }
    }
    Err(last)
}

/// What rank 0 has written.
pub(super) struct Found {
    hosts: Vec<String>,
    port: u16,
    boot: String,
    secret: Secret,
}

impl Found {
    fn places(&self) -> Result<Vec<SocketAddr>, Refused> {
        let mut places = Vec::new();
        if !self.boot.is_empty() && self.boot == boot() {
            places.push(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)));
        }
        let mut why = None;
        for host in &self.hosts {
            match (host.as_str(), self.port).to_socket_addrs() {
                Ok(found) => places.extend(found),
                Err(error) => why = Some(format!("{host}: {error}")),
            }
        }
        match why {
            Some(why) if places.is_empty() => Err(Refused::Now(why)),
            _ => Ok(places),
        }
    }

    /// Reads the lines that `write` has written.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return None;
        }
        let (mut hosts, mut port, mut boot, mut secret) = (Vec::new(), None, None, None);
        for line in lines {
            let (key, value) = line.split_once(' ')?;
            match key {
                "host" if !value.is_empty() && hosts.len() < 8 => hosts.push(value.to_owned()),
                "port" => port = Some(value.parse().ok().filter(|&port| port > 0)?),
                "boot" => boot = Some(value.to_owned()),
                "secret" => secret = Some(Secret::from_hex(value)?),
                _ => return None,
            }
        }
        Some(Self {
            hosts,
            port: port?,
            boot: boot?,
            secret: secret?,
        })
    }

    /// The lines.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{HEAD}\nport {}\nboot {}\n", self.port, self.boot);
        for host in &self.hosts {
            text += &format!("host {host}\n");
        }
        text + &format!("secret {}\n", self.secret.to_hex())
    }
}

/// The running kernel.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// What other machines may know this one as.
fn own_names() -> Vec<String> {
    let mut names = Vec::new();
    if let Ok(name) = hostname::get() {
        names.extend(name.into_string().ok());
    }
    names.extend(std::env::var("SLURMD_NODENAME").ok());
    names.retain(|name| !name.is_empty() && !name.contains(char::is_whitespace));
    names.dedup();
    names
}

fn write(path: &Path, port: u16, secret: &Secret) -> Result<Written> {
    let place = Found {
        hosts: own_names(),
        port,
        boot: boot(),
        secret: secret.clone(),
    };
    let cannot = |error: std::io::Error| {
        failed(&format!(
            "rank 0 cannot write {} for the others to find it ({error}); PGAS_RENDEZVOUS names another folder that \
             all ranks share, or give MASTER_ADDR, MASTER_PORT and PGAS_SECRET",
            path.display()
        ))
    };
    // Renamed when it is whole. A name of our own, new, and for our eyes only from its first moment.
    let mut partial = path.to_owned().into_os_string();
    partial.push(format!(".{}", std::process::id()));
    let partial = Written(partial.into());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&partial.0, flags, Mode::RUSR | Mode::WUSR);
    let mut file = std::fs::File::from(file.map_err(|error| cannot(error.into()))?);
    file.write_all(place.text().as_bytes()).map_err(cannot)?;
    file.sync_all().map_err(cannot)?;
    std::fs::rename(&partial.0, path).map_err(cannot)?;
    Ok(Written(path.to_owned()))
}

fn read(path: &Path) -> Result<Found, Refused> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
        format!(
            "{} ({error}): do all ranks share this folder? PGAS_RENDEZVOUS names another",
            path.display()
        )
    })?;
    let file = std::fs::File::from(file);
    let meta = file.metadata().map_err(|error| error.to_string())?;
    let ours = rustix::process::geteuid().as_raw();
    if !meta.is_file() || meta.uid() != ours || meta.mode() & 0o077 != 0 {
        return Err(Refused::Final(format!(
            "{} is not a file that only this user can read",
            path.display()
        )));
    }
    let mut text = String::new();
    let read = file.take(LONGEST).read_to_string(&mut text);
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    // One that an earlier job left, or of another release: rank 0 is about to replace it.
    Found::parse(&text)
        .ok_or_else(|| Refused::Now(format!("{} is not of this release", path.display())))
}

fn failed(why: &str) -> Error {
    Error::new(ErrorKind::Bootstrap, format!("joining the job: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = format!("pgas-store-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            std::fs::create_dir(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn the_file_is_for_its_owner_only() {
        let folder = Folder::new("owner");
        let path = folder.0.join("meeting");
        let secret = Secret::random().unwrap();
        let written = write(&path, 77, &secret).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let found = read(&path).ok().unwrap();
        assert_eq!(found.port, 77);
        assert_eq!(found.secret.to_hex(), secret.to_hex());
        // Somebody else could have written, or read, these.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read(&path), Err(Refused::Final(_))));
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(read(&link), Err(Refused::Now(_))));
        // An old one is replaced.
        let again = write(&path, 78, &secret).unwrap();
        assert_eq!(read(&path).ok().unwrap().port, 78);
        drop((written, again));
        assert!(matches!(read(&path), Err(Refused::Now(_))));
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "the link");
    }

    #[test]
    fn other_files_are_not_taken() {
        let secret = "0".repeat(64);
        let good = format!("{HEAD}\nport 5\nboot a\nhost b\nsecret {secret}\n");
        assert!(Found::parse(&good).is_some());
        for at in 0..good.len() - 1 {
            // Cut anywhere, it is not whole.
            assert!(Found::parse(&good[..at]).is_none(), "{:?}", &good[..at]);
        }
        for bad in [
            good.replace("store 1", "store 2"),
            good.replace("port 5", "port 0"),
            good.replace("port 5", "port 70000"),
            good.replace("secret 0", "secret x"),
            good.replace("host b", "hosts b"),
        ] {
            assert!(Found::parse(&bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_wrong_secret_is_refused_and_a_silent_port_times_out() {
        let (one, other) = (b"a secret of a job", b"a secret of another");
        let secret = Secret::from_text(one).unwrap();
        let any = [SocketAddr::from(([127, 0, 0, 1], 0))];
        let (keeper, port) = keep(&any, &secret, (2, [1; 16]), None).unwrap();
        let meeting = |secret: &Secret, port| Meeting::Address {
            host: "127.0.0.1".to_owned(),
            port,
            secret: secret.clone(),
        };
        let soon = || Instant::now() + Duration::from_millis(700);
        let wrong = Secret::from_text(other).unwrap();
        let error = join(&meeting(&wrong, port), (1, 2), soon()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Bootstrap);
        assert!(error.to_string().contains("secret"), "{error}");
        // Nobody listens any more.
        drop(keeper);
        let error = join(&meeting(&secret, port), (1, 2), soon()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("cannot be found"), "{error}");
        assert!(Secret::from_text(b"short").is_err());
    }
}
