//! `Endpoint`: a connection from a worker to a peer's worker.

#![expect(unsafe_code, reason = "calls UCX")]

use super::request::{Outcome, Posted};
use super::rkey::RemoteKey;
use super::serialized::SerializedRemoteKey;
use super::status::check;
use super::unflushed::Unflushed;
use super::worker::{State, Worker};
use crate::error::{Error, ErrorKind, Result};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use ucx_sys as sys;

/// How long closing may take; what is still open then goes with the worker.
const CLOSE_WITHIN: Duration = Duration::from_millis(100);

/// A connection to a peer's worker. Cloning shares it. It is closed when the last clone and the
/// last key unpacked on it are gone.
#[derive(Clone, Debug)]
pub struct Endpoint(Arc<Inner>);

/// Invariant: `handle` came from `ucp_ep_create` on `worker` and is live until `drop`.
#[derive(Debug)]
struct Inner {
    handle: NonNull<sys::ucp_ep>,
    /// The context at the other end.
    peer: u64,
    closed: AtomicBool,
    /// Locked after the worker, where both are.
    unflushed: Mutex<Unflushed>,
    worker: Worker,
}

// SAFETY: an endpoint may be used from any thread under its worker's lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Endpoint {
    /// `address` comes out of a sealed `WorkerAddress`: UCX trusts these bytes.
    pub(super) fn new(worker: &Worker, peer: u64, address: &[u8]) -> Result<Self> {
        let state = worker.lock()?;
        let params = sys::ucp_ep_params_t {
            field_mask: sys::UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
            address: address.as_ptr().cast(),
            ..sys::ucp_ep_params_t::ZEROED
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the worker is live and locked; the address was checked byte for byte against
        // what a worker of the same UCX version and job packed.
        let status = unsafe { sys::ucp_ep_create(state.raw(), &raw const params, &raw mut handle) };
        check("ucp_ep_create", status)?;
        let handle = NonNull::new(handle)
            .ok_or_else(|| Error::new(ErrorKind::Ucx, "ucp_ep_create: no endpoint"))?;
        Ok(Self(Arc::new(Inner {
            handle,
            peer,
            closed: AtomicBool::new(false),
            unflushed: Mutex::default(),
            worker: worker.clone(),
        })))
    }

    /// The key that a peer packed, usable through this endpoint.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] for a key of another job, or to memory of another process than
    /// the one at the other end; [`ErrorKind::Closed`];
    /// [`ErrorKind::Ucx`].
    #[doc(alias = "ucp_ep_rkey_unpack")]
    pub fn unpack(&self, key: &SerializedRemoteKey) -> Result<RemoteKey> {
        RemoteKey::from_serialized(self, key)
    }

    /// Refuses all further use of this endpoint, its clones and its keys. UCX's endpoint itself
    /// goes with the last of them, so that no key outlives it.
    #[doc(alias = "ucp_ep_close_nbx")]
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }

    /// The transports that UCX has chosen for it, each with its device: `tcp/eth0`, `rc_mlx5/mlx5_0:1`, `sysv/memory`.
    /// For people: UCX says it in words of its own, out of which these are taken.
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] if there is no memory for the words; [`ErrorKind::Forked`].
    #[doc(alias = "ucp_ep_print_info")]
    pub fn lanes(&self) -> Result<Vec<String>> {
        let _state = self.0.worker.lock()?;
        let (mut text, mut len) = (ptr::null_mut(), 0);
        // SAFETY: both outlive the stream.
        let stream = unsafe { libc::open_memstream(&raw mut text, &raw mut len) };
        if stream.is_null() {
            return Err(Error::new(ErrorKind::NoRoom, "no memory for a text"));
        }
        // SAFETY: the endpoint is live, its worker locked, the stream open.
        unsafe { sys::ucp_ep_print_info(self.raw(), stream) };
        // SAFETY: opened above and not used after this.
        let closed = unsafe { libc::fclose(stream) };
        let mut lanes = Vec::new();
        if closed == 0 && !text.is_null() {
            // SAFETY: closing has set them to the text and its length.
            let bytes = unsafe { std::slice::from_raw_parts(text.cast(), len) };
            lanes = lanes_in(&String::from_utf8_lossy(bytes));
        }
        // SAFETY: it is the caller's to free, null if there is none.
        unsafe { libc::free(text.cast()) };
        Ok(lanes)
    }

    /// The worker it was made on.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.0.worker
    }

    /// UCX's handle, valid while this endpoint lives.
    #[must_use]
    pub fn as_raw(&self) -> sys::ucp_ep_h {
        self.raw()
    }

    /// What was put through it and not flushed.
    pub(super) fn unflushed(&self) -> MutexGuard<'_, Unflushed> {
        self.0
            .unflushed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn downgrade(&self) -> WeakEndpoint {
        WeakEndpoint(Arc::downgrade(&self.0))
    }

    /// The context at the other end.
    pub(super) fn peer(&self) -> u64 {
        self.0.peer
    }

    pub(super) fn raw(&self) -> sys::ucp_ep_h {
        self.0.handle.as_ptr()
    }

    /// # Errors
    /// [`ErrorKind::Closed`].
    pub(super) fn check_open(&self) -> Result<()> {
        if self.0.closed.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::Closed,
                "the endpoint of this key was closed",
            ));
        }
        Ok(())
    }
}

