//! `GetBatch`: many reads under way together, into one buffer.

#![expect(unsafe_code, reason = "calls UCX")]

use super::endpoint::Endpoint;
use super::request::{Outcome, Posted};
use super::rkey::RemoteKey;
use super::unflushed::Unflushed;
use super::worker::{State, Worker, host_param};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;
use ucx_sys as sys;

/// Reads that may be under way at a time in one batch; another waits for the oldest.
const IN_FLIGHT: usize = 1024;

/// Reads through keys of one worker, posted together into one buffer of elements that the batch
/// owns; they are all waited for at once. What is read to nowhere stays zero.
///
/// Dropping or forgetting it early is harmless.
#[must_use = "the values are inside: call wait()"]
pub struct GetBatch<T: Element> {
    worker: Worker,
    buffer: Vec<T::Bits>,
    /// Oldest first. Each writes to the buffer.
    posted: VecDeque<NonNull<c_void>>,
    /// Kept, and with them their keys, while reads are under way. No two are equal.
    endpoints: Vec<Endpoint>,
    /// The first that went wrong.
    failure: Option<Error>,
}

// SAFETY: the buffer is owned plain data; requests are only touched under the worker's lock.
unsafe impl<T: Element> Send for GetBatch<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for GetBatch<T> {}

impl<T: Element> std::fmt::Debug for GetBatch<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GetBatch")
            .field("count", &self.buffer.len())
            .field("in_flight", &self.posted.len())
            .finish_non_exhaustive()
    }
}

impl<T: Element> GetBatch<T> {
    /// A buffer for `count` elements, all bytes zero.
    pub fn new(worker: &Worker, count: usize) -> Self {
        Self {
            worker: worker.clone(),
            buffer: vec![bytemuck::Zeroable::zeroed(); count],
            posted: VecDeque::new(),
            endpoints: Vec::new(),
            failure: None,
        }
    }

    /// Starts to read `count` elements from `offset` on, to the buffer's elements from `at` on. If
    /// many are under way, waits for the oldest first.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`], also for the buffer; [`ErrorKind::InvalidArgument`] for a key
    /// of another worker; else as for [`RemoteKey::get`].
    #[doc(alias = "ucp_get_nbx")]
    pub fn post(&mut self, key: &RemoteKey, offset: usize, count: usize, at: usize) -> Result<()> {
        let mapped = key.mapped::<T>(offset, count)?;
        let room = self.buffer.len();
        if at.checked_add(count).is_none_or(|end| end > room) {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("{count} elements from {at} on are outside the {room} of the buffer"),
            ));
        }
        if count == 0 {
            return Ok(());
        }
        // SAFETY: inside the buffer, as just checked. By pointer only: UCX may be writing to
        // other parts of it.
        let to = unsafe { self.buffer.as_mut_ptr().add(at) };
        if let Some(from) = mapped {
            // SAFETY: `count` elements, mapped while the key lives; as many of the buffer.
            unsafe { element::copy(to.cast(), from, count * size_of::<T>()) };
            return Ok(());
        }
        if !key.endpoint().worker().is(&self.worker) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a key of another worker than the batch",
            ));
        }
        self.make_room()?;
        let there = key.elements::<T>(offset, count);
        self.worker.order(key.endpoint(), &there)?;
        let posted = {
            let _state = self.worker.lock()?;
            let param = host_param();
            // SAFETY: endpoint and key are live, the worker locked; the range lies in the owner's
            // memory; the batch keeps the buffer while UCX may write to it.
            let result = unsafe {
                sys::ucp_get_nbx(
                    key.endpoint().raw(),
                    to.cast(),
                    count * size_of::<T>(),
                    key.remote_address::<T>(offset),
                    key.post_with(),
                    &raw const param,
                )
            };
            Posted::new("ucp_get_nbx", result)?
        };
        if let Posted::InFlight(request) = posted {
            self.posted.push_back(request);
            let raw = key.endpoint().raw();
            // Most often the last.
            if !self.endpoints.iter().rev().any(|kept| kept.raw() == raw) {
                self.endpoints.push(key.endpoint().clone());
            }
        }
        Ok(())
    }

    fn make_room(&mut self) -> Result<()> {
        if self.posted.len() < IN_FLIGHT {
            return Ok(());
        }
        let worker = self.worker.clone();
        worker.wait_for(|state| {
            self.reap(state);
            (self.posted.len() < IN_FLIGHT).then_some(())
        })
    }

    /// Gives back requests that have completed, oldest first.
    fn reap(&mut self, state: &mut State) {
        while let Some(&request) = self.posted.front() {
            match Posted::InFlight(request).test() {
                Outcome::Pending => return,
                Outcome::Complete(result) => {
                    self.failure = self.failure.take().or(result.err());
                }
            }
            state.free(request);
            self.posted.pop_front();
        }
    }

    /// Whether all values have arrived; progresses the worker.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`].
    pub fn is_done(&mut self) -> Result<bool> {
        if self.posted.is_empty() {
            return Ok(true);
        }
        self.worker.progress()?;
        let worker = self.worker.clone();
        let mut state = worker.lock()?;
        self.reap(&mut state);
        Ok(self.posted.is_empty())
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`] if a read failed, [`ErrorKind::InvalidValue`] if what arrived is no `T`,
    /// or whatever ended the wait.
    pub fn wait(mut self) -> Result<Vec<T>> {
        if !self.posted.is_empty() {
            let worker = self.worker.clone();
            worker.wait_for(|state| {
                self.reap(state);
                self.posted.is_empty().then_some(())
            })?; // Still under way: drop keeps the buffer.
        }
        match self.failure.take() {
            Some(error) => Err(error),
            None => element::vec_from_bits(std::mem::take(&mut self.buffer)),
        }
    }
}

impl<T: Element> Drop for GetBatch<T> {
    fn drop(&mut self) {
        if self.posted.is_empty() {
            return;
        }
        let worker = self.worker.clone();
        let Ok(mut state) = worker.lock() else {
            // Forked: the buffer and the requests are the parent's.
            std::mem::forget(std::mem::take(&mut self.buffer));
            return;
        };
        self.reap(&mut state);
        if self.posted.is_empty() {
            return;
        }
        // UCX may still write to it. Leaked, not freed: there is no way to call it back.
        std::mem::forget(std::mem::take(&mut self.buffer));
        for request in self.posted.drain(..) {
            state.free(request);
        }
        for endpoint in &self.endpoints {
            worker.remember(&mut state, endpoint, Unflushed::abandon);
        }
        // Dropping an endpoint takes the lock.
        drop(state);
    }
}
