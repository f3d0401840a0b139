//! What an operation that was just posted is: done, failed, or under way; and `Request`, which
//! owns the buffer of one that is under way.

#![expect(unsafe_code, reason = "calls UCX")]

use super::endpoint::Endpoint;
use super::unflushed::Unflushed;
use crate::element::{self, Element};
use crate::error::{Error, Result};
use crate::ucx::Status;
use std::ffi::c_void;
use std::ptr::NonNull;
use ucx_sys as sys;

/// A posted operation. Not an owner: whoever posted it frees the request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Posted {
    Done,
    InFlight(NonNull<c_void>),
}

pub(super) enum Outcome {
    Pending,
    Complete(Result<()>),
}

impl Posted {
    /// Sorts out the three things that a UCX `_nbx` function may return.
    #[inline]
    pub(super) fn new(call: &'static str, result: sys::ucs_status_ptr_t) -> Result<Self> {
        if sys::UCS_PTR_IS_ERR(result) {
            return Err(Error::ucx(call, Status::new(sys::UCS_PTR_STATUS(result))));
        }
        Ok(NonNull::new(result).map_or(Self::Done, Self::InFlight))
    }

    /// Whether it has completed. The worker's lock is held.
    pub(super) fn test(&self) -> Outcome {
        let Self::InFlight(request) = self else {
            return Outcome::Complete(Ok(()));
        };
        // SAFETY: the request has not been freed: whoever holds it does that last.
        let status = unsafe { sys::ucp_request_check_status(request.as_ptr()) };
        if status == sys::UCS_INPROGRESS {
            Outcome::Pending
        } else {
            Outcome::Complete(super::status::check("operation", status))
        }
    }
}

/// An operation that nobody waits for, and the memory it reads or writes.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) posted: Posted,
    /// Its capacity is what the operation uses.
    pub(super) buffer: Vec<u8>,
}

// SAFETY: a request may be tested and freed from any thread under its worker's lock.
unsafe impl Send for InFlight {}

/// A read that may still be under way. It owns the buffer that UCX writes to and gives it out
/// when the read is complete; dropping or forgetting it early is harmless.
#[must_use = "the values are inside: call wait()"]
pub struct Request<T: Element> {
    /// Keeps it, and with it its keys, while the read is under way.
    endpoint: Endpoint,
    posted: Posted,
    /// Capacity for `count` elements; length 0 until UCX has written them.
    buffer: Vec<T::Bits>,
    count: usize,
    /// The rank that is read from.
    owner: u32,
}

// SAFETY: the buffer is owned plain data; the request is only touched under the worker's lock.
unsafe impl<T: Element> Send for Request<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Request<T> {}

impl<T: Element> std::fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl<T: Element> Request<T> {
    /// # Safety
    /// `posted` was posted on `endpoint` and writes to `buffer`'s capacity, exactly `count` elements.
    pub(super) unsafe fn new(
        (endpoint, owner): (Endpoint, u32),
        posted: Posted,
        buffer: Vec<T::Bits>,
        count: usize,
    ) -> Self {
        Self {
            endpoint,
            posted,
            buffer,
            count,
            owner,
        }
    }

    /// Whether the values have arrived; progresses the worker.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`](crate::ErrorKind::Ucx) if the operation failed.
    pub fn is_done(&self) -> Result<bool> {
        self.endpoint.worker().progress()?;
        let _state = self.endpoint.worker().lock()?;
        match self.posted.test() {
            Outcome::Pending => Ok(false),
            Outcome::Complete(result) => result.map(|()| true),
        }
    }

    /// From now on the next flush waits for the read, too: for one that may be forgotten, whose
    /// drop does not say so.
    pub(crate) fn may_be_forgotten(&self) -> Result<()> {
        if let Posted::InFlight(_) = self.posted {
            let worker = self.endpoint.worker();
            let mut state = worker.lock()?;
            worker.remember(&mut state, &self.endpoint, Unflushed::abandon);
        }
        Ok(())
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// [`ErrorKind::Ucx`](crate::ErrorKind::Ucx) if the operation failed,
    /// [`ErrorKind::InvalidValue`](crate::ErrorKind::InvalidValue) if what arrived is no `T`,
    /// or whatever ended the wait.
    #[doc(alias = "ucp_request_check_status")]
    pub fn wait(self) -> Result<Vec<T>> {
        element::vec_from_bits(self.wait_bits()?)
    }

    /// As [`Request::wait`], whether they are values or not.
    pub(crate) fn wait_bits(mut self) -> Result<Vec<T::Bits>> {
        if let Posted::InFlight(_) = self.posted {
            let worker = self.endpoint.worker();
            let _concerned = worker.concerned_with(self.owner);
            let outcome = worker.wait_for(|_| match self.posted.test() {
                Outcome::Pending => None,
                Outcome::Complete(result) => Some(result),
            })?; // Still under way: drop keeps the buffer.
            outcome?;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        // SAFETY: the operation is complete: UCX has written `count` elements' bytes, and
        // T::Bits accepts any.
        unsafe { buffer.set_len(self.count) };
        Ok(buffer)
    }
}

impl<T: Element> Drop for Request<T> {
    fn drop(&mut self) {
        let Posted::InFlight(request) = self.posted else {
            return;
        };
        let Ok(mut state) = self.endpoint.worker().lock() else {
            // Forked: the buffer and the request are the parent's.
            std::mem::forget(std::mem::take(&mut self.buffer));
            return;
        };
        if matches!(self.posted.test(), Outcome::Pending) {
            // UCX may still write to it. Leaked, not freed: there is no way to call it back.
            std::mem::forget(std::mem::take(&mut self.buffer));
            let worker = self.endpoint.worker();
            worker.remember(&mut state, &self.endpoint, Unflushed::abandon);
        }
        state.free(request);
    }
}