/// Of lines like `lane[0]:  2:tcp/eth0.0 md[1] …`, where the last number is that of a path of the device.
fn lanes_in(text: &str) -> Vec<String> {
    let mut lanes: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut words = line.trim_start_matches(['#', ' ']).split_whitespace();
        let name = match words.next() {
            Some(lane) if lane.starts_with("lane[") => words.next(),
            _ => None,
        };
        let name = name.and_then(|name| name.split_once(':'));
        if let Some((_, name)) = name {
            let name = name.rsplit_once('.').map_or(name, |(name, _)| name);
            if !lanes.iter().any(|lane| lane == name) {
                lanes.push(name.to_owned());
            }
        }
    }
    lanes
}

/// An endpoint that its worker remembers but does not keep.
#[derive(Debug)]
pub(super) struct WeakEndpoint(Weak<Inner>);

impl WeakEndpoint {
    /// None if it has been closed: what was posted on it has been flushed, or its time was up.
    pub(super) fn upgrade(&self) -> Option<Endpoint> {
        self.0.upgrade().map(Endpoint)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.worker.is_ending() {
            return;
        }
        let Ok(mut state) = self.worker.lock() else {
            return; // Forked: the parent's.
        };
        let until = Instant::now() + CLOSE_WITHIN;
        let param = sys::ucp_request_param_t::ZEROED;
        let unflushed = self
            .unflushed
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if !unflushed.is_empty() {
            unflushed.begin();
            // SAFETY: live, of a locked worker; keys and clones held the Arc that is now gone.
            let result = unsafe { sys::ucp_ep_flush_nbx(self.handle.as_ptr(), &raw const param) };
            let flushed = finish(&mut state, Posted::new("ucp_ep_flush_nbx", result), until);
            // If not flushed, operations may still use the keys: they stay.
            for key in unflushed.end(flushed) {
                state.destroy(key);
            }
        }
        // SAFETY: as above.
        let result = unsafe { sys::ucp_ep_close_nbx(self.handle.as_ptr(), &raw const param) };
        finish(&mut state, Posted::new("ucp_ep_close_nbx", result), until);
    }
}

/// Progresses the worker until the operation is complete, or for the time given; whether it is.
fn finish(state: &mut State, posted: Result<Posted>, until: Instant) -> bool {
    let Ok(posted) = posted else {
        return false;
    };
    let Posted::InFlight(request) = posted else {
        return true;
    };
    let complete = loop {
        match posted.test() {
            Outcome::Complete(result) => break result.is_ok(),
            Outcome::Pending if Instant::now() >= until => break false,
            // SAFETY: the worker is live and locked.
            Outcome::Pending => unsafe { sys::ucp_worker_progress(state.raw()) },
        };
    };
    state.free(request);
    complete
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_found_in_a_text() {
        let text = "#\n# UCP endpoint \n#\n\
             #               peer: <no debug data>\n\
             #                 lane[0]:  1:tcp/lo.0 md[1]     -> md[1]/tcp/sysdev[255] rma_bw#0 am\n\
             #                 lane[1]:  2:tcp/eth0.100.0 md[1] -> md[1]/tcp/sysdev[255] wireup\n\
             #                 lane[2]: 12:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] seg 8256\n\
             #                 lane[3]: 12:rc_mlx5/mlx5_0:1.1 md[4] -> md[4]/ib/sysdev[1]\n\
             #                tag_send: 0..<egr/short>..8185..(inf)\n\
             # |      0..8184 | eager short | tcp/lo |\n";
        assert_eq!(
            lanes_in(text),
            ["tcp/lo", "tcp/eth0.100", "rc_mlx5/mlx5_0:1"]
        );
        assert!(lanes_in("lane[0]:\nlane[1]: x").is_empty());
    }
}
