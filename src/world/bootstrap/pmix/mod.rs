//! A client of PMIx, which `mpirun` of Open MPI, `prterun` and `srun --mpi=pmix` speak, through
//! the machine's own libpmix.
//!
//! All calls are made by one thread, for which others wait before a deadline: the library's
//! have none.

mod ffi;

use super::manager::Manager;
use crate::error::{Error, ErrorKind, Result};
pub(in crate::world::bootstrap) use ffi::Api;
use ffi::Me;
use std::ffi::{CString, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long the manager may take for anything but a fence.
const ANSWER: Duration = Duration::from_secs(30);
/// Names the library, where it is in no usual place.
const LIBRARY: &str = "PGAS_PMIX_LIBRARY";
const NAME: &str = "libpmix.so.2";

type Call = Box<dyn FnOnce(&mut Session) + Send>;

/// What the thread has.
struct Session {
    api: Api,
    me: Option<Me>,
}

pub(super) struct Client {
    calls: Sender<Call>,
    rank: u32,
    size: u32,
    round: u32,
    /// The process that has started this one: the manager's on this machine.
    parent: OwnedFd,
}

/// The library, if this machine has one.
pub(super) fn library(get: &impl Fn(&str) -> Option<OsString>) -> Result<Api> {
    let mut tried = Vec::new();
    for path in places(get) {
        match Api::load(&path) {
            Ok(api) => return Ok(api),
            Err(Some(why)) => return Err(failed(&why)),
            Err(None) => tried.push(path.display().to_string()),
        }
    }
    Err(failed(&format!(
        "there is no libpmix to be loaded as {} ({LIBRARY} names one elsewhere)",
        tried.join(" or ")
    )))
}

/// Where it may be, in the order of search.
fn places(get: &impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    if let Some(path) = get(LIBRARY) {
        return vec![path.into()];
    }
    let mut places = Vec::new();
    // The one that belongs to the manager, where it says so.
    for prefix in ["PMIX_PREFIX", "OPAL_PREFIX"]
        .iter()
        .filter_map(|name| get(name))
    {
        for folder in ["lib", "lib64", "lib/openmpi"] {
            places.push(Path::new(&prefix).join(folder).join(NAME));
        }
    }
    // Where the dynamic linker looks, and where Debian puts it.
    places.push(NAME.into());
    places.push("/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so.2".into());
    places
}

impl Client {
    pub(super) fn join(api: Api) -> Result<Self> {
        let parent = rustix::process::getppid()
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|parent| {
                rustix::process::pidfd_open(parent, rustix::process::PidfdFlags::empty())
            })
            .map_err(|error| failed(&format!("watching the process manager: {error}")))?;
        let (calls, called) = channel::<Call>();
        crate::world::spawn("pgas-pmix", move || {
            let mut session = Session { api, me: None };
            for call in called {
                call(&mut session);
            }
        })?;
        let mut client = Self {
            calls,
            rank: 0,
            size: 0,
            round: 0,
            parent,
        };
        let soon = Instant::now() + ANSWER;
        (client.rank, client.size) = client.call("PMIx_Init", soon, |session| {
            let me = session.api.init()?;
            let place = (me.rank(), session.api.size(&me)?);
            session.me = Some(me);
            Ok(place)
        })?;
        if client.rank >= client.size {
            let (rank, size) = (client.rank, client.size);
            return Err(failed(&format!("this is rank {rank} of {size}")));
        }
        Ok(client)
    }

    /// Has the thread run `call`; waits for the result until `deadline`.
    fn call<T: Send + 'static>(
        &self,
        what: &str,
        deadline: Instant,
        call: impl FnOnce(&mut Session) -> Result<T, String> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = channel();
        let call: Call = Box::new(move |session| {
            // Whoever asked may have stopped waiting.
            let _ = done.send(call(session));
        });
        let gone = || failed(&format!("{what}: the thread that calls it is gone"));
        self.calls.send(call).map_err(|_| gone())?;
        let left = deadline.saturating_duration_since(Instant::now());
        match result.recv_timeout(left) {
            Ok(result) => result.map_err(|why| failed(&why)),
            Err(RecvTimeoutError::Timeout) => Err(Error::new(
                ErrorKind::Timeout,
                format!("{what} has not returned in time: some ranks did not come"),
            )),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

impl Manager for Client {
    fn rank(&self) -> usize {
        self.rank as usize
    }

    fn size(&self) -> usize {
        self.size as usize
    }

    fn gather(&mut self, blob: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let key = CString::new(format!("pgas-{}", self.round)).unwrap_or_default();
        let (blob, size) = (blob.to_vec(), self.size);
        let blobs = self.call("PMIx_Fence", deadline, move |session| {
            let me = joined(&session.me)?;
            session.api.publish(&key, &blob)?;
            session.api.fence(me)?;
            (0..size)
                .map(|rank| session.api.fetch(me, rank, &key))
                .collect()
        })?;
        self.round += 1;
        Ok(blobs)
    }

    fn wait_for_all(&mut self, deadline: Instant) -> Result<()> {
        self.call("PMIx_Fence", deadline, |session| {
            session.api.fence(joined(&session.me)?)
        })
    }

    fn finalize(&mut self) -> Result<()> {
        let soon = Instant::now() + ANSWER;
        self.call("PMIx_Finalize", soon, |session| {
            session.me = None;
            session.api.finalize()
        })
    }

    fn abort(&mut self, code: i32, message: &str) {
        let message = message.to_owned();
        let soon = Instant::now() + Duration::from_secs(5);
        // If that fails, the exit code of this process says it.
        let _ = self.call("PMIx_Abort", soon, move |session| match session.me {
            Some(_) => session.api.abort(code, &message),
            None => Ok(()),
        });
    }

    fn watch(&self) -> Result<Box<dyn FnOnce() + Send>> {
        let parent = self.parent.try_clone();
        let parent =
            parent.map_err(|error| failed(&format!("watching the process manager: {error}")))?;
        Ok(Box::new(move || {
            super::wait_for_end(&parent, rustix::event::PollFlags::IN)
        }))
    }

    fn close(&self) {}
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

fn joined(me: &Option<Me>) -> Result<&Me, String> {
    me.as_ref().ok_or_else(|| "PMIx has been left".to_owned())
}

fn failed(why: &str) -> Error {
    Error::new(
        ErrorKind::Bootstrap,
        format!("joining the job by PMIx: {why}"),
    )
}
